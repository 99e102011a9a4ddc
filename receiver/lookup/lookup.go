// Package lookup caches the GatewaySyncs and ConfigSyncs that a receiver serves, so that authentication never queries the API server.
package lookup

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Lookup caches GatewaySyncs and ConfigSyncs.
type Lookup struct {
	gateways   *kube.Watched[v1alpha1.GatewaySync]
	configs    *kube.Watched[v1alpha1.ConfigSync]
	namespaces []string // the watched namespaces; empty for all
}

// Callbacks are the callbacks of a Lookup. They must not block.
type Callbacks struct {
	// Changed is called for each object with an enabled webhook that was added or changed, and after a relist for all of them. Unreadable is
	// called in the same way for each object that cannot be decoded; such an object has no webhook.
	Changed    func(v1alpha1.Requestable)
	Unreadable func(*kube.UndecodableError)
	// Failed is called when a list or a watch fails.
	Failed func(error)
}

// New returns a Lookup for the objects that selector admits (nil for all) in namespaces (empty for all).
func New(client dynamic.Interface, namespaces []string, selector labels.Selector, callbacks Callbacks) (*Lookup, error) {
	l := &Lookup{namespaces: namespaces}
	changed := func(kind kube.Kind) func(namespace, name string) {
		return func(namespace, name string) {
			o, problem := l.cached(kind, namespace, name)
			if bad, ok := errors.AsType[*kube.UndecodableError](problem); ok {
				callbacks.Unreadable(bad)
			}
			if problem == nil && o.WebhookSpec().IsEnabled() {
				callbacks.Changed(o)
			}
		}
	}
	var err error
	if l.gateways, err = kube.Watch(client, kube.GatewaySyncs, namespaces, selector, changed(kube.GatewaySync), callbacks.Failed); err != nil {
		return nil, err
	}
	l.configs, err = kube.Watch(client, kube.ConfigSyncs, namespaces, selector, changed(kube.ConfigSync), callbacks.Failed)
	return l, err
}

// cached returns an object from the cache.
func (l *Lookup) cached(kind kube.Kind, namespace, name string) (v1alpha1.Requestable, error) {
	if kind == kube.ConfigSync {
		return l.configs.Get(namespace, name)
	}
	return l.gateways.Get(namespace, name)
}

// Run watches until ctx is done.
func (l *Lookup) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.gateways.Run(ctx) })
	g.Go(func() error { return l.configs.Run(ctx) })
	return g.Wait()
}

// Listed reports whether the first lists of all namespaces are cached. Namespaces that the API server forbids to list do not count.
func (l *Lookup) Listed() bool { return l.gateways.Listed() && l.configs.Listed() }

// NotSynced reports whether a namespace is watched, but its objects of this kind are not cached yet.
func (l *Lookup) NotSynced(kind kube.Kind, namespace string) bool {
	seen := l.gateways.Seen
	if kind == kube.ConfigSync {
		seen = l.configs.Seen
	}
	return (len(l.namespaces) == 0 || slices.Contains(l.namespaces, namespace)) && !seen(namespace)
}

// Get returns an object, or nil if it does not exist, cannot be decoded or has spec.webhook.enabled: false. Callers must
// not change it.
func (l *Lookup) Get(kind kube.Kind, namespace, name string) v1alpha1.Requestable {
	o, err := l.cached(kind, namespace, name)
	if err != nil || !o.WebhookSpec().IsEnabled() {
		return nil
	}
	return o
}

// List returns all served objects. Callers must not change them.
func (l *Lookup) List() (list []v1alpha1.Requestable) {
	for _, gs := range l.gateways.List() {
		list = append(list, gs)
	}
	for _, cs := range l.configs.List() {
		list = append(list, cs)
	}
	return slices.DeleteFunc(list, func(o v1alpha1.Requestable) bool { return !o.WebhookSpec().IsEnabled() })
}
