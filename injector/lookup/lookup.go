// Package lookup finds GatewaySyncs for the injector. It uses a cache, and queries the API server once if the GatewaySync of a
// pod is not in it.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// LookupTimeout limits the query to the API server. It must be well below the timeout of the admission webhook, at least
// 2 s (chart value webhook.timeoutSeconds).
const LookupTimeout = time.Second

// maxListed bounds a list from the API server: more than one GatewaySync is ambiguous anyway.
const maxListed = 8

// Scope is the part of the cluster that an injector serves.
type Scope struct {
	// Own is the injector's own namespace.
	Own string
	// Watch lists the namespaces to serve; empty means all.
	Watch []string
	// Selector selects GatewaySyncs by their labels.
	Selector labels.Selector
}

// systemNamespaces are the namespaces of the control plane, where injection could break the cluster.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}

// Excluded returns why pods of a namespace get no agent, or "" if they may get one.
func (s Scope) Excluded(namespace string) string {
	switch {
	case namespace == "":
		return "the pod has no namespace"
	case namespace == s.Own:
		return "namespace " + namespace + " belongs to the injector: run gateways in another namespace"
	case slices.Contains(systemNamespaces, namespace):
		return "namespace " + namespace + " belongs to Kubernetes: run gateways in another namespace"
	case len(s.Watch) > 0 && !slices.Contains(s.Watch, namespace):
		return "the injector does not watch namespace " + namespace + ": add it to watchNamespaces"
	}
	return ""
}

// Namespaces returns the namespaces to watch, or "" for all.
func (s Scope) Namespaces() []string { return kube.Namespaces(s.Watch) }

func (s Scope) admits(gs *v1alpha1.GatewaySync) bool {
	return s.Selector == nil || s.Selector.Matches(labels.Set(gs.Labels))
}

// Lookup caches the GatewaySyncs of a scope.
type Lookup struct {
	*kube.Watched
	// Timeout limits the query. It is LookupTimeout, except in tests on a busy machine.
	Timeout time.Duration
	scope   Scope
	client  dynamic.Interface
	queries singleflight.Group
}

// New returns a Lookup. It calls changed, which may be nil, with namespace and name of each changed GatewaySync. changed must
// not block.
func New(client dynamic.Interface, scope Scope, changed func(namespace, name string), log *slog.Logger) (*Lookup, error) {
	seen, err := kube.Watch(client, scope.Watch, scope.Selector, changed, kube.LogFailures(log, "watching GatewaySyncs failed"))
	if err != nil {
		return nil, err
	}
	return &Lookup{Watched: seen, Timeout: LookupTimeout, scope: scope, client: client}, nil
}

// In returns the GatewaySyncs of a namespace. Callers must not change them.
func (l *Lookup) In(namespace string) []*v1alpha1.GatewaySync {
	list := l.List()
	return slices.DeleteFunc(list, func(gs *v1alpha1.GatewaySync) bool { return gs.Namespace != namespace })
}

// Has reports whether a namespace has a GatewaySync, including one that cannot be decoded.
func (l *Lookup) Has(namespace string) bool {
	return len(l.In(namespace)) > 0 || slices.ContainsFunc(l.Undecodable(), func(bad *kube.UndecodableError) bool { return bad.Namespace == namespace })
}

// For returns the candidates for a pod of a namespace: the GatewaySync with this name, or all if name is "". If the cache has
// none, it queries the API server; concurrent callers share one query. An empty result is not an error.
func (l *Lookup) For(ctx context.Context, namespace, name string) ([]*v1alpha1.GatewaySync, error) {
	if name == "" {
		if list := l.In(namespace); len(list) > 0 {
			return list, nil
		}
		return l.query(ctx, namespace+"/", func(ctx context.Context) ([]*v1alpha1.GatewaySync, error) {
			return l.list(ctx, namespace)
		})
	}
	gs, err := l.Get(namespace, name)
	if err == nil {
		return []*v1alpha1.GatewaySync{gs}, nil
	}
	if !errors.Is(err, kube.ErrNotSeen) {
		return nil, err
	}
	return l.query(ctx, namespace+"/"+name, func(ctx context.Context) ([]*v1alpha1.GatewaySync, error) {
		gs, err := kube.GatewaySyncs(l.client, namespace).Get(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, err
		case !l.scope.admits(gs):
			return nil, nil
		}
		return []*v1alpha1.GatewaySync{gs}, nil
	})
}

func (l *Lookup) list(ctx context.Context, namespace string) ([]*v1alpha1.GatewaySync, error) {
	opts := metav1.ListOptions{Limit: maxListed}
	if l.scope.Selector != nil {
		opts.LabelSelector = l.scope.Selector.String()
	}
	list, undecodable, err := kube.GatewaySyncs(l.client, namespace).List(ctx, opts)
	if err == nil && len(list) == 0 && len(undecodable) > 0 {
		err = undecodable[0]
	}
	return list, err
}

func (l *Lookup) query(ctx context.Context, key string, question func(context.Context) ([]*v1alpha1.GatewaySync, error)) ([]*v1alpha1.GatewaySync, error) {
	answer := l.queries.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
		defer cancel()
		return question(ctx)
	})
	select {
	case r := <-answer:
		list, _ := r.Val.([]*v1alpha1.GatewaySync)
		if r.Err != nil {
			return nil, fmt.Errorf("read the GatewaySync from the API server: %w", r.Err)
		}
		return list, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
