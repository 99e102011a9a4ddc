// Package follow keeps one gateway at what the SyncTarget of its GatewaySync says. It watches the SyncTarget, reads the spec
// from the GatewaySync, runs the syncs with package loop, and reports the state of its gateway in a SyncReport.
//
// The SyncTarget is not trusted: it only selects a commit and a generation of the spec. It can never lead to another repository
// or path.
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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"

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
	GatewaySync    string // its name
	Gateway        string
	// Profile applies if the pod has no annotation stoker.io/profile.
	Profile string
}

// start identifies the pod among others with its name, and so the start of its gateway.
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
	// StartupFile stores, for the life of the pod, what was decided about the start of its gateway.
	StartupFile string
	API         dynamic.Interface
	Secrets     connect.Secrets
	SecretFiles []string // files that change with a secret
	Remote      repo.RemoteOptions
	Engine      *sync.Engine
	Log         *slog.Logger
	Metrics     *metrics.Agent
	Now         func() time.Time
	// Seen, if not nil, receives every version of the SyncTarget: nil if there is none, initially too, and an error if it
	// cannot be decoded. It must not change the object, and not block. The lead election uses it, so that an agent has only one
	// watch.
	Seen func(*v1alpha1.SyncTarget, error)
	// Tell, if not nil, receives every state. It must not block.
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

	admitted  *admission   // of the order's commit
	judged    *instruction // the target whose spec is invalid
	paused    *instruction // the last target that paused the order although it could not be followed
	consulted consulted
	window    consulted // about maintenance windows
	rehearsal rehearsal
	listed    bool   // the API server had answered in the last iteration
	logged    string // the logged reason why the gateway stays as it is

	seeing gosync.Mutex // orders the calls of Seen
	mu     gosync.Mutex
	heard  *v1alpha1.SyncTargetSpec // what the loop was last woken for
	lost   int                      // failures of the watch in a row
	loss   error                    // the last of them
	denied time.Time                // when watching began to be forbidden; zero if it is allowed
	broken bool                     // the watch was interrupted since
	epoch  int                      // see suspect
}

// New returns a Follower. It sends nothing yet.
func New(c Config) (*Follower, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Seen == nil {
		c.Seen = func(*v1alpha1.SyncTarget, error) {}
	}
	if c.Tell == nil {
		c.Tell = func(loop.State) {}
	}
	f := &Follower{Config: c, changed: make(chan struct{}, 1)}
	f.report = newReporter(kube.SyncReports(c.API, c.Namespace), c.Identity, c.Log, c.Now)
	f.startup = newStartup(c.StartupFile, c.start(), c.Engine, c.Log, c.Now)
	f.loop = loop.New(loop.Config{
		Name: "follow", Gateway: c.Gateway, Version: c.Version, Period: c.Period,
		Engine: c.Engine, Log: c.Log, Metrics: c.Metrics, Now: c.Now, Tell: f.tell, Working: f.reports,
	})
	var err error
	f.targets, err = kube.SyncTargets(c.API, c.Namespace).Informer(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.GatewaySync).String()
	}, func(_, name string) { f.saw(name) })
	if err != nil {
		return nil, fmt.Errorf("watch the SyncTarget: %w", err)
	}
	err = f.targets.OnWatchError(f.watchFailed)
	return f, err
}

// State returns the current state.
func (f *Follower) State() loop.State { return f.loop.State() }

// last is the time limit of the last report when the agent stops.
const last = 3 * time.Second

// Run follows until ctx is done. It then finishes or rolls back a running sync and reports its outcome before it returns.
func (f *Follower) Run(ctx context.Context) error {
	f.pod.watch(f.PodInfo, f.Log)
	defer f.pod.close()
	f.secrets = file.Watch(f.Log, f.SecretFiles...)
	defer f.secrets.Close()
	f.startup.look()

	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	var running gosync.WaitGroup
	running.Go(func() { f.targets.Run(watching) })
	running.Go(func() { f.await(watching) })
	running.Go(func() { f.report.run(reporting) })
	running.Go(func() { f.forward(watching) })
	f.loop.Run(ctx, f)
	unwatch()
	stop()
	running.Wait()
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), last)
	defer cancel()
	f.report.flush(final)
	return nil
}

