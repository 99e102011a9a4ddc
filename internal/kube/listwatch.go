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

// atOnce is how long it takes at most to go on with a watch. Where it takes longer, client-go has tried more than once.
const atOnce = 5 * time.Second

// ListWatch is what an informer lists and watches by what selectors admit (nil for all). Each try that fails is told, where
// told is not nil, and one that the API server has not answered, or not for itself, is made again with growing pauses.
//
// A watch that cannot be gone on with at once is not gone on with at all: everything is listed anew, which is told by an error
// that apierrors.IsResourceExpired. While the API server was away its store may have gone back to a backup, and it would say
// nothing then, for hours or days, to who knows a later version. A watch that follows such a list counts however long it
// takes: an API server that has too much to do is not asked for a list over and over.
//
// No list asks for a version: it is the first, for which the API server's memory is good enough, or it is of what the store has
// now. client-go would ask for what was seen or newer, and an API server that has not come that far says try again, which
// client-go does for most of a minute.
func ListWatch[L runtime.Object](client lister[L], selectors func(*metav1.ListOptions), told func(error)) *cache.ListWatch {
	choose := func(o *metav1.ListOptions) {
		if selectors != nil {
			selectors(o)
		}
	}
	failed := func(err error) {
		if err != nil && told != nil {
			told(err)
		}
	}
	var anew atomic.Bool // it was listed anew, and no watch has been opened since
	list := func(o *metav1.ListOptions) {
		choose(o)
		if o.ResourceVersion != "0" {
			o.ResourceVersion = ""
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list(&o)
			return patiently(ctx, failed, func() (runtime.Object, error) { return client.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			begin := func() (watch.Interface, error) { return client.Watch(ctx, o) }
			if o.SendInitialEvents != nil { // it is a list
				list(&o)
				w, err := patiently(ctx, failed, begin)
				if err == nil {
					anew.Store(false)
				}
				return w, err
			}
			choose(&o)
			began := time.Now()
			w, err := begin()
			failed(err)
			switch took := time.Since(began); {
			case err == nil && (took <= atOnce || anew.Load()):
				anew.Store(false)
				return w, nil
			case ctx.Err() != nil, answered(err) && (!apierrors.IsTooManyRequests(err) || anew.Load()):
				return w, err
			case err == nil:
				w.Stop()
				err = fmt.Errorf("it took %s", took.Round(time.Second))
			}
			err = apierrors.NewResourceExpired(fmt.Sprintf("the watch was interrupted, all of it is listed anew: %v", err))
			failed(err)
			anew.Store(true)
			return nil, err
		},
	}
}
