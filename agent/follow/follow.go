// Package follow keeps one gateway at the commit that the SyncTarget of its GatewaySync names. It watches the SyncTarget, reads the spec
// from the GatewaySync, runs the syncs with package loop, and reports the state of its gateway in a SyncReport.
//
// The SyncTarget is not trusted: it only selects a commit and a generation of the spec, and cannot select another repository or path. See
// admission.go, and package decide.
package follow

import (
	"context"
	"errors"
	"log/slog"
	gosync "sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
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
	// Port and TLS of the gateway apply if the spec sets no port.
	Port int32
	TLS  bool
	// Period is the interval of file checks until the spec is known.
	Period time.Duration
	// StartupFile stores for the life of the pod whether its gateway may start: see startupState.
	StartupFile string
	API         dynamic.Interface
	Secrets     connect.Secrets
	Key         *apikey.Key // for spec.gateway.api.managed; nil if the pod has no place for it
	SecretFiles []string    // files that change with a secret
	Remote      repo.RemoteOptions
	Engine      *sync.Engine
	Log         *slog.Logger
	Metrics     *metrics.Agent
	Now         func() time.Time
	// OnSyncTarget, if not nil, receives every version of the SyncTarget: nil if there is none, and an error if it cannot be decoded. The
	// first call reports the initial state. It must not change the object or block. The lead election uses it, so that an agent has only
	// one watch.
	OnSyncTarget func(*v1alpha1.SyncTarget, error)
	// OnState, if not nil, receives the state after every iteration. It must not block.
	OnState func(loop.State)
}

// Follower follows one SyncTarget.
type Follower struct {
	Config
	loop    *loop.Loop
	changed chan struct{}
	targets *targetWatch
	pod     podInfo
	secrets *file.Watcher
	rotated atomic.Int64 // changes of SecretFiles
	volume  volume
	spec    specReader
	startup *startup
	record  knownRecord
	report  *reporter

	connections  connections
	proposals    connect.ProposalSettingsCache
	current      currentOrder
	reportTarget *instruction            // what the report is about, if not the order's target
	end          context.CancelCauseFunc // ends Run
	keyRemoved   bool                    // nothing is left of a key of the agent
	restart      atomic.Bool             // the key needs another start of the gateway
	refilling    bool                    // a new volume gets the commit of the lost one first
	aborted      *instruction            // the target of the failed rollout from which the order in force goes back; nil for none
	listed       bool                    // the API server had answered in the last iteration
	logged       string                  // the last logged reason why the gateway stays as it is
}

// New returns a Follower. It sends nothing yet.
func New(c Config) (*Follower, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.OnSyncTarget == nil {
		c.OnSyncTarget = func(*v1alpha1.SyncTarget, error) {}
	}
	if c.OnState == nil {
		c.OnState = func(loop.State) {}
	}
	f := &Follower{Config: c, changed: make(chan struct{}, 1)}
	f.report = newReporter(kube.SyncReports(c.API, c.Namespace), c.Identity, c.Log, c.Now)
	f.startup = newStartup(c.StartupFile, c.start(), c.Engine, c.Log, c.Now)
	f.volume = volume{c.Engine}
	f.spec = specReader{
		objects: kube.GatewaySyncs(c.API, c.Namespace), name: c.GatewaySync, volume: f.volume, log: c.Log, now: c.Now,
		onOtherGeneration: func(gs *v1alpha1.GatewaySync) { f.adoptStartup(gs) },
	}
	f.loop = loop.New(loop.Config{
		Name: "follow", Gateway: c.Gateway, Version: c.Version, Period: c.Period,
		Engine: c.Engine, Log: c.Log, Metrics: c.Metrics, Now: c.Now, OnState: f.afterIteration, OnWorking: f.updateReport,
	})
	var err error
	if f.targets, err = newTargetWatch(&c, f.wake); err != nil {
		return nil, err
	}
	return f, nil
}

// State returns the current state.
func (f *Follower) State() loop.State { return f.loop.State() }

// flushTimeout is the time limit of the last report when the agent stops.
const flushTimeout = 3 * time.Second

// Run follows the SyncTarget until ctx is done, or the gateway has to start once more (ErrRestartGateway). It then finishes or rolls back a
// running sync, and reports its outcome before it returns.
func (f *Follower) Run(ctx context.Context) error {
	f.pod.watch(f.PodInfo, f.Log)
	defer f.pod.watcher.Close()
	f.secrets = file.Watch(f.Log, f.SecretFiles...)
	defer f.secrets.Close()
	f.watchKey()
	f.updateKey()
	f.startup.checkVolume()

	ctx, f.end = context.WithCancelCause(ctx)
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	var running gosync.WaitGroup
	running.Go(func() { f.targets.run(watching) })
	running.Go(func() { f.report.run(reporting) })
	running.Go(func() { f.forwardChanges(watching) })
	f.loop.Run(ctx, f)
	unwatch()
	stop()
	running.Wait()
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	f.report.flush(final)
	if errors.Is(context.Cause(ctx), ErrRestartGateway) {
		return ErrRestartGateway
	}
	return nil
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
	default: // a wake-up is pending
	}
}

// updateReport puts a state into the report: at the end of an iteration, and when a sync has found something to do.
func (f *Follower) updateReport(s loop.State) {
	f.report.update(func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus { return f.compose(was, s) })
}

// afterIteration is called after every iteration.
func (f *Follower) afterIteration(s loop.State) {
	gaveUp := f.refilling && s.Of == f.current.order && s.Report != nil && s.Report.Class() == v1alpha1.ClassStalled
	if gaveUp {
		f.record.gaveUp = s.Of.Commit
	} else {
		f.startup.afterIteration(s, f.current.order)
	}
	if f.current.recordDryRun(s) {
		f.wake() // to put the order from before the dry run in force again
	}
	if f.aborted != nil && f.current.wentBack(s, plan.ID{}).Synced && len(s.Problems) == 0 {
		f.wake() // to report that the gateway went back
	}
	if gaveUp || f.refilling && !f.volume.incomplete(f.volume.commit()) {
		f.wake() // to follow the target
	}
	if f.listed && f.record.known { // before, the report would only say that the API server has not answered
		f.updateReport(s)
	}
	f.OnState(s)
}