// await wakes the loop when the first list, which may be empty, is complete.
func (f *Follower) await(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !f.targets.HasSynced() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	f.saw(f.GatewaySync)
	f.wake()
}

// forward wakes the loop when the pod's metadata or a secret changed.
func (f *Follower) forward(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.pod.changed():
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

// saw is called by the informer. A mere renewal of the lock does not wake the loop.
func (f *Follower) saw(name string) {
	f.seeing.Lock()
	t, err := f.targets.Get(f.Namespace, name)
	if errors.Is(err, kube.ErrNotSeen) {
		f.Seen(nil, nil)
	} else {
		f.Seen(t, err)
	}
	f.seeing.Unlock()
	var now *v1alpha1.SyncTargetSpec
	if err == nil {
		now = t.Spec.DeepCopy()
		now.Lead = v1alpha1.LeadRecord{Transitions: t.Spec.Lead.Transitions}
	}
	f.mu.Lock()
	same := now != nil && f.heard != nil && equal(now, f.heard)
	if f.broken || now != nil && f.heard != nil && now.Revision < f.heard.Revision {
		f.epoch++
		f.report.scheduleRead()
	}
	f.heard, f.lost, f.loss, f.broken, f.denied = now, 0, nil, false, time.Time{}
	f.mu.Unlock()
	if !same {
		f.wake()
	}
}

// suspect returns a number that changes when the API server may have been restored from a backup. Generations may then be
// reused, so what was read before is not valid any more.
func (f *Follower) suspect() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// watchFailed is called by the informer, which retries by itself. An orderly end of the watch is not a failure.
func (f *Follower) watchFailed(err error) {
	f.mu.Lock()
	f.broken = true
	f.mu.Unlock()
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	f.mu.Lock()
	f.lost++
	f.loss = err
	n := f.lost
	if !apierrors.IsForbidden(err) {
		f.denied = time.Time{}
	} else if f.denied.IsZero() {
		f.denied = f.Now()
	}
	f.mu.Unlock()
	if n == 1 {
		f.wake() // the reason is known now
	}
	if n == 1 || n%20 == 0 {
		f.Log.Warn("the SyncTarget cannot be watched; the gateway stays as it is", "error", err, "failures", n)
	}
}

// bindWithin is how long an agent waits for its rights, which the injector grants when it sees the pod.
const bindWithin = 2 * time.Minute

// unanswered returns why the API server has not answered, if known. person means that a person must act.
func (f *Follower) unanswered() (p loop.Problem, person bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.loss == nil:
		return waiting("the API server has not answered yet; the gateway stays as it is"), false
	case !f.denied.IsZero():
		return waiting("the agent may not read its SyncTarget, the gateway stays as it is: bind the ClusterRole stoker-agent to the pod's ServiceAccount: %v", f.loss),
			f.Now().Sub(f.denied) >= bindWithin
	}
	return waiting("the SyncTarget cannot be read, the gateway stays as it is: %v", f.loss), false
}

// reports puts a state into the report: at the end of an iteration, and when a sync has found something to do.
func (f *Follower) reports(s loop.State) {
	f.report.update(func(was v1alpha1.SyncReportStatus) v1alpha1.SyncReportStatus { return f.compose(was, s) })
}

// tell is called after every iteration.
func (f *Follower) tell(s loop.State) {
	f.startup.after(s, f.order)
	if f.inputs.in.gates.rollback && len(s.Problems) == 0 && s.Of == f.order && s.Report != nil && s.Report.Err == nil {
		f.wake() // the gateway went back
	}
	if f.listed { // before that, nothing worth a write is known
		f.reports(s)
	}
	f.Tell(s)
}
