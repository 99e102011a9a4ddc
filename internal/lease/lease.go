// Package lease elects one replica of a program by a Lease, and keeps a small record of that replica's work in it: the next
// replica reads it, and one that lost the Lease can no longer write.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"stoker.io/stoker/internal/backoff"
)

const (
	// leaseFor is how long the other replicas wait for a holder that does not renew the Lease.
	leaseFor = 15 * time.Second
	// renewWithin is how long a holder continues without a successful renewal. For a moment two replicas may work at the same time if one
	// does not stop at once.
	renewWithin = 10 * time.Second
	// renewEvery is the interval of renewals, retryEvery that of attempts to get the Lease.
	renewEvery, retryEvery = 4 * time.Second, 2 * time.Second
	// requestTimeout is the time limit of one attempt or renewal.
	requestTimeout = 5 * time.Second
)

// ErrDeposed means that another replica holds the Lease.
var ErrDeposed = errors.New("another replica holds the Lease")

// Lease is a Lease as one replica sees it.
type Lease struct {
	Client    kubernetes.Interface
	Namespace string
	Name      string
	// Holder identifies the replica.
	Holder string
}

// Identity returns a holder for an instance of a program. It differs after a restart.
func Identity(instance string) string { return instance + "_" + rand.Text()[:8] }

// Elect calls lead whenever this replica gets the Lease, until ctx is done. The context of lead ends with ctx, or when the Lease is lost; then
// lead must return. It never runs twice at the same time. The Lease is renewed until lead has returned, so that what lead writes last is
// still written by its holder, and then released. The error is always nil.
func (l Lease) Elect(ctx context.Context, lead func(context.Context)) error {
	var last sighting
	var logged string
	for ctx.Err() == nil {
		renewed := time.Now()
		err := l.take(ctx, &last)
		switch {
		case err == nil:
			logged = ""
			l.hold(ctx, renewed, lead)
		case !errors.Is(err, errHeld) && err.Error() != logged && ctx.Err() == nil:
			logged = err.Error()
			klog.FromContext(ctx).Error(err, "Lease not available", "lease", l.Namespace+"/"+l.Name)
		}
		backoff.Wait(ctx, backoff.Jitter(retryEvery))
	}
	return nil
}

// errHeld means that another replica holds the Lease and renews it.
var errHeld = errors.New("another replica holds the Lease")

// sighting is the Lease as this replica last saw it. Its age is measured by the replica's own clock, because the clock of the holder may be
// wrong.
type sighting struct {
	spec coordinationv1.LeaseSpec
	at   time.Time
}

// take makes this replica the holder if the Lease is free: it does not exist, was released, or was not renewed for as long as it lasts.
func (l Lease) take(ctx context.Context, last *sighting) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	leases := l.Client.CoordinationV1().Leases(l.Namespace)
	now := metav1.NowMicro()
	own := coordinationv1.LeaseSpec{HolderIdentity: &l.Holder, LeaseDurationSeconds: new(int32(leaseFor / time.Second)), AcquireTime: &now, RenewTime: &now}
	is, err := leases.Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}, Spec: own}, metav1.CreateOptions{})
		return err
	} else if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(is.Spec, last.spec) {
		*last = sighting{is.Spec, time.Now()}
	}
	lasts := time.Duration(ptr.Deref(is.Spec.LeaseDurationSeconds, 0)) * time.Second
	if ptr.Deref(is.Spec.HolderIdentity, "") != "" && time.Since(last.at) < lasts {
		return errHeld
	}
	own.LeaseTransitions = new(ptr.Deref(is.Spec.LeaseTransitions, 0) + 1)
	is.Spec = own
	_, err = leases.Update(ctx, is, metav1.UpdateOptions{})
	return err
}

// hold calls lead and renews the Lease until lead has returned. renewed is when the Lease was last known to be ours.
func (l Lease) hold(ctx context.Context, renewed time.Time, lead func(context.Context)) {
	term, end := context.WithCancel(ctx)
	defer end()
	over := make(chan struct{})
	go func() { defer close(over); lead(term) }()
	still := context.WithoutCancel(ctx)
	for pause := renewEvery; ; {
		select {
		case <-over:
			if err := l.change(still, func(is *coordinationv1.Lease) {
				is.Spec.HolderIdentity, is.Spec.LeaseDurationSeconds = new(""), new(int32(1))
			}, ""); err != nil && !errors.Is(err, ErrDeposed) {
				klog.FromContext(ctx).Error(err, "Lease not released", "lease", l.Namespace+"/"+l.Name, "expires", leaseFor.String())
			}
			return
		case <-time.After(pause):
		}
		sent := time.Now()
		err := l.change(still, func(is *coordinationv1.Lease) { is.Spec.RenewTime = &metav1.MicroTime{Time: sent} }, "")
		switch {
		case err == nil:
			renewed, pause = sent, renewEvery
		case errors.Is(err, ErrDeposed), time.Since(renewed) >= renewWithin:
			end()
		default:
			pause = retryEvery
		}
	}
}

// Read returns an annotation of the Lease, or "" if there is none.
func (l Lease) Read(ctx context.Context, annotation string) (string, error) {
	is, err := l.Client.CoordinationV1().Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	return is.Annotations[annotation], nil
}

// Write sets an annotation of the Lease; "" removes it. The error is ErrDeposed if another replica holds the Lease.
func (l Lease) Write(ctx context.Context, annotation, value, fieldManager string) error {
	err := l.change(ctx, func(is *coordinationv1.Lease) {
		metav1.SetMetaDataAnnotation(&is.ObjectMeta, annotation, value)
		if value == "" {
			delete(is.Annotations, annotation)
		}
	}, fieldManager)
	if err != nil {
		return fmt.Errorf("write to the Lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	return nil
}

// change changes the Lease if this replica holds it. The error is ErrDeposed if it does not.
func (l Lease) change(ctx context.Context, change func(*coordinationv1.Lease), fieldManager string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	leases := l.Client.CoordinationV1().Leases(l.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the Lease is renewed concurrently
		is, err := leases.Get(ctx, l.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case ptr.Deref(is.Spec.HolderIdentity, "") != l.Holder:
			return ErrDeposed
		}
		change(is)
		_, err = leases.Update(ctx, is, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
}
