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
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
)

// LookupTimeout limits the query to the API server. It must be well below the timeout of the admission webhook, which is at least
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
	// Selector selects GatewaySyncs by their labels; nil means all.
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

func (s Scope) selector() string {
	if s.Selector == nil {
		return ""
	}
	return s.Selector.String()
}

// Lookup caches the GatewaySyncs of a scope.
type Lookup struct {
	*kube.Watched[v1alpha1.GatewaySync]
	// Timeout limits the query; default LookupTimeout.
	Timeout time.Duration
	scope   Scope
	client  dynamic.Interface
	queries singleflight.Group
}

// New returns a Lookup. It calls changed, which may be nil, with namespace and name of each changed GatewaySync. changed must
// not block.
func New(client dynamic.Interface, scope Scope, changed func(namespace, name string), log *slog.Logger) (*Lookup, error) {
	seen, err := kube.Watch(client, kube.GatewaySyncs, scope.Watch, scope.Selector, changed, kube.LogFailures(log, "watching GatewaySyncs failed"))
	if err != nil {
		return nil, err
	}
	return &Lookup{Watched: seen, Timeout: LookupTimeout, scope: scope, client: client}, nil
}

// In returns the GatewaySyncs of a namespace. Callers must not change them.
func (l *Lookup) In(namespace string) inject.Candidates {
	return inject.Candidates{
		Readable:   slices.DeleteFunc(l.List(), func(gs *v1alpha1.GatewaySync) bool { return gs.Namespace != namespace }),
		Unreadable: slices.DeleteFunc(l.Undecodable(), func(bad *kube.UndecodableError) bool { return bad.Namespace != namespace }),
		Selector:   l.scope.selector(),
	}
}

// For returns the candidates for a pod of a namespace: the GatewaySync with this name, or all if name is "". If the cache has
// none, it queries the API server; concurrent callers share one query. An empty result is not an error.
func (l *Lookup) For(ctx context.Context, namespace, name string) (inject.Candidates, error) {
	if name == "" {
		if all := l.In(namespace); len(all.Readable)+len(all.Unreadable) > 0 {
			return all, nil
		}
		return l.query(ctx, namespace+"/", func(ctx context.Context) (all inject.Candidates, err error) {
			all.Selector = l.scope.selector()
			all.Readable, all.Unreadable, err = kube.GatewaySyncs(l.client, namespace).List(ctx, metav1.ListOptions{Limit: maxListed, LabelSelector: all.Selector})
			return all, err
		})
	}
	gs, err := l.Get(namespace, name)
	if !errors.Is(err, kube.ErrNotSeen) {
		return l.one(gs, err)
	}
	return l.query(ctx, namespace+"/"+name, func(ctx context.Context) (inject.Candidates, error) {
		return l.one(kube.GatewaySyncs(l.client, namespace).Get(ctx, name))
	})
}

// one returns what was read as the only candidate, unless the selector excludes it or it does not exist.
func (l *Lookup) one(gs *v1alpha1.GatewaySync, err error) (inject.Candidates, error) {
	found := inject.Candidates{Selector: l.scope.selector()}
	bad, undecodable := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
	case undecodable && l.scope.Selector != nil && !l.scope.Selector.Matches(labels.Set(bad.Object.GetLabels())):
	case undecodable:
		found.Unreadable = append(found.Unreadable, bad)
	case err != nil:
		return found, err
	case l.scope.Selector == nil || l.scope.Selector.Matches(labels.Set(gs.Labels)):
		found.Readable = append(found.Readable, gs)
	}
	return found, nil
}

func (l *Lookup) query(ctx context.Context, key string, question func(context.Context) (inject.Candidates, error)) (inject.Candidates, error) {
	answer := l.queries.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
		defer cancel()
		return question(ctx)
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return inject.Candidates{}, fmt.Errorf("read the GatewaySync from the API server: %w", r.Err)
		}
		return r.Val.(inject.Candidates), nil
	case <-ctx.Done():
		return inject.Candidates{}, ctx.Err()
	}
}
