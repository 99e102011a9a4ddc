package kube

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
)

// Namespaces are what to watch for who serves those that are listed: each once, or "", which stands for all, where none is.
func Namespaces(listed []string) []string {
	if len(listed) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return slices.Compact(slices.Sorted(slices.Values(listed)))
}

// Watched are the GatewaySyncs of some namespaces, from memory.
type Watched struct {
	informers map[string]*Informer[v1alpha1.GatewaySync] // by namespace; "" for all
	refused   map[string]*atomic.Bool                    // the API server does not let them be listed
}

// Watch makes informers for the GatewaySyncs that selector admits (nil for all) in namespaces (none for all). changed may be
// nil, and is called as by Objects.Informer; failed, where it is not nil, as by Informer.OnWatchError.
func Watch(client dynamic.Interface, namespaces []string, selector labels.Selector, changed func(namespace, name string), failed func(error)) (*Watched, error) {
	w := &Watched{informers: map[string]*Informer[v1alpha1.GatewaySync]{}, refused: map[string]*atomic.Bool{}}
	choose := func(o *metav1.ListOptions) {
		if selector != nil {
			o.LabelSelector = selector.String()
		}
	}
	for _, namespace := range Namespaces(namespaces) {
		in, err := GatewaySyncs(client, namespace).Informer(choose, changed)
		if err != nil {
			return nil, err
		}
		refused := &atomic.Bool{}
		if err := in.OnWatchError(func(err error) {
			if failed != nil {
				failed(err) // before Served counts it: what is not served is in the log by then
			}
			if apierrors.IsForbidden(err) {
				refused.Store(true)
			}
		}); err != nil {
			return nil, err
		}
		w.informers[namespace], w.refused[namespace] = in, refused
	}
	return w, nil
}

// Run watches until ctx ends. The error is always nil.
func (w *Watched) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, in := range w.informers {
		all.Go(func() { in.Run(ctx) })
	}
	all.Wait()
	return nil
}

// HasSynced reports whether everything that there is was seen once.
func (w *Watched) HasSynced() bool {
	for _, in := range w.informers {
		if !in.HasSynced() {
			return false
		}
	}
	return true
}

// Served reports whether there is nothing more to wait for: everything was seen once, but for namespaces that the API server
// does not let us list, and that is not all of them. A namespace whose rights are missing must not stop what serves the others.
func (w *Watched) Served() bool {
	served := 0
	for namespace, in := range w.informers {
		switch {
		case in.HasSynced():
			served++
		case !w.refused[namespace].Load():
			return false
		}
	}
	return served > 0
}

// Seen reports whether what there is in a namespace was seen once.
func (w *Watched) Seen(namespace string) bool {
	for _, watched := range []string{namespace, metav1.NamespaceAll} {
		if in := w.informers[watched]; in != nil {
			return in.HasSynced()
		}
	}
	return false
}

// Get returns one that was seen. It must not be changed. The error is ErrNotSeen or an *UndecodableError.
func (w *Watched) Get(namespace, name string) (*v1alpha1.GatewaySync, error) {
	for _, watched := range []string{namespace, metav1.NamespaceAll} {
		if in := w.informers[watched]; in != nil {
			return in.Get(namespace, name)
		}
	}
	return nil, ErrNotSeen
}

// List returns all that were seen and can be read. They must not be changed.
func (w *Watched) List() []*v1alpha1.GatewaySync {
	var list []*v1alpha1.GatewaySync
	for _, in := range w.informers {
		list = append(list, in.List()...)
	}
	return list
}

// Undecodable returns what was seen and cannot be read.
func (w *Watched) Undecodable() []*UndecodableError {
	var list []*UndecodableError
	for _, in := range w.informers {
		list = append(list, in.Undecodable()...)
	}
	return list
}
