// Package lease elects one replica of a program by a Lease, and keeps a small record of that replica's work in it: the next
// replica reads it, and one that lost the Lease can no longer write.
package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
)

// Durations of a Lease. If the work of a replica ends late after it lost the Lease, two replicas work at the same time.
const (
	leaseFor, renewWithin, retryEvery = 15 * time.Second, 10 * time.Second, 2 * time.Second
)

// ErrDeposed means that this replica does not hold the Lease.
var ErrDeposed = errors.New("another replica holds the Lease")

var errReturned = errors.New("the work of the Lease's holder ended by itself")

// Lease is one replica's view of a Lease of Kubernetes.
type Lease struct {
	Client interface {
		CoordinationV1() coordinationv1.CoordinationV1Interface
	}
	Namespace string
	Name      string
	// Holder identifies the replica.
	Holder string
}

// Identity returns a holder for an instance of a program. It differs after a restart.
func Identity(instance string) string { return instance + "_" + rand.Text()[:8] }

// Elect calls lead whenever this replica gets the Lease, until ctx is done. The context of lead ends with ctx, or when the Lease is lost; then
// lead must return. Elect never runs two calls of lead at once. When ctx is done, the Lease is released after lead has returned, so that what
// lead writes last is still written by its holder, and Elect returns nil. If lead returns earlier, Elect releases the Lease for another replica
// and returns an error, that of lead if it has one: a holder that does nothing would keep the others from working.
func (l Lease) Elect(ctx context.Context, lead func(context.Context) error) error {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
		Client:     l.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.Holder},
	}
	var busy sync.Mutex // held while lead runs, because the elector does not wait for lead
	wait := func() { busy.Lock(); defer busy.Unlock() }
	electing, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	defer context.AfterFunc(ctx, func() { wait(); release() })()
	var failed error // guarded by busy
	for electing.Err() == nil && ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: leaseFor, RenewDeadline: renewWithin, RetryPeriod: retryEvery, ReleaseOnCancel: true, Name: l.Name,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(held context.Context) {
					busy.Lock()
					defer busy.Unlock()
					if held.Err() != nil || ctx.Err() != nil { // the elector calls this in a goroutine: the Lease may be released already
						return
					}
					held, end := context.WithCancel(held)
					defer end()
					defer context.AfterFunc(ctx, end)()
					if err := lead(held); held.Err() == nil && ctx.Err() == nil {
						failed = cmp.Or(err, errReturned)
						release()
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(electing)
		wait()
	}
	return failed
}

// Read returns an annotation of the Lease, or "" if there is no such annotation or no Lease.
func (l Lease) Read(ctx context.Context, annotation string) (string, error) {
	is, err := l.Client.CoordinationV1().Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	return is.Annotations[annotation], nil
}

// Write sets an annotation of the Lease; "" removes it. The error wraps ErrDeposed if this replica does not hold the Lease.
func (l Lease) Write(ctx context.Context, annotation, value, fieldManager string) error {
	leases := l.Client.CoordinationV1().Leases(l.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the Lease is renewed concurrently
		is, err := leases.Get(ctx, l.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case is.Spec.HolderIdentity == nil || *is.Spec.HolderIdentity != l.Holder:
			return ErrDeposed
		}
		metav1.SetMetaDataAnnotation(&is.ObjectMeta, annotation, value)
		if value == "" {
			delete(is.Annotations, annotation)
		}
		_, err = leases.Update(ctx, is, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("write to the Lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	return nil
}
