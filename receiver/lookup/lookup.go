// Package lookup caches the GatewaySyncs that a receiver serves, so that a request never causes a lookup at the API server.
package lookup

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Lookup caches GatewaySyncs.
type Lookup struct {
	seen       *kube.Watched
	namespaces []string // the watched namespaces; empty for all
}

// Told holds the callbacks of a Lookup. They must not block.
type Told struct {
	// Changed is called for each served GatewaySync that was added or changed, Unreadable for each that cannot be decoded and
	// therefore not served.
	Changed    func(*v1alpha1.GatewaySync)
	Unreadable func(*kube.UndecodableError)
	// Failed is called when a watch fails.
	Failed func(error)
}

// New returns a Lookup for the GatewaySyncs that selector admits (nil for all) in namespaces (empty for all).
func New(client dynamic.Interface, namespaces []string, selector labels.Selector, told Told) (*Lookup, error) {
	l := &Lookup{namespaces: namespaces}
	var err error
	l.seen, err = kube.Watch(client, namespaces, selector, func(namespace, name string) {
		_, problem := l.seen.Get(namespace, name)
		if bad, ok := errors.AsType[*kube.UndecodableError](problem); ok {
			told.Unreadable(bad)
		}
		if gs := l.Get(namespace, name); gs != nil {
			told.Changed(gs)
		}
	}, told.Failed)
	return l, err
}

// Run watches until ctx is done.
func (l *Lookup) Run(ctx context.Context) error { return l.seen.Run(ctx) }

// Served reports whether the cache is complete, except for namespaces that the API server forbids to watch.
func (l *Lookup) Served() bool { return l.seen.Served() }

// Unseen reports whether a namespace is to be served but its content is not known.
func (l *Lookup) Unseen(namespace string) bool {
	return (len(l.namespaces) == 0 || slices.Contains(l.namespaces, namespace)) && !l.seen.Seen(namespace)
}

// Get returns a GatewaySync, or nil if it does not exist, cannot be decoded or has spec.webhook.enabled: false. Callers must
// not change it.
func (l *Lookup) Get(namespace, name string) *v1alpha1.GatewaySync {
	gs, err := l.seen.Get(namespace, name)
	if err != nil || gs == nil || !gs.Spec.Webhook.IsEnabled() {
		return nil
	}
	return gs
}

// List returns all served GatewaySyncs. Callers must not change them.
func (l *Lookup) List() []*v1alpha1.GatewaySync {
	return slices.DeleteFunc(l.seen.List(), func(gs *v1alpha1.GatewaySync) bool { return !gs.Spec.Webhook.IsEnabled() })
}
