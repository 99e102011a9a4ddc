// Package lookup knows the GatewaySyncs that a receiver serves, from memory: whoever sends, the API server is not asked who
// there is.
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

// Lookup knows GatewaySyncs.
type Lookup struct {
	seen       *kube.Watched
	namespaces []string // that are watched; none for all
}

// Told is what a Lookup tells. None of it may block.
type Told struct {
	// Changed is told of each that is served and came or changed, Unreadable of each that nobody can be served for.
	Changed    func(*v1alpha1.GatewaySync)
	Unreadable func(*kube.UndecodableError)
	// Failed is told when the API server cannot be watched.
	Failed func(error)
}

// New makes a Lookup of the namespaces (none for all), for the GatewaySyncs that selector admits (nil for all).
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

// Run watches until ctx ends.
func (l *Lookup) Run(ctx context.Context) error { return l.seen.Run(ctx) }

// Served reports whether there is nothing more to wait for: everything that there is was seen once, but for namespaces that may
// not be watched.
func (l *Lookup) Served() bool { return l.seen.Served() }

// Unseen reports whether a namespace is to be served and nobody knows what there is in it.
func (l *Lookup) Unseen(namespace string) bool {
	return (len(l.namespaces) == 0 || slices.Contains(l.namespaces, namespace)) && !l.seen.Seen(namespace)
}

// Get returns one that is served and can be read, or nil. It must not be changed. One that says webhook.enabled: false is
// not served.
func (l *Lookup) Get(namespace, name string) *v1alpha1.GatewaySync {
	gs, err := l.seen.Get(namespace, name)
	if err != nil || gs == nil || !gs.Spec.Webhook.IsEnabled() {
		return nil
	}
	return gs
}

// List returns all that are served. They must not be changed.
func (l *Lookup) List() []*v1alpha1.GatewaySync {
	return slices.DeleteFunc(l.seen.List(), func(gs *v1alpha1.GatewaySync) bool { return !gs.Spec.Webhook.IsEnabled() })
}
