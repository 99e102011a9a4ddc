package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	gosync "sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// targetWatch watches the SyncTarget of one GatewaySync. Its methods may be called from several goroutines.
type targetWatch struct {
	namespace, name string
	log             *slog.Logger
	now             func() time.Time
	onSyncTarget    func(*v1alpha1.SyncTarget, error) // see Config
	wake            func()                            // wakes the loop
	informer        *kube.Informer[v1alpha1.SyncTarget]

	calls          gosync.Mutex // serializes the calls of onSyncTarget
	mu             gosync.Mutex
	last           *v1alpha1.SyncTargetSpec // for which the loop was woken
	failures       int                      // in a row
	err            error                    // of the last failure
	forbiddenSince time.Time                // when watching began to be forbidden; zero if it is allowed
}

// newTargetWatch returns a targetWatch. It sends nothing yet.
func newTargetWatch(c *Config, wake func()) (*targetWatch, error) {
	w := &targetWatch{namespace: c.Namespace, name: c.GatewaySync, log: c.Log, now: c.Now, onSyncTarget: c.OnSyncTarget, wake: wake}
	var err error
	w.informer, err = kube.SyncTargets(c.API, c.Namespace).Informer(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", w.name).String()
	}, func(_, name string) { w.changed(name) })
	if err != nil {
		return nil, fmt.Errorf("watch the SyncTarget: %w", err)
	}
	return w, w.informer.OnWatchError(w.failed)
}

func (w *targetWatch) run(ctx context.Context) {
	var running gosync.WaitGroup
	running.Go(func() { w.informer.Run(ctx) })
	running.Go(func() { w.awaitList(ctx) })
	running.Wait()
}

// awaitList waits for the first list, which may be empty, and wakes the loop.
func (w *targetWatch) awaitList(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
		w.changed(w.name)
		w.wake()
	}
}

// listed reports whether the API server has answered.
func (w *targetWatch) listed() bool { return w.informer.HasSynced() }

// get returns the SyncTarget. If it does not exist, the error is kube.ErrNotSeen.
func (w *targetWatch) get() (*v1alpha1.SyncTarget, error) { return w.informer.Get(w.namespace, w.name) }

// changed is called by the informer. It wakes the loop, unless only the lock was renewed.
func (w *targetWatch) changed(name string) {
	w.calls.Lock()
	t, err := w.informer.Get(w.namespace, name)
	if errors.Is(err, kube.ErrNotSeen) {
		w.onSyncTarget(nil, nil)
	} else {
		w.onSyncTarget(t, err)
	}
	w.calls.Unlock()
	var target *v1alpha1.SyncTargetSpec
	if err == nil {
		target = t.Spec.DeepCopy()
		target.Lead = v1alpha1.LeadRecord{Transitions: t.Spec.Lead.Transitions}
	}
	w.mu.Lock()
	same := target != nil && w.last != nil && equality.Semantic.DeepEqual(target, w.last)
	w.last, w.failures, w.err, w.forbiddenSince = target, 0, nil, time.Time{}
	w.mu.Unlock()
	if !same {
		w.wake()
	}
}

// failed is called by the informer, which retries by itself. An orderly end of the watch is not a failure.
func (w *targetWatch) failed(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	w.mu.Lock()
	w.failures++
	w.err = err
	n := w.failures
	if !apierrors.IsForbidden(err) {
		w.forbiddenSince = time.Time{}
	} else if w.forbiddenSince.IsZero() {
		w.forbiddenSince = w.now()
	}
	w.mu.Unlock()
	if n == 1 {
		w.wake() // to report the error
	}
	if n == 1 || n%20 == 0 {
		w.log.Warn("the SyncTarget cannot be watched", "error", err, "failures", n)
	}
}

// bindTimeout is how long an agent waits for its rights, which the injector grants when it sees the pod.
const bindTimeout = 2 * time.Minute

// unanswered returns why the API server has not answered, if known, and whether an operator must act.
func (w *targetWatch) unanswered() (h decide.Hold, operator bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err == nil:
		return waiting("the API server has not answered yet; the gateway stays as it is"), false
	case !w.forbiddenSince.IsZero():
		return waiting("the agent may not read its SyncTarget, the gateway stays as it is: bind the ClusterRole stoker-agent to the pod's ServiceAccount: %v", w.err),
			w.now().Sub(w.forbiddenSince) >= bindTimeout
	}
	return waiting("the SyncTarget cannot be read, the gateway stays as it is: %v", w.err), false
}
