// Package follow keeps one gateway at the commit that the SyncTarget of its GatewaySync names. It watches the SyncTarget, reads the spec
// from the GatewaySync, runs the syncs with package loop, and reports the state of its gateway in a SyncReport.
//
// The SyncTarget is not trusted: it only selects a commit and a generation of the spec, and cannot select another repository or path. See
// admit.go and gate.go.
package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	gosync "sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
)

// Identity identifies the agent. It does not change during the life of its pod.
type Identity struct {
	Namespace, Pod string
	PodUID         string // owner of the report; "" for none
	GatewaySync    string // name of the GatewaySync
	Gateway        string // name of the gateway
	// Profile applies if the pod has no annotation stoker.io/profile.
	Profile string
}

// start identifies the start of the gateway. It differs for a later pod of the same name.
func (i Identity) start() string { return i.PodUID + "/" + i.Pod }

// Config configures a Follower.
type Config struct {
	Identity
	Version string // of the agent
	// PodInfo is the directory with the pod's labels and annotations from the downward API; "" for none.
	PodInfo string
	// Port and TLS of the gateway apply if the spec does not set them.
	Port int32
	TLS  bool
	// Period is the interval of file checks until the spec is known.
	Period time.Duration
	// StartupFile stores for the life of the pod whether its gateway may start: see startupState.
	StartupFile string
	API         dynamic.Interface
	Secrets     connect.Secrets
	SecretFiles []string // files that change with a secret
	Remote      repo.RemoteOptions
	Engine      *sync.Engine
	Log         *slog.Logger
	Metrics     *metrics.Agent
	Now         func() time.Time
	// OnSyncTarget, if not nil, receives every version of the SyncTarget: nil if there is none, and an error if it cannot be decoded. The
	// first call reports the initial state. It must not change the object or block. The lead election uses it, so that an agent has only
	// one watch.
	OnSyncTarget func(*v1alpha1.SyncTarget, error)
	// Tell, if not nil, receives the state after every iteration. It must not block.
	Tell func(loop.State)
}

// Follower follows one SyncTarget.
type Follower struct {
	Config
	loop    *loop.Loop
	targets *kube.Informer[v1alpha1.SyncTarget]
	changed chan struct{}
	pod     podInfo
	secrets *file.Watcher
	rotated atomic.Int64 // changes of SecretFiles
	spec    spec
	startup *startup
	report  *reporter

	proposals connect.SettingsCache
	order     *loop.Order
	inputs    inputs

	admitted     *admission   // of the order's commit
	reportTarget *instruction // what the report is about, if not the order's target
	paused       *instruction // the last target that paused the order although it could not be followed
	rollout      confirmation // of what a gate last asked the GatewaySync
	window       confirmation // of an approval for maintenance windows
	dryRun       dryRun
	listed       bool   // the API server had answered in the last iteration
	logged       string // the last logged reason why the gateway stays as it is

	calls          gosync.Mutex // serializes the calls of OnSyncTarget
	mu             gosync.Mutex
	lastTarget     *v1alpha1.SyncTargetSpec // for which the loop was woken
	watchFailures  int                      // in a row
	watchError     error                    // of the last failure
	forbiddenSince time.Time                // when watching began to be forbidden; zero if it is allowed
	interrupted    bool                     // the watch ended after the last event
	epoch          int                      // see currentEpoch
}

// New returns a Follower. It sends nothing yet.
func New(c Config) (*Follower, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.OnSyncTarget == nil {
		c.OnSyncTarget = func(*v1alpha1.SyncTarget, error) {}
	}
	if c.Tell == nil {
		c.Tell = func(loop.State) {}
	}
	f := &Follower{Config: c, changed: make(chan struct{}, 1)}
	f.report = newReporter(kube.SyncReports(c.API, c.Namespace), c.Identity, c.Log, c.Now)
	f.startup = newStartup(c.StartupFile, c.start(), c.Engine, c.Log, c.Now)
	f.loop = loop.New(loop.Config{
		Name: "follow", Gateway: c.Gateway, Version: c.Version, Period: c.Period,
		Engine: c.Engine, Log: c.Log, Metrics: c.Metrics, Now: c.Now, Tell: f.tell, Working: f.updateReport,
	})
	var err error
	f.targets, err = kube.SyncTargets(c.API, c.Namespace).Informer(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.GatewaySync).String()
	}, func(_, name string) { f.targetChanged(name) })
	if err != nil {
		return nil, fmt.Errorf("watch the SyncTarget: %w", err)
	}
	err = f.targets.OnWatchError(f.watchFailed)
	return f, err
}

// State returns the current state.
func (f *Follower) State() loop.State { return f.loop.State() }

// flushTimeout is the time limit of the last report when the agent stops.
const flushTimeout = 3 * time.Second

