package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/injector/reconcile"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/metrics"
)

// leaseName is the name of the Lease that elects the replica that runs the reconciler. Two replicas may run it at the same time for a
// moment. That does no harm, because both write the same. Only the holder of the Lease can evict pods, because it must record evictions
// in the Lease first.
const leaseName = "stoker-injector"

// leadership runs the reconciler while this replica holds the lease.
type leadership struct {
	settings settings
	scope    lookup.Scope
	find     *lookup.Lookup
	ready    func() bool
	metrics  *metrics.Injector
	log      *slog.Logger

	current atomic.Pointer[reconcile.Reconciler]
}

// changed forwards a change to the reconciler if it runs in this replica.
func (l *leadership) changed(namespace, name string) {
	if u := l.current.Load(); u != nil {
		u.Changed(namespace, name)
	}
}

// run takes part in the election until ctx is done.
func (l *leadership) run(ctx context.Context) error {
	clients, err := kube.Connect(l.settings.Kubeconfig, "stoker-injector-reconciler/"+version)
	if err != nil {
		return err
	}
	electing, err := kube.Connect(l.settings.Kubeconfig, "stoker-injector-lease/"+version)
	if err != nil {
		return err
	}
	own := lease.Lease{Client: electing.Core, Namespace: l.settings.Namespace, Name: leaseName, Holder: lease.Identity(instance(l.settings))}
	return own.Elect(ctx, func(ctx context.Context) error { return l.runReconciler(ctx, clients, own) })
}

func (l *leadership) runReconciler(ctx context.Context, clients kube.Clients, own lease.Lease) error {
	own.Client = clients.Core
	u, err := reconcile.New(reconcile.Config{
		Core: clients.Core, Dynamic: clients.Dynamic, Find: l.find, Scope: l.scope, Defaults: defaults(l.settings),
		RequireLabel: l.settings.RequireNamespaceLabel, AutoBind: l.settings.AutoBindAgent, Repair: reconcile.Repair(l.settings.Repair),
		Lease:        own,
		WebhookReady: readyFor(l.ready, l.settings.RepairDelay, time.Now), Instance: instance(l.settings), Metrics: l.metrics, Log: l.log, Now: clients.Now,
	})
	if err != nil {
		return err
	}
	l.current.Store(u)
	defer l.current.Store(nil)
	return u.Run(ctx)
}

// repairDelay is how long it takes until Services lead to a replica that became ready, with a margin for the kubelet's probe,
// the EndpointSlice and the proxy of every node. If a pod were evicted earlier, its successor would get no agent.
const repairDelay = 10 * time.Second

// readyFor returns a function that reports whether ready has been true for at least d. It must be called more often than ready
// changes.
func readyFor(ready func() bool, d time.Duration, now func() time.Time) func() bool {
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
