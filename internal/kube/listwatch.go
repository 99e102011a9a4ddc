package kube

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// lister is a client of one kind.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// maxResumeTime is the longest time that resuming a watch may take. If it takes longer, client-go has retried.
const maxResumeTime = 5 * time.Second

// ListWatch returns the list and watch functions of an informer for the objects that selectors admit (nil for all). It calls
// onError, unless it is nil, with each failed attempt. If the API server did not answer, or a proxy answered for it, ListWatch
// retries with growing pauses.
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
