// Package lookup finds GatewaySyncs for the rest of the injector: from memory, and where a pod's is not there, by one
// question to the API server.
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

// AskWithin bounds the one question; the API server itself waits two seconds for the whole review.
const AskWithin = time.Second

// maxAsked is how many GatewaySyncs a live list reads: more than one is ambiguous already.
const maxAsked = 8

// Scope is which part of the cluster an injector serves.
type Scope struct {
	// Own is the injector's own namespace.
	Own string
	// Watch are the namespaces that it serves; none stands for all.
	Watch []string
	// Selector admits GatewaySyncs by their labels.
	Selector labels.Selector
}

// system are namespaces that no gateway belongs into, and that a cluster cannot do without.
var system = []string{metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease"}

// Excluded says why pods of a namespace get no agent; empty where they may.
func (s Scope) Excluded(namespace string) string {
	switch {
	case namespace == "":
		return "the pod has no namespace"
	case namespace == s.Own:
		return "namespace " + namespace + " is the injector's own: put gateways into another one"
	case slices.Contains(system, namespace):
		return "namespace " + namespace + " is Kubernetes' own: put gateways into another one"
	case len(s.Watch) > 0 && !slices.Contains(s.Watch, namespace):
		return "the injector does not watch namespace " + namespace + ": add it to watchNamespaces"
	}
	return ""
}

// Namespaces are what to watch: those that are listed, or "" for all.
func (s Scope) Namespaces() []string { return kube.Namespaces(s.Watch) }

func (s Scope) admits(gs *v1alpha1.GatewaySync) bool {
	return s.Selector == nil || s.Selector.Matches(labels.Set(gs.Labels))
}

// Lookup knows the GatewaySyncs of a scope.
type Lookup struct {
	*kube.Watched
	// Within bounds the one question: AskWithin, but in tests of a machine that has more to do.
	Within time.Duration
	scope  Scope
	client dynamic.Interface
	asking singleflight.Group
}

// New makes a Lookup. changed, which may be nil, is called with namespace and name of what changed; it must not block.
func New(client dynamic.Interface, scope Scope, changed func(namespace, name string), log *slog.Logger) (*Lookup, error) {
	seen, err := kube.Watch(client, scope.Watch, scope.Selector, changed, kube.LogFailures(log, "GatewaySyncs cannot be watched; what was seen last counts"))
	if err != nil {
		return nil, err
	}
	return &Lookup{Watched: seen, Within: AskWithin, scope: scope, client: client}, nil
}

// In returns those of one namespace. They must not be changed.
func (l *Lookup) In(namespace string) []*v1alpha1.GatewaySync {
	list := l.List()
	return slices.DeleteFunc(list, func(gs *v1alpha1.GatewaySync) bool { return gs.Namespace != namespace })
}

// Has reports whether there is one in a namespace, also one that cannot be read.
func (l *Lookup) Has(namespace string) bool {
	return len(l.In(namespace)) > 0 || slices.ContainsFunc(l.Undecodable(), func(bad *kube.UndecodableError) bool { return bad.Namespace == namespace })
}

// For returns the GatewaySyncs among which a pod of a namespace finds its own: the one that it names, or all of them. What
// is not in memory is asked for, by one request for all who ask at the same time. None is no error.
func (l *Lookup) For(ctx context.Context, namespace, name string) ([]*v1alpha1.GatewaySync, error) {
	if name == "" {
		if list := l.In(namespace); len(list) > 0 {
			return list, nil
		}
		return l.ask(ctx, namespace+"/", func(ctx context.Context) ([]*v1alpha1.GatewaySync, error) {
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
	return l.ask(ctx, namespace+"/"+name, func(ctx context.Context) ([]*v1alpha1.GatewaySync, error) {
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
	opts := metav1.ListOptions{Limit: maxAsked}
	if l.scope.Selector != nil {
		opts.LabelSelector = l.scope.Selector.String()
	}
	list, undecodable, err := kube.GatewaySyncs(l.client, namespace).List(ctx, opts)
	if err == nil && len(list) == 0 && len(undecodable) > 0 {
		err = undecodable[0]
	}
	return list, err
}

func (l *Lookup) ask(ctx context.Context, key string, question func(context.Context) ([]*v1alpha1.GatewaySync, error)) ([]*v1alpha1.GatewaySync, error) {
	answer := l.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Within)
		defer cancel()
		return question(ctx)
	})
	select {
	case r := <-answer:
		list, _ := r.Val.([]*v1alpha1.GatewaySync)
		if r.Err != nil {
			return nil, fmt.Errorf("ask the API server for the GatewaySync: %w", r.Err)
		}
		return list, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
