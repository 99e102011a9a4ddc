package standalone

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/metrics"
)

// Config is what a Loop works with.
type Config struct {
	File       string
	Version    string // of the agent
	Gateway    Identity
	GatewayURL string // "" for files only
	Secrets    Secrets
	DryRun     bool
	Engine     *sync.Engine
	Remote     repo.RemoteOptions
	Log        *slog.Logger
	Metrics    *metrics.Agent
	Now        func() time.Time
	// Tell is called whenever the state changed; it must not block.
	Tell func(State)
}

// Identity is what a pod would say of its gateway.
type Identity struct {
	Name        string
	Profile     string
	Labels      map[string]string
	Annotations map[string]string
}

// Loop follows a GatewaySync in a file. It is driven by one goroutine; State may be asked for by others.
type Loop struct {
	Config
	state board

	spec   spec
	target target
	sync   attempt
	drift  driftCheck
	// settled is whether the data directory was opened, and onDisk the commit that lay there then.
	settled bool
	onDisk  plan.ID
	hints   *hints // nil for Once
}

// spec is the file as it was last understood.
type spec struct {
	raw       []byte
	gs        *v1alpha1.GatewaySync
	effective v1alpha1.Effective
	peers     sync.Peers
	warnings  []string
	err       error
}

// target is what git said last.
type target struct {
	ref      string
	override bool
	commit   plan.ID
	name     string
	err      error
	due      time.Time
	failures int
}

// attempt is the sync that was tried last.
type attempt struct {
	of       wanted
	report   *sync.Report
	plan     []string // as people read it; nil where there was nothing to plan
	due      time.Time
	failures int
}

// wanted identifies what a sync is about: where it changes, the next sync does not wait for its turn.
type wanted struct {
	commit plan.ID
	spec   *v1alpha1.GatewaySync
}

// New makes a Loop.
func New(c Config) *Loop {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Tell == nil {
		c.Tell = func(State) {}
	}
	l := &Loop{Config: c}
	l.state.now = State{GatewayName: c.Gateway.Name, Phase: sync.Pending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	return l
}

// Run follows the file until ctx ends. A sync that is under way then is finished or rolled back first.
func (l *Loop) Run(ctx context.Context) error {
	w := watch(l.File, l.Log)
	defer w.Close()
	l.hints = newHints(l.Engine.DataDir, l.Log)
	defer l.hints.Close()
	for {
		pause := l.turn(ctx)
		for wait := true; wait; {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-w.Changed():
				l.spec.raw = nil // also where the content is the same: somebody touched it to be looked at
				wait = false
			case <-l.hints.moved:
				l.hinted()
				pause = l.next()
			case <-timer.C:
				wait = false
			}
			timer.Stop()
		}
	}
}

