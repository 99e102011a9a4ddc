package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/verb"
)

// within bounds a command that asks the API server for something and does not wait for gateways.
const within = 30 * time.Second

// place is a cluster and a namespace in it.
type place struct {
	kube.Clients
	namespace string
}

// connect finds the cluster and the namespace as kubectl does.
func (c *cli) connect() (place, error) {
	loader := c.flags.ToRawKubeConfigLoader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return place{}, fmt.Errorf("find the API server: %w; name a kubeconfig with --kubeconfig or KUBECONFIG", err)
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return place{}, fmt.Errorf("find the API server: %w; name a kubeconfig with --kubeconfig or KUBECONFIG", err)
	}
	clients, err := kube.ConnectTo(config, "stoker/"+version)
	if err != nil {
		return place{}, err
	}
	return place{clients, namespace}, nil
}

func (p place) setter() *verb.Setter { return verb.NewSetter(p.Dynamic, nil) }

// explain says what to do about an error of the API server.
func (p place) explain(name string, err error) error {
	gone, isGone := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case isGone && apierrors.IsNotFound(err) && (gone.ErrStatus.Details == nil || gone.ErrStatus.Details.Name == ""):
		return fmt.Errorf("this cluster does not know GatewaySyncs: install the chart, or its custom resource definitions alone: %w", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no GatewaySync %s in namespace %s: look with 'get -A', choose with --namespace", name, p.namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nThe ClusterRole stoker-setter has what these commands need: bind it in namespace %s", err, p.namespace)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not know who this is: %w", err)
	}
	return err
}

// load reads one GatewaySync.
func (p place) load(ctx context.Context, name string) (*v1alpha1.GatewaySync, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	gs, err := kube.GatewaySyncs(p.Dynamic, p.namespace).Get(ctx, name)
	return gs, p.explain(name, err)
}
