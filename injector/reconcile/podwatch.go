package reconcile

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/internal/kube"
)

// podWatch watches the pods of one namespace or of all.
type podWatch struct {
	namespace string // "" for all
	informer  cache.SharedIndexInformer
	forbidden atomic.Bool // set once the API server forbids listing
}

// watchPods returns a podWatch. It calls changed with each changed pod that asks for an agent or has one, and failed with each
// failed attempt.
func watchPods(client kube.Core, namespace string, changed func(*corev1.Pod), failed func(error)) (*podWatch, error) {
	w := &podWatch{namespace: namespace}
	living := func(o *metav1.ListOptions) {
		o.FieldSelector = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	}
	onError := func(err error) {
		failed(err)
		if apierrors.IsForbidden(err) {
			w.forbidden.Store(true)
		}
	}
	w.informer = cache.NewSharedIndexInformer(kube.ListWatch(client.CoreV1().Pods(namespace), living, onError), &corev1.Pod{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := w.informer.SetTransform(slim); err != nil {
		return nil, err
	}
	// ListWatch reports failed attempts already.
	if err := w.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return nil, err
	}
	notify := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok && isRelevant(p) {
			changed(p)
		}
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify, UpdateFunc: func(_, now any) { notify(now) },
	})
	return w, err
}

// served reports whether the first list is complete, or the API server forbids it in this namespace. Missing rights in one namespace
// must not stop the others.
func (w *podWatch) served() bool {
	return w.informer.HasSynced() || w.namespace != "" && w.forbidden.Load()
}

// hasSynced reports whether the pods and GatewaySyncs of a namespace are known.
func (u *Reconciler) hasSynced(namespace string) bool {
	if !u.Find.Seen(namespace) {
		return false
	}
	for _, w := range u.pods {
		if w.namespace == "" || w.namespace == namespace {
			return w.informer.HasSynced()
		}
	}
	return false
}
