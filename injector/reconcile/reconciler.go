// Package reconcile does for pods what admission cannot do when they are created. It grants rights to their agents. It evicts young pods
// that have no agent but would get one today, and those whose gateway has to start once more to accept the agent's API key. It reports why
// other pods have no agent, and writes the status of a GatewaySync without a live agent. One replica of the injector runs it at a time.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
)

const (
	// fieldManager is the field manager of all writes.
	fieldManager = "stoker-injector"
	// maxEvictionAge is the age up to which a pod may be evicted to get an agent. An older pod runs a gateway in use.
	maxEvictionAge = 10 * time.Minute
	// checkPeriod is how often a namespace is checked when nothing changes.
	checkPeriod = 30 * time.Second
	// changeDelay is how long to collect changes before a check.
	changeDelay = 100 * time.Millisecond
	// workers is how many namespaces are checked in parallel.
	workers = 2
	// namespaceTimeout is the time limit of one check.
	namespaceTimeout = time.Minute
	// Evictions per second, and their burst.
	evictionRate, evictionBurst = 0.5, 5
)

// Repair is the policy for young pods without their agent.
type Repair string

// The policies.
const (
	RepairEvict  Repair = "evict"
	RepairReport Repair = "report"
)

// Metrics counts what the reconciler does.
type Metrics interface {
	SetPodsWithoutAgent(byReason map[v1alpha1.Reason]int)
	SetFleets(withoutAgents []types.NamespacedName, repairStopped int)
	Eviction(result string)
	Iterated(loop, result string, d time.Duration)
}

// Config configures a Reconciler.
type Config struct {
	Core    kube.Core
	Dynamic dynamic.Interface
	// Find caches the GatewaySyncs. It must run at the same time and call Changed.
	Find     *lookup.Lookup
	Scope    lookup.Scope
	Defaults inject.Defaults
	// RequireLabel means that only labelled namespaces are injected.
	RequireLabel bool
	// AutoBind means that the reconciler binds the agents' ClusterRole to the ServiceAccounts of gateway pods.
	AutoBind bool
	Repair   Repair
	// WebhookReady reports whether this replica's webhook is ready. If not, no pod is evicted, because its successor would have no
	// agent either.
	WebhookReady func() bool
	// Lease is the Lease that this replica holds. It also records evictions.
	Lease lease.Lease
	// Instance is the injector's pod, the sender of Events.
	Instance string
	Metrics  Metrics
	Log      *slog.Logger
	// Now returns the API server's time, which pods and statuses are compared with. The clock of this node may be wrong.
	Now func() time.Time
}

// Reconciler is the control loop.
type Reconciler struct {
	Config
	queue     workqueue.TypedRateLimitingInterface[string]
	pods      []*podWatch
	limiter   flowcontrol.RateLimiter
	sent      sentEvents
	evictions *evictionStore

	mu         sync.Mutex
	namespaces map[string]*namespace
}

// New returns a Reconciler for one term of leadership. Its informers run only during Run.
func New(c Config) (*Reconciler, error) {
	u := &Reconciler{
		Config: c, namespaces: map[string]*namespace{}, evictions: &evictionStore{lease: c.Lease, now: c.Now},
		limiter: flowcontrol.NewTokenBucketRateLimiter(evictionRate, evictionBurst),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 2*time.Minute)),
	}
	failed := kube.LogFailures(c.Log, "watching pods failed")
	for _, ns := range c.Scope.Namespaces() {
		w, err := watchPods(c.Core, ns, func(p *corev1.Pod) { u.Changed(p.Namespace) }, failed)
		if err != nil {
			return nil, err
		}
		u.pods = append(u.pods, w)
	}
	return u, nil
}

// Changed queues a namespace after a change of its objects. It does not block.
func (u *Reconciler) Changed(namespace string) { u.queue.AddAfter(namespace, changeDelay) }

