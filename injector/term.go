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

// leaseName is the name of the Lease that elects the replica for the reconciler. Two replicas that run it at the same time for a moment do
// no harm, because both would write the same. Evictions are the exception; they are recorded in the Lease first, which only its holder can
// do.
const leaseName = "stoker-injector"

// term runs the reconciler while this replica holds the lease.
type term struct {
	settings settings
	scope    lookup.Scope
	find     *lookup.Lookup
	ready    func() bool
	metrics  *metrics.Injector
	log      *slog.Logger

	current atomic.Pointer[reconcile.Reconciler]
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
	own := lease.Lease{Client: electing.Core, Namespace: t.settings.Namespace, Name: leaseName, Holder: lease.Identity(instance(t.settings))}
	return own.Elect(ctx, func(ctx context.Context) { t.lead(ctx, clients, own) })
}

func (t *term) lead(ctx context.Context, clients kube.Clients, own lease.Lease) {
	own.Client = clients.Core
	u, err := reconcile.New(reconcile.Config{
		Core: clients.Core, Dynamic: clients.Dynamic, Find: t.find, Scope: t.scope, Defaults: defaults(t.settings),
		RequireLabel: t.settings.RequireNamespaceLabel, AutoBind: t.settings.AutoBindAgent, Repair: reconcile.Repair(t.settings.Repair),
		Lease:     own,
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
