package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// queryTimeout bounds the queries of a command to the API server. It does not bound the wait for gateways.
const queryTimeout = 30 * time.Second

// target is a cluster and a namespace in it. connectTo also sets the kind and the name of an object.
type target struct {
	kube.Clients
	namespace string
	kind      kube.Kind
	name      string
	role      string // ClusterRole that grants the rights of the command
	retries   bool   // retry while the API server does not answer, see target.retry
}

// dialTimeout bounds the attempt to connect to an API server, so that a user learns soon that a network drops packets.
const dialTimeout = 5 * time.Second

// connect finds the cluster and the namespace as kubectl does.
func (c *cli) connect() (target, error) {
	loader := c.flags.ToRawKubeConfigLoader()
	namespace, _, err := loader.Namespace()
	if err != nil {
		return target{}, fmt.Errorf("load the kubeconfig: %w; set --kubeconfig or KUBECONFIG", err)
	}
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return target{}, fmt.Errorf("load the kubeconfig: %w; set --kubeconfig or KUBECONFIG", err)
	}
	if err := c.findCluster(loader, config); err != nil {
		return target{}, err
	}
	kube.Directly(config, c.env)
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	retries := !c.interactive && !c.answersAtOnce
	if !retries {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return once{next} })
	}
	clients, err := kube.ConnectTo(config, "stoker/"+version)
	if err != nil {
		return target{}, err
	}
	return target{Clients: clients, namespace: namespace, kind: kube.GatewaySync, role: "stoker-setter", retries: retries}, nil
}

// once is a RoundTripper whose error keeps client-go from repeating a request ten times, a second apart, if the connection was closed
// without an answer. A load balancer in front of an API server that is away does that.
type once struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := o.next.RoundTrip(req)
	if utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) {
		err = errors.New("the connection was closed without an answer")
	}
	return res, err
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (o once) WrappedRoundTripper() http.RoundTripper { return o.next }

// findCluster reports that nothing names a cluster. client-go then connects to localhost:8080, as kubectl of ten years ago.
func (c *cli) findCluster(loader clientcmd.ClientConfig, config *rest.Config) error {
	if config.Host != "http://localhost:8080" {
		return nil
	}
	if raw, err := loader.RawConfig(); err != nil || len(raw.Clusters) > 0 || *c.flags.APIServer != "" {
		return nil //nolint:nilerr // an error would have occurred before
	}
	files := loader.ConfigAccess().GetLoadingPrecedence()
	missing := func(file string) bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	}
	name := strings.Join(files, " and ")
	switch {
	case c.env(clientcmd.RecommendedConfigPathEnvVar) == "":
		return fmt.Errorf("there is no kubeconfig at %s: set --kubeconfig or KUBECONFIG", name)
	case !slices.ContainsFunc(files, func(file string) bool { return !missing(file) }):
		return fmt.Errorf("KUBECONFIG names %s, which does not exist: correct it, or set --kubeconfig", name)
	}
	return fmt.Errorf("the kubeconfig %s names no cluster: set --kubeconfig or KUBECONFIG to another one", name)
}

func (p target) setter() *request.Setter { return request.NewSetter(p.Dynamic, p.Now).Of(p.kind) }

// kindsByPrefix maps what may precede the name of an object, before a slash, as in kubectl.
var kindsByPrefix = map[string]kube.Kind{
	"gatewaysync": kube.GatewaySync, "gatewaysyncs": kube.GatewaySync, "gs": kube.GatewaySync, "gatewaysync.stoker.io": kube.GatewaySync,
	"configsync": kube.ConfigSync, "configsyncs": kube.ConfigSync, "csync": kube.ConfigSync, "configsync.stoker.io": kube.ConfigSync,
}

// connectTo returns the target for the object that an argument names: NAME is a GatewaySync, configsync/NAME a ConfigSync.
func (c *cli) connectTo(arg string) (target, error) {
	p, err := c.connect()
	if err != nil {
		return p, err
	}
	prefix, name, found := strings.Cut(arg, "/")
	if !found {
		p.name = arg
		return p, nil
	}
	kind, known := kindsByPrefix[strings.ToLower(prefix)]
	if !known || name == "" {
		return p, exitErrorf(exitUsage, "%.80q is not the name of an object: use NAME for a GatewaySync, or configsync/NAME", arg)
	}
	p.kind, p.name = kind, name
	return p, nil
}

