package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Informer watches objects of one kind and caches them. An object that cannot be decoded does not affect the others: see
// Undecodable.
type Informer[T any] struct {
	shared cache.SharedIndexInformer
	reg    cache.ResourceEventHandlerRegistration
	// onWatchError receives the errors of lists and watches.
	onWatchError func(error)
}

// item is an entry of the informer's store: the object, or the reason why it cannot be decoded.
type item[T any] struct {
	metav1.ObjectMeta
	metav1.TypeMeta
	object *T
	err    error
}

// DeepCopyObject implements runtime.Object. A shallow copy suffices because stored items never change.
func (i *item[T]) DeepCopyObject() runtime.Object { c := *i; return &c }

// Informer returns an informer for the objects that selectors admit (nil for all). It calls changed (nil for none) with the namespace and name
// of each object that was added, changed or deleted and, after each relist, of every object. The calls are sequential. changed must
// not block.
func (o *Objects[T]) Informer(selectors func(*metav1.ListOptions), changed func(namespace, name string)) (*Informer[T], error) {
	in := &Informer[T]{onWatchError: func(error) {}}
	shared := cache.NewSharedIndexInformer(ListWatch(o.client, selectors, func(err error) { in.onWatchError(err) }),
		&unstructured.Unstructured{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := shared.SetTransform(o.transform); err != nil {
		return nil, err
	}
	in.shared = shared
	if changed != nil {
		notify := func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
					changed(namespace, name)
				}
			}
		}
		reg, err := shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, now any) { notify(now) },
		})
		if err != nil {
			return nil, err
		}
		in.reg = reg
	}
	return in, nil
}

// transform decodes an incoming object. It returns its own results unchanged, because client-go may call it again with them.
func (o *Objects[T]) transform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	u.SetManagedFields(nil)
	t, err := o.decode(u)
	if err == nil && o.trim != nil {
		o.trim(t)
	}
	i := &item[T]{object: t, err: err}
	i.Namespace, i.Name, i.UID = u.GetNamespace(), u.GetName(), u.GetUID()
	i.ResourceVersion, i.Labels = u.GetResourceVersion(), u.GetLabels()
	return i, nil
}

// OnWatchError calls f, instead of client-go's logger, when an attempt to list or watch fails. The informer retries both with
// growing pauses. OnWatchError must be called before Run.
func (in *Informer[T]) OnWatchError(f func(error)) error {
	// ListWatch reports the errors to onWatchError. This handler only replaces client-go's logger.
	if err := in.shared.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return err
	}
	in.onWatchError = f
	return nil
}

// Run watches until ctx is done.
func (in *Informer[T]) Run(ctx context.Context) { in.shared.RunWithContext(ctx) }

// HasSynced reports whether the first list is complete and changed was called for all of its objects.
func (in *Informer[T]) HasSynced() bool {
	return in.shared.HasSynced() && (in.reg == nil || in.reg.HasSynced())
}

// ErrNotSeen means that the informer does not hold the object.
var ErrNotSeen = errors.New("no such object was seen")

// Get returns the last seen version of an object. Callers must not change it. The error is ErrNotSeen or an *UndecodableError.
func (in *Informer[T]) Get(namespace, name string) (*T, error) {
	obj, ok, err := in.shared.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
	if err != nil {
		return nil, err
	}
	i, isItem := obj.(*item[T])
	if !ok || !isItem {
		return nil, ErrNotSeen
	}
	return i.object, i.err
}

// List returns all objects that could be decoded. Callers must not change them.
func (in *Informer[T]) List() []*T {
	var list []*T
	for _, obj := range in.shared.GetStore().List() {
		if i, ok := obj.(*item[T]); ok && i.err == nil {
			list = append(list, i.object)
		}
	}
	return list
}

// Undecodable returns the errors of the objects that could not be decoded.
func (in *Informer[T]) Undecodable() []*UndecodableError {
	var list []*UndecodableError
	for _, obj := range in.shared.GetStore().List() {
		i, ok := obj.(*item[T])
		if !ok {
			continue
		}
		if bad, ok := errors.AsType[*UndecodableError](i.err); ok {
			list = append(list, bad)
		}
	}
	return list
}

// logInterval is how often a failure with the same text is logged. maxFailures is how many texts are remembered.
const logInterval, maxFailures = 10 * time.Minute, 64

// LogFailures returns a callback for OnWatchError and ListWatch. It logs a failure with the same text at most once per
// logInterval. It ignores an expired watch, after which the informer lists again.
func LogFailures(log *slog.Logger, what string) func(error) {
	var mu sync.Mutex
	logged := map[string]time.Time{}
	return func(err error) {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		text, now := err.Error(), time.Now()
		if last, ok := logged[text]; ok && now.Sub(last) < logInterval {
			return
		}
		if len(logged) >= maxFailures {
			clear(logged)
		}
		logged[text] = now
		log.Warn(what, "error", err)
	}
}

// lister is a client of one kind.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// maxResumeTime is the longest time that resuming a watch may take. If it takes longer, client-go has retried.
const maxResumeTime = 5 * time.Second

// ListWatch returns the list and watch functions of an informer for the objects that selectors admit (nil for all). It calls
// onError, unless it is nil, with each failed attempt. If the API server did not answer a list, was busy, or a proxy answered for it,
// ListWatch retries the list with growing pauses.
//
// If a watch cannot be resumed within maxResumeTime, ListWatch does not resume it: it returns an error that
// apierrors.IsResourceExpired, and the informer lists all objects again. During an outage, the store of the API server may
// have been restored from a backup. It would then send nothing, for hours or days, to a client that knows a later version. A
// watch that follows such a list may take any time, so that an overloaded API server does not have to serve list after list.
//
// No list asks for a minimum version. The first list may come from the API server's cache; all others read the current state of
// the store. client-go would ask for the last seen version or a newer one, and retry for most of a minute if the API server does
// not have it yet.
func ListWatch[L runtime.Object](client lister[L], selectors func(*metav1.ListOptions), onError func(error)) *cache.ListWatch {
	choose := func(o *metav1.ListOptions) {
		if selectors != nil {
			selectors(o)
		}
	}
	failed := func(err error) {
		if err != nil && onError != nil {
			onError(err)
		}
	}
	var relist atomic.Bool // the informer must list again, and no watch has been opened since
	list := func(o *metav1.ListOptions) {
		choose(o)
		if o.ResourceVersion != "0" {
			o.ResourceVersion = ""
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list(&o)
			return retry(ctx, failed, func() (runtime.Object, error) { return client.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			begin := func() (watch.Interface, error) { return client.Watch(ctx, o) }
			if o.SendInitialEvents != nil { // a streaming list
				list(&o)
				w, err := retry(ctx, failed, begin)
				if err == nil {
					relist.Store(false)
				}
				return w, err
			}
			choose(&o)
			began := time.Now()
			w, err := begin()
			failed(err)
			switch took := time.Since(began); {
			case err == nil && (took <= maxResumeTime || relist.Load()):
				relist.Store(false)
				return w, nil
			// An answer ends the attempt. A first 429 does not: the watch may start too late, so list first.
			case ctx.Err() != nil, isAnswer(err) && (!apierrors.IsTooManyRequests(err) || relist.Load()):
				return w, err
			case err == nil:
				w.Stop()
				err = fmt.Errorf("resuming it took %s", took.Round(time.Second))
			}
			err = apierrors.NewResourceExpired(fmt.Sprintf("the watch was interrupted, listing all objects again: %v", err))
			failed(err)
			relist.Store(true)
			return nil, err
		},
	}
}
