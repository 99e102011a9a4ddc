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
)

// Namespaces returns the namespaces to watch: each of listed once, or "" for all if the list is empty.
func Namespaces(listed []string) []string {
	if len(listed) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return slices.Compact(slices.Sorted(slices.Values(listed)))
}

// Watched caches the objects of one kind in some namespaces.
type Watched[T any] struct {
	informers map[string]*Informer[T] // by namespace; "" for all
	forbidden map[string]*atomic.Bool // set once the API server forbids listing
}

// Watch makes informers for the objects of a kind, such as GatewaySyncs, that selector admits (nil for all) in namespaces (empty for all).
// changed is called as by Objects.Informer and failed as by Informer.OnWatchError; both may be nil.
func Watch[T any](client dynamic.Interface, kind func(dynamic.Interface, string) *Objects[T], namespaces []string, selector labels.Selector, changed func(namespace, name string), failed func(error)) (*Watched[T], error) {
	w := &Watched[T]{informers: map[string]*Informer[T]{}, forbidden: map[string]*atomic.Bool{}}
	tweak := func(o *metav1.ListOptions) {
		if selector != nil {
			o.LabelSelector = selector.String()
		}
	}
	for _, namespace := range Namespaces(namespaces) {
		in, err := kind(client, namespace).Informer(tweak, changed)
		if err != nil {
			return nil, err
		}
		refused := &atomic.Bool{}
		if err := in.OnWatchError(func(err error) {
			if failed != nil {
				failed(err) // first, so that the log has the reason before Listed stops waiting
			}
			if apierrors.IsForbidden(err) {
				refused.Store(true)
			}
		}); err != nil {
			return nil, err
		}
		w.informers[namespace], w.forbidden[namespace] = in, refused
	}
	return w, nil
}

// Run watches until ctx is done. The error is always nil.
func (w *Watched[T]) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, in := range w.informers {
		all.Go(func() { in.Run(ctx) })
	}
	all.Wait()
	return nil
}

// HasSynced reports whether the first list of every namespace is complete.
func (w *Watched[T]) HasSynced() bool {
	for _, in := range w.informers {
		if !in.HasSynced() {
			return false
		}
	}
	return true
}

// Listed reports whether there is nothing more to wait for: the first list is complete in every namespace that the API server
// allows us to list, and there is at least one such namespace. Missing rights in one namespace must not stop what serves the
// others.
func (w *Watched[T]) Listed() bool {
	served := 0
	for namespace, in := range w.informers {
		switch {
		case in.HasSynced():
			served++
		case !w.forbidden[namespace].Load():
			return false
		}
	}
	return served > 0
}

// Seen reports whether the first list of a namespace is complete.
func (w *Watched[T]) Seen(namespace string) bool {
	in := w.informer(namespace)
	return in != nil && in.HasSynced()
}

// informer returns the informer that covers a namespace, or nil.
func (w *Watched[T]) informer(namespace string) *Informer[T] {
	if in := w.informers[namespace]; in != nil {
		return in
	}
	return w.informers[metav1.NamespaceAll]
}

// Get returns the last seen version of an object. Callers must not change it. The error is ErrNotSeen or an
// *UndecodableError.
func (w *Watched[T]) Get(namespace, name string) (*T, error) {
	if in := w.informer(namespace); in != nil {
		return in.Get(namespace, name)
	}
	return nil, ErrNotSeen
}

// List returns all objects that could be decoded. Callers must not change them.
func (w *Watched[T]) List() []*T {
	var list []*T
	for _, in := range w.informers {
		list = append(list, in.List()...)
	}
	return list
}

// Undecodable returns the errors of the objects that could not be decoded.
func (w *Watched[T]) Undecodable() []*UndecodableError {
	var list []*UndecodableError
	for _, in := range w.informers {
		list = append(list, in.Undecodable()...)
	}
	return list
}