// Once runs turns until the gateway is synced or it is clear that waiting does not help, and returns the last report.
// What is only a matter of time (a gateway that starts) is waited for, at most for spec.progressDeadline.
func (l *Loop) Once(ctx context.Context) State {
	deadline := time.Time{}
	for {
		pause := l.turn(ctx)
		s := l.State()
		// Without a gateway there is nobody who would start, or seed the directory, while we wait.
		if ctx.Err() != nil || s.Reason.Class() != v1alpha1.ClassWorking || s.DryRun() || l.GatewayURL == "" {
			return s
		}
		if deadline.IsZero() {
			deadline = l.Now().Add(l.deadline())
		}
		if l.Now().Add(pause).After(deadline) {
			s.TimedOut = true
			return s
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}

// turn does all that is due and returns how long nothing will be.
func (l *Loop) turn(ctx context.Context) time.Duration {
	started := l.Now()
	l.state.turn(started)
	defer l.state.turn(time.Time{})
	l.reload()
	l.settle()
	if l.spec.gs == nil {
		l.publish()
		l.Metrics.Turn("standalone", string(failure.Reason(l.spec.err, v1alpha1.ReasonProfilesInvalid).Class()), l.Now().Sub(started))
		return defaultPeriod
	}
	l.resolve(ctx)
	l.deliver(ctx)
	l.checkDrift(ctx)
	l.publish()
	l.Metrics.Turn("standalone", string(l.State().Reason.Class()), l.Now().Sub(started))
	return l.next()
}

// next is the time until something is due.
func (l *Loop) next() time.Duration {
	due := l.target.due
	for _, t := range []time.Time{l.sync.due, l.drift.due} {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	period := l.period()
	if due.IsZero() {
		return period
	}
	// The file is looked at once a period even where no event comes: there are file systems that send none.
	return min(max(due.Sub(l.Now()), minPause), period)
}

const (
	defaultPeriod = 30 * time.Second
	minPause      = 10 * time.Millisecond
)

// period is how often the agent looks at its file, its files and its gateway.
func (l *Loop) period() time.Duration {
	if p := l.spec.effective.SyncPeriod; p > 0 {
		return p
	}
	return defaultPeriod
}

// reload reads the file again. A broken one is reported, and the last good one stays in force.
func (l *Loop) reload() {
	raw, err := readBounded(l.File, maxFile)
	if err == nil && l.spec.raw != nil && string(raw) == string(l.spec.raw) {
		return
	}
	before := l.spec.err
	l.spec.err = nil
	if err != nil {
		l.spec.err = failure.New(v1alpha1.ReasonProfilesInvalid, "read the GatewaySync: %w", err)
	} else {
		l.spec.err = l.take(raw)
	}
	if l.spec.err != nil && (before == nil || before.Error() != l.spec.err.Error()) {
		what := "the GatewaySync cannot be used; the last good one stays in force"
		if l.spec.gs == nil {
			what = "the GatewaySync cannot be used; nothing is synced until it can"
		}
		l.Log.Error(what, "reason", failure.Reason(l.spec.err, v1alpha1.ReasonProfilesInvalid), "error", l.spec.err)
	}
}

// take makes a file's content the spec that is in force, or returns why it cannot be.
func (l *Loop) take(raw []byte) error {
	l.spec.raw = raw
	gs, warnings, err := decode(l.File, raw)
	for _, w := range warnings {
		if !slices.Contains(l.spec.warnings, w) {
			l.Log.Warn("a word about the GatewaySync", "file", l.File, "warning", w)
		}
	}
	l.spec.warnings = warnings
	if err != nil {
		return err
	}
	eff, err := gs.Effective(l.Gateway.Profile, l.Gateway.Annotations)
	if err != nil {
		return err
	}
	eff.DryRun = eff.DryRun || l.DryRun
	peers, err := connect(gs, l.GatewayURL, l.Secrets, l.Remote, l.Log)
	if err != nil {
		return err
	}
	if old := l.spec.gs; old != nil {
		gs.Status.Request = old.Status.Request // what DesiredRef knows of requests that came and went
	}
	l.spec.gs, l.spec.effective, l.spec.peers = gs, eff, peers
	l.target.due, l.target.failures = time.Time{}, 0
	l.sync.failures = 0
	l.Log.Info("following", "gatewaysync", gs.Name, "gateway", l.Gateway.Name, "profile", eff.Profile, "repo", remoteName(gs))
	return nil
}

// resolve asks git where the desired ref stands, when that is due.
func (l *Loop) resolve(ctx context.Context) {
	if !l.target.due.IsZero() && l.Now().Before(l.target.due) {
		return
	}
	started := l.Now()
	t, err := l.ask(ctx)
	d := l.Now().Sub(started)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
		l.Metrics.Resolved(string(reason), d)
		if l.target.err == nil || l.target.err.Error() != err.Error() {
			l.Log.Warn("the desired ref is not resolved; what is on the disk stays", "ref", t.ref, "reason", reason, "error", err)
		}
		l.target.ref, l.target.err = t.ref, err
		l.target.failures++
		asked, _ := repo.RetryAfter(err)
		pause := backoff(reason.Class(), l.target.failures, l.interval())
		if reason == v1alpha1.ReasonRefNotFound || reason == v1alpha1.ReasonAmbiguousRef {
			pause = jitter(l.interval()) // git answers well: a branch that comes back is found as soon as one that moves
		}
		l.target.due = l.Now().Add(max(pause, min(asked, maxAsked)))
		return
	}
	l.Metrics.Resolved(string(v1alpha1.ReasonRefResolved), d)
	if t.commit != l.target.commit || t.ref != l.target.ref {
		l.Log.Info("resolved", "ref", t.ref, "commit", t.commit.String(), "override", t.override)
	}
	l.target = t
	if polled(l.spec.gs, t.ref) {
		l.target.due = l.Now().Add(jitter(l.interval()))
	} else {
		l.target.due = l.Now().Add(never)
	}
}

// maxAsked bounds how long a git server can keep us away.
const maxAsked = time.Hour

// never is when something happens that only an event can bring about.
const never = 10 * 365 * 24 * time.Hour

// ask resolves the desired ref. A request that is in force only while spec.git.ref stands at a commit needs that ref
// resolved too.
func (l *Loop) ask(ctx context.Context) (target, error) {
	lookup := func(name string) (repo.Resolution, error) {
		ref, err := repo.ParseRef(name)
		if err != nil {
			return repo.Resolution{}, err
		}
		return l.spec.peers.Remote.Resolve(ctx, ref)
	}
	gs := l.spec.gs
	want, err := v1alpha1.DesiredRef(gs, "")
	if err == nil && want.ResolveSpec {
		at, lookupErr := lookup(gs.Spec.Git.Ref)
		if lookupErr != nil {
			return target{ref: gs.Spec.Git.Ref}, lookupErr
		}
		want, err = v1alpha1.DesiredRef(gs, at.Commit.String())
	}
	if err != nil {
		return target{ref: gs.Annotations[v1alpha1.AnnotationRequestedRef]}, err
	}
	gs.Status.Request = &v1alpha1.RequestStatus{Over: want.Over, Lapsed: want.Lapsed}
	res, err := lookup(want.Ref)
	return target{ref: want.Ref, override: want.Override, commit: res.Commit, name: res.Ref}, err
}

// deliver syncs to the target where it is new, or where the last attempt is not done and its turn has come.
func (l *Loop) deliver(ctx context.Context) {
	if l.target.commit.IsZero() {
		l.resume(ctx)
		return
	}
	of := wanted{l.target.commit, l.spec.gs}
	if of == l.sync.of && (l.sync.due.IsZero() || l.Now().Before(l.sync.due)) {
		return
	}
	if of != l.sync.of {
		l.sync.failures = 0
	}
	l.run(ctx, of, false)
}

// settle finishes or takes back what a crash left, whatever git or the file say: the gateway may be reading it.
func (l *Loop) settle() {
	if l.DryRun || l.settled {
		return
	}
	d, err := l.Engine.Open()
	if err != nil {
		return // it is said by the sync that meets it
	}
	l.settled, l.onDisk = true, d.Manifest().Header().Commit
	if !l.onDisk.IsZero() {
		l.drift.due = l.Now().Add(l.period())
	}
}

// resume does what can be done while it is not known what is wanted.
func (l *Loop) resume(ctx context.Context) {
	if !l.settled || l.sync.report != nil && (l.sync.due.IsZero() || l.Now().Before(l.sync.due)) {
		return
	}
	r := l.Engine.Resume(ctx, l.spec.peers, sync.Target{Profile: l.spec.effective, Facts: l.facts(), Working: l.working})
	if r != nil && (ctx.Err() == nil || r.Err == nil) {
		l.note(wanted{r.Commit, l.spec.gs}, r)
	}
}

// run does one sync and takes note of its outcome.
func (l *Loop) run(ctx context.Context, of wanted, repair bool) {
	r := l.Engine.Sync(ctx, l.spec.peers, sync.Target{
		Ref: l.target.ref, Name: l.target.name, Commit: of.commit, Profile: l.spec.effective, Facts: l.facts(),
		ForceID: l.spec.gs.ForceSync(), Repair: repair, Working: l.working,
	})
	if ctx.Err() != nil && r.Err != nil {
		return // we are asked to stop: that is no outcome
	}
	l.note(of, r)
}

// note takes the outcome of a sync.
func (l *Loop) note(of wanted, r *sync.Report) {
	l.record(r)
	previous := l.sync.report
	l.sync.of, l.sync.report = of, r
	l.keepText(r)
	class := r.Class()
	if class == v1alpha1.ClassDone || r.DryRun && r.Err == nil {
		l.sync.failures, l.sync.due = 0, time.Time{}
		l.drift.due = l.Now().Add(l.period())
		if l.hints != nil && (r.Wrote() || len(l.hints.dirs) == 0) {
			l.Engine.Owned(l.hints.follow)
		}
		if r.Phase == sync.Standby { // it may become the active node at any time
			l.sync.due = l.drift.due
		}
	} else {
		l.sync.failures++
		l.sync.due = l.Now().Add(backoff(class, l.sync.failures, l.period()))
	}
	l.announce(previous, r)
}

// large is from how many changes on a plan is worth giving its memory back at once: a first sync has a hundred thousand,
// and the agent then idles beside a gateway that can use the memory.
const large = 5000

// keepText keeps of a plan what is shown and lets the rest go.
func (l *Loop) keepText(r *sync.Report) {
	l.sync.plan = nil
	if r.Changes == nil {
		return
	}
	l.sync.plan = strings.Split(strings.TrimSuffix(r.Changes.String(), "\n"), "\n")
	n := len(r.Changes.List)
	r.Changes = nil
	if n >= large {
		debug.FreeOSMemory()
	}
}

// announce logs an outcome once: when it changed, or when files were written.
func (l *Loop) announce(previous, r *sync.Report) {
	if previous != nil && previous.Phase == r.Phase && previous.Reason == r.Reason && previous.Message == r.Message && !r.Wrote() {
		return
	}
	level := slog.LevelInfo
	if c := r.Class(); c == v1alpha1.ClassRetry || c == v1alpha1.ClassStalled {
		level = slog.LevelError
	} else if c == v1alpha1.ClassHeld {
		level = slog.LevelWarn
	}
	l.Log.Log(context.Background(), level, "sync", "phase", r.Phase, "reason", r.Reason, "message", r.Message, "ref", r.Ref,
		"commit", r.Commit.String(), "target", r.Target.String(), "duration", r.Duration.String(),
		"added", r.Files.Added, "modified", r.Files.Modified, "deleted", r.Files.Deleted, "saved", r.Files.Saved)
	for _, n := range r.Notes {
		l.Log.Warn("sync note", "note", n)
	}
}

func (l *Loop) record(r *sync.Report) {
	l.Metrics.Synced(string(r.Reason), r.Duration, r.Phase == sync.Synced || r.Phase == sync.Standby, l.Now())
	if r.Fetch.Kind != "" {
		l.Metrics.Fetched(r.Fetch.Kind, r.Steps["fetch"])
	}
	for kind, n := range map[string]int{"added": r.Files.Added, "modified": r.Files.Modified, "deleted": r.Files.Deleted, "kept": r.Files.Kept} {
		l.Metrics.Changed(kind, n)
	}
	for _, s := range r.Scans {
		result := s.Reason
		if result == "" {
			result = "ok"
		}
		l.Metrics.Scanned(s.Kind, result, s.Duration)
	}
}