// Run follows the SyncTarget until ctx is done. It then finishes or rolls back a running sync, and reports its outcome before it returns.
func (f *Follower) Run(ctx context.Context) error {
	f.pod.watch(f.PodInfo, f.Log)
	defer f.pod.watcher.Close()
	f.secrets = file.Watch(f.Log, f.SecretFiles...)
	defer f.secrets.Close()
	f.startup.checkVolume()

	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	var running gosync.WaitGroup
	running.Go(func() { f.targets.Run(watching) })
	running.Go(func() { f.awaitList(watching) })
	running.Go(func() { f.report.run(reporting) })
	running.Go(func() { f.forwardChanges(watching) })
	f.loop.Run(ctx, f)
	unwatch()
	stop()
	running.Wait()
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	f.report.flush(final)
	return nil
}

// awaitList waits for the first list, which may be empty, and wakes the loop.
func (f *Follower) awaitList(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), f.targets.HasSynced) {
		f.targetChanged(f.GatewaySync)
		f.wake()
	}
}

// forwardChanges wakes the loop when the pod's metadata or a secret changed.
func (f *Follower) forwardChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.pod.watcher.Changed():
			f.wake()
		case <-f.secrets.Changed():
			f.rotated.Add(1)
			f.wake()
		}
	}
}

// Changed implements loop.Source.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

func (f *Follower) wake() {
	select {
	case f.changed <- struct{}{}:
	default: // it is awake
	}
}

// targetChanged is called by the informer. It wakes the loop, unless only the lock was renewed.
func (f *Follower) targetChanged(name string) {
	f.calls.Lock()
	t, err := f.targets.Get(f.Namespace, name)
	if errors.Is(err, kube.ErrNotSeen) {
		f.OnSyncTarget(nil, nil)
	} else {
		f.OnSyncTarget(t, err)
	}
	f.calls.Unlock()
	var target *v1alpha1.SyncTargetSpec
	if err == nil {
		target = t.Spec.DeepCopy()
		target.Lead = v1alpha1.LeadRecord{Transitions: t.Spec.Lead.Transitions}
	}
	f.mu.Lock()
	known := target != nil && f.lastTarget != nil
	same := known && equality.Semantic.DeepEqual(target, f.lastTarget)
	if f.interrupted || known && target.Revision < f.lastTarget.Revision {
		f.epoch++
		f.report.scheduleRead()
	}
	f.lastTarget, f.watchFailures, f.watchError, f.interrupted, f.forbiddenSince = target, 0, nil, false, time.Time{}
	f.mu.Unlock()
	if !same {
		f.wake()
	}
}

// currentEpoch returns a number that changes when the API server may have been restored from a backup. Generations may then be reused, so
// what was read in an earlier epoch is not valid any more.
func (f *Follower) currentEpoch() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// watchFailed is called by the informer, which retries by itself. An orderly end of the watch is not a failure.
func (f *Follower) watchFailed(err error) {
	orderly := errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
	f.mu.Lock()
	f.interrupted = true
	if orderly {
		f.mu.Unlock()
		return
	}
	f.watchFailures++
	f.watchError = err
	n := f.watchFailures
	if !apierrors.IsForbidden(err) {
		f.forbiddenSince = time.Time{}
	} else if f.forbiddenSince.IsZero() {
		f.forbiddenSince = f.Now()
	}
	f.mu.Unlock()
	if n == 1 {
		f.wake() // to report the error
	}
	if n == 1 || n%20 == 0 {
		f.Log.Warn("the SyncTarget cannot be watched; the gateway stays as it is", "error", err, "failures", n)
	}
}

// bindTimeout is how long an agent waits for its rights, which the injector grants when it sees the pod.
const bindTimeout = 2 * time.Minute

// unanswered returns why the API server has not answered, if known, and whether a person must act.
func (f *Follower) unanswered() (p loop.Problem, person bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.watchError == nil:
		return waiting("the API server has not answered yet; the gateway stays as it is"), false
	case !f.forbiddenSince.IsZero():
		return waiting("the agent may not read its SyncTarget, the gateway stays as it is: bind the ClusterRole stoker-agent to the pod's ServiceAccount: %v", f.watchError),
			f.Now().Sub(f.forbiddenSince) >= bindTimeout
	}
	return waiting("the SyncTarget cannot be read, the gateway stays as it is: %v", f.watchError), false
}

// updateReport puts a state into the report: at the end of an iteration, and when a sync has found something to do.
func (f *Follower) updateReport(s loop.State) {
	f.report.update(func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus { return f.compose(was, s) })
}

// tell is called after every iteration.
func (f *Follower) tell(s loop.State) {
	f.startup.after(s, f.order)
	if f.inputs.in.gates.rollback && len(s.Problems) == 0 && s.Of == f.order && s.Report != nil && s.Report.Err == nil {
		f.wake() // the gateway went back
	}
	if f.listed { // before, the report would only say that the API server has not answered
		f.updateReport(s)
	}
	f.Tell(s)
}
