package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	// annotationEvicted of the Lease records the evictions whose successors have not started.
	annotationEvicted = "stoker.io/evicted"
	// remembered is how long a successor is expected. Then the owner is assumed to be gone or scaled down on purpose, and no
	// pod from that time is still young enough to be evicted.
	remembered = time.Hour
	// maxEvicted bounds the records, so that the annotation does not exceed the limit of an object.
	maxEvicted = 500
	// loadEvery is the pause between attempts to read the records.
	loadEvery = time.Second
)

var (
	errDeposed = errors.New("another replica holds the Lease")
	errFull    = fmt.Errorf("no more pods are evicted until the successors of %d evicted pods have started", maxEvicted)
)

// Lock identifies the Lease of the replica that runs the reconciler.
type Lock struct{ Namespace, Name, Holder string }

// eviction is one whose successor has not started yet.
type eviction struct {
	Namespace   string    `json:"namespace"`
	GatewaySync string    `json:"gatewaySync"`
	Pod         string    `json:"pod"`
	UID         types.UID `json:"uid"`
	Owner       types.UID `json:"owner"`
	// By is the owner's kind and name, for messages.
	By string `json:"by"`
	// Deployment is the name of the owner's Deployment, or "".
	Deployment string `json:"deployment,omitempty"`
	// Newest is when the youngest pod of the owner, or of its Deployment, was created. Successors are younger.
	Newest metav1.Time `json:"newest"`
	At     metav1.Time `json:"at"`
	// Came means that a successor existed but did not start.
	Came bool `json:"came,omitempty"`
}

// ledger records evictions, at most one for each GatewaySync, before they happen. It stores them in the Lease: the next replica
// reads them, and a replica that lost the Lease can no longer write.
type ledger struct {
	client kubernetes.Interface
	lock   Lock
	now    func() time.Time

	mu      sync.Mutex
	evicted map[types.UID]eviction // by GatewaySync
}

// load reads the records of the previous replica. It retries until it succeeds or ctx is done.
func (l *ledger) load(ctx context.Context, log *slog.Logger) {
	_ = wait.PollUntilContextCancel(ctx, loadEvery, true, func(ctx context.Context) (bool, error) {
		lease, err := l.client.CoordinationV1().Leases(l.lock.Namespace).Get(ctx, l.lock.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			log.Warn("reading the Lease failed", "error", err)
			return false, nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.evicted = map[types.UID]eviction{}
		if err == nil && lease.Annotations[annotationEvicted] != "" {
			if err := json.Unmarshal([]byte(lease.Annotations[annotationEvicted]), &l.evicted); err != nil {
				log.Error("dropping invalid eviction records", "annotation", annotationEvicted, "error", err)
				l.evicted = map[types.UID]eviction{}
			}
		}
		return true, nil
	}) // the caller checks ctx
}

// of returns the recorded eviction of a GatewaySync.
func (l *ledger) of(gs types.UID) (eviction, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.evicted[gs]
	return e, ok && l.now().Sub(e.At.Time) < remembered
}

func (l *ledger) put(ctx context.Context, gs types.UID, e eviction) error {
	return l.write(ctx, func(all map[types.UID]eviction) error {
		if _, ok := all[gs]; !ok && len(all) >= maxEvicted {
			return errFull
		}
		all[gs] = e
		return nil
	})
}

func (l *ledger) drop(ctx context.Context, gs types.UID) error {
	return l.write(ctx, func(all map[types.UID]eviction) error {
		delete(all, gs)
		return nil
	})
}

func (l *ledger) write(ctx context.Context, change func(map[types.UID]eviction) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := maps.Clone(l.evicted)
	maps.DeleteFunc(next, func(_ types.UID, e eviction) bool { return l.now().Sub(e.At.Time) >= remembered })
	if err := change(next); err != nil {
		return err
	}
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	leases := l.client.CoordinationV1().Leases(l.lock.Namespace)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the lease is renewed concurrently
		lease, err := leases.Get(ctx, l.lock.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != l.lock.Holder:
			return errDeposed
		}
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationEvicted, string(text))
		if len(next) == 0 {
			delete(lease.Annotations, annotationEvicted)
		}
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("record the eviction in Lease %s/%s: %w", l.lock.Namespace, l.lock.Name, err)
	}
	l.evicted = next
	return nil
}