// argument returns the argument of a command that names the object.
func (p target) argument() string {
	if p.kind == kube.ConfigSync {
		return "configsync/" + p.name
	}
	return p.name
}

// object reads the object of p.
func (p target) object(ctx context.Context) (o v1alpha1.Requestable, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		o, err = p.setter().Get(ctx, p.namespace, p.name)
		return err
	})
	return o, p.explain(p.name, err)
}

// retry calls query until it succeeds, for at most queryTimeout. It retries only while the API server does not answer: in the
// first second of a Job the network may not be ready, and a restarting API server refuses connections for a few seconds. It does not
// retry on a terminal or for a command that only shows something: the user sees the error and decides.
func (p target) retry(ctx context.Context, query func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for n := 0; ; n++ {
		err := query(ctx)
		if err == nil || !p.retries || !unavailable(err) || !backoff.Wait(ctx, pollInterval(n)) {
			return err
		}
	}
}

// unavailable reports whether the API server did not answer, or answered that it is not able to, so that a retry may help.
func unavailable(err error) bool {
	_, noAnswer := errors.AsType[*url.Error](err)
	status := apierrors.APIStatus(nil)
	return (noAnswer || errors.As(err, &status)) && kube.Passing(err)
}

// get reads one GatewaySync. Its error is that of the API server; load explains it.
func (p target) get(ctx context.Context, name string) (gs *v1alpha1.GatewaySync, err error) {
	err = p.retry(ctx, func(ctx context.Context) (err error) {
		gs, err = kube.GatewaySyncs(p.Dynamic, p.namespace).Get(ctx, name)
		return err
	})
	return gs, err
}

// load reads one GatewaySync.
func (p target) load(ctx context.Context, name string) (*v1alpha1.GatewaySync, error) {
	gs, err := p.get(ctx, name)
	return gs, p.explain(name, err)
}

// loadGatewaySync connects to the cluster and reads one GatewaySync.
func (c *cli) loadGatewaySync(ctx context.Context, name string) (target, *v1alpha1.GatewaySync, error) {
	p, err := c.connect()
	if err != nil {
		return p, nil, err
	}
	gs, err := p.load(ctx, name)
	return p, gs, err
}

// explain adds to an error of the API server what the user can do about it. name is the object that was read or written.
func (p target) explain(name string, err error) error {
	answer, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case answered && apierrors.IsNotFound(err) && (answer.ErrStatus.Details == nil || answer.ErrStatus.Details.Name == ""): // the kind is not served
		return fmt.Errorf("the cluster does not serve %ss: install the chart or its custom resource definitions: %w", p.kind.Name, err)
	case errors.Is(err, request.ErrReplaced):
		return fmt.Errorf("%s %s in namespace %s: %w: run the command again", p.kind.Name, name, p.namespace, request.ErrReplaced)
	case apierrors.IsNotFound(err) && p.kind == kube.ConfigSync:
		return fmt.Errorf("there is no ConfigSync %s in namespace %s: list all with 'stoker config status', or choose a namespace with --namespace", name, p.namespace)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no GatewaySync %s in namespace %s: list all with 'stoker get -A', or choose a namespace with --namespace", name, p.namespace)
	case apierrors.IsForbidden(err) && p.namespace == "":
		return fmt.Errorf("%w\nThe ClusterRole stoker-view grants this right: bind it with a ClusterRoleBinding, or choose one namespace with --namespace", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w\nThe ClusterRole %s grants the rights of these commands: bind it in namespace %s", err, p.role, p.namespace)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server rejected the credentials: log in again, or choose another context with --context: %w", err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: %w", err)
	case unavailable(err):
		return fmt.Errorf("the API server does not answer: check the server of the kubeconfig and the network, then try again: %w", err)
	}
	return err
}

// explainWrite is explain for the error of a write, which may have succeeded.
func (p target) explainWrite(name string, err error) error {
	explained := p.explain(name, err)
	if unavailable(err) {
		return fmt.Errorf("%w\nThe API server may have accepted the request", explained)
	}
	return explained
}
