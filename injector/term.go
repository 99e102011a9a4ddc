package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/injector/reconcile"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
)

// lease is the name of the Lease that elects the replica for the reconciler.
const lease = "stoker-injector"

// Durations of the lease. Two replicas that run the reconciler at the same time for a moment do no harm, because both would write the
// same. Evictions are the exception; they are recorded in the Lease first, which only its holder can do.
const (
	leaseFor, renewWithin, retryEvery = 15 * time.Second, 10 * time.Second, 2 * time.Second
)

// term runs the reconciler while this replica holds the lease.
type term struct {
	settings settings
	scope    lookup.Scope
	find     *lookup.Lookup
	ready    func() bool
	metrics  *metrics.Injector
	log      *slog.Logger

	current atomic.Pointer[reconcile.Reconciler]
	busy    sync.Mutex // held while the reconciler runs here
}

// changed forwards a change if the reconciler runs here.
func (t *term) changed(namespace, name string) {
	if u := t.current.Load(); u != nil {
		u.Changed(namespace, name)
	}
}

// run takes part in the election until ctx is done.
func (t *term) run(ctx context.Context) error {
	clients, err := kube.Connect(t.settings.Kubeconfig, "stoker-injector-reconciler/"+version)
	if err != nil {
		return err
	}
	electing, err := kube.Connect(t.settings.Kubeconfig, "stoker-injector-lease/"+version)
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: t.settings.Namespace, Name: lease},
		Client:     electing.Core.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: instance(t.settings) + "_" + rand.Text()[:8]},
	}
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: leaseFor, RenewDeadline: renewWithin, RetryPeriod: retryEvery, ReleaseOnCancel: true, Name: lease,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { t.lead(ctx, clients, lock.Identity()) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		elector.Run(ctx)
		t.ended()
	}
	return nil
}

// ended waits until the reconciler has stopped here.
func (t *term) ended() {
	t.busy.Lock()
	defer t.busy.Unlock()
}

func (t *term) lead(ctx context.Context, clients kube.Clients, holder string) {
	t.busy.Lock()
	defer t.busy.Unlock()
	u, err := reconcile.New(reconcile.Config{
		Core: clients.Core, Dynamic: clients.Dynamic, Find: t.find, Scope: t.scope, Defaults: defaults(t.settings),
		RequireLabel: t.settings.RequireNamespaceLabel, AutoBind: t.settings.AutoBindAgent, Repair: reconcile.Repair(t.settings.Repair),
		Lock:      reconcile.Lock{Namespace: t.settings.Namespace, Name: lease, Holder: holder},
		Answering: steady(t.ready, t.settings.RepairDelay, time.Now), Instance: instance(t.settings), Metrics: t.metrics, Log: t.log, Now: clients.Now,
	})
	if err == nil {
		t.current.Store(u)
		err = u.Run(ctx)
		t.current.Store(nil)
	}
	if err != nil {
		t.log.Error("reconciler failed", "error", err)
	}
}

// repairDelay is how long it takes until Services lead to a replica that became ready, with a margin for the kubelet's probe,
// the EndpointSlice and the proxy of every node. If a pod were evicted earlier, its successor would get no agent.
const repairDelay = 10 * time.Second

// steady returns a function that reports whether ready has been true for at least d. It must be called more often than ready
// changes.
func steady(ready func() bool, d time.Duration, now func() time.Time) func() bool {
	var mu sync.Mutex
	var since time.Time
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if !ready() {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = now()
		}
		return now().Sub(since) >= d
	}
}