// Run works until ctx is done.
func (u *Reconciler) Run(ctx context.Context) error {
	u.Log.Info("reconciler started")
	defer u.Log.Info("reconciler stopped")
	defer func() { // the next replica sets them
		u.Metrics.SetPodsWithoutAgent(nil)
		u.Metrics.SetFleets(nil, 0)
	}()
	var group errgroup.Group
	for _, w := range u.pods {
		group.Go(func() error {
			w.informer.RunWithContext(ctx)
			return nil
		})
	}
	synced := []cache.InformerSynced{u.Find.Listed}
	for _, w := range u.pods {
		synced = append(synced, w.listedOrForbidden)
	}
	u.evictions.load(ctx, u.Log)
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		for _, gs := range u.Find.List() {
			u.Changed(gs.Namespace)
		}
		group.Go(func() error {
			u.queueBound(ctx)
			return nil
		})
		for range workers {
			group.Go(func() error {
				for u.next(ctx) {
				}
				return nil
			})
		}
		<-ctx.Done()
	}
	u.queue.ShutDown()
	return group.Wait()
}

// next reconciles the next namespace of the queue. It returns false if the queue is shut down.
func (u *Reconciler) next(ctx context.Context) bool {
	name, down := u.queue.Get()
	if down {
		return false
	}
	defer u.queue.Done(name)
	begun := time.Now()
	bounded, cancel := context.WithTimeout(ctx, namespaceTimeout)
	again, err := u.reconcile(bounded, name)
	cancel()
	result := string(v1alpha1.ClassDone)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil:
		result = string(v1alpha1.ClassRetry)
		u.Log.Warn("reconciling a namespace failed", "namespace", name, "error", err)
		u.queue.AddRateLimited(name)
	default:
		u.queue.Forget(name)
		if again > 0 {
			u.queue.AddAfter(name, backoff.Jitter(again))
		}
	}
	u.Metrics.Iterated("namespace", result, time.Since(begun))
	return true
}

// reconcile does everything that is due in a namespace. It returns after how long to reconcile it again; 0 means after the next change.
func (u *Reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	if !u.hasSynced(name) {
		return checkPeriod, nil // what exists is unknown, so nothing is written
	}
	all, pods := u.Find.In(name), u.podsOf(name)
	uids := uidsOf(all)
	n := u.namespace(name, uids)
	if len(all.Readable) == 0 && len(pods.live) == 0 && !n.bound {
		u.forget(name)
		return 0, nil
	}
	now := time.Now()
	errs := []error{u.bind(ctx, n, len(uids) > 0, pods.live, now)}
	replacements, err := u.replacements(ctx, n, all, pods)
	errs = append(errs, err)
	soon, err := u.repairPods(ctx, n, all, pods, replacements, now)
	errs = append(errs, err)
	for _, gs := range all.Readable {
		mine := pods.of(gs, all)
		mine.whyNoAgent = n.whyNoAgent
		if t := replacements[gs.Name]; t.absent {
			mine.missingSuccessor = t.wait
		}
		errs = append(errs, u.writeStatus(ctx, n, gs, mine, now))
	}
	n.tidy(all.Readable, pods.live, now)
	u.recordFleets(n, replacements)
	u.reportMetrics()
	again := checkPeriod
	if soon {
		again = 2 * time.Second
	}
	for _, l := range n.locks {
		if !l.nextRead.IsZero() {
			again = min(again, max(l.nextRead.Sub(now), time.Second))
		}
	}
	return again, errors.Join(errs...)
}

// podsOf returns the pods of a namespace that ask for an agent or have one.
func (u *Reconciler) podsOf(namespace string) podIndex {
	var out podIndex
	for _, w := range u.pods {
		list, err := w.informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
		if err != nil {
			continue // impossible: every such informer has this index
		}
		for _, obj := range list {
			switch p, ok := obj.(*corev1.Pod); {
			case !ok || !isRelevant(p):
			case p.DeletionTimestamp != nil:
				out.ending = append(out.ending, p)
			default:
				out.live = append(out.live, p)
			}
		}
	}
	return out
}
