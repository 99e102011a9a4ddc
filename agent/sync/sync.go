// Package sync runs one sync from a target commit to a report: fetch, plan, validate, hold, apply, scan, verify. It
// knows git, the data directory and the gateway, and nothing of Kubernetes; the loops that drive it (standalone,
// follow) decide when it runs and where its report goes.
package sync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Gateway is what a sync needs of the gateway's REST API; *ignition.Client is the real one.
type Gateway interface {
	Ping(ctx context.Context) (ignition.Ping, error)
	Info(ctx context.Context) (ignition.Info, error)
	Redundancy(ctx context.Context) (ignition.Redundancy, error)
	Projects(ctx context.Context) ([]ignition.Project, error)
	Project(ctx context.Context, name string) (ignition.Project, error)
	ResourceNames(ctx context.Context, module, typ string) ([]ignition.ResourceName, error)
	ErrorsSince(ctx context.Context, since time.Time) ([]ignition.LogLine, error)
	Lock(ctx context.Context, kind ignition.Kind, hold time.Duration) (ignition.Lock, error)
	Scan(ctx context.Context, kind ignition.Kind) (ignition.ScanResult, error)
	Designers(ctx context.Context) ([]ignition.Designer, error)
	PendingRestarts(ctx context.Context) ([]string, error)
	TrialExpired(ctx context.Context) (bool, error)
	Platform(ctx context.Context) (ignition.Platform, error)
	ScanByModule(ctx context.Context) (ignition.ModuleScan, error)
}

// Target is what a sync is to deliver.
type Target struct {
	// Ref is the ref as it was asked for; Name is the full name of the ref that Commit is the tip of ("" for a bare
	// commit), for git servers that do not give a commit by its id.
	Ref, Name string
	Commit    plan.ID
	Profile   v1alpha1.Effective
	// Facts is what templates can ask for of the gateway. What follows from Ref, Commit and Profile is filled in.
	Facts plan.Facts
	// ForceID is the value of the annotation stoker.io/force-sync. One that was not dealt with yet forces the sync: every
	// file is verified by its hash, what differs is repaired, the gateway scans again, and a mass deletion is allowed.
	ForceID string
	// BeforeStart says that the gateway cannot run yet, because it is started only after this sync: it is not asked, and
	// what it will read when it starts need not be scanned. The report is Applied, and the next sync verifies.
	BeforeStart bool
	// Start names the gateway's start that is known of, its pod's: nothing is Synced before the gateway was seen running since.
	// "" where none is known.
	Start string
	// Working is called once, when it turned out that there is something to do; nil for nobody.
	Working func()
	// Repair restores files that were changed on the gateway (driftPolicy repair).
	Repair bool
}

// Peers are the two ends of a sync. They follow the spec, so that they may be others at the next sync.
type Peers struct {
	Remote  *repo.Remote
	Gateway Gateway // nil: files only
	// Token is whether there is an API token: without one nothing is scanned and nothing verified.
	Token bool
}

// Config is what an Engine works with.
type Config struct {
	DataDir string
	Disk    disk.Options
	// Mounts are paths below the data directory at which the gateway has mounts that are not the agent's to write.
	Mounts  []string
	Store   *repo.Store
	Limits  plan.Limits
	MaxBlob int64 // bytes of the largest file; 0 for no limit
	Log     *slog.Logger
	Now     func() time.Time
	// Grace is how long a sync that has written files may go on after it was asked to stop, and how long a lock is waited
	// for after one that failed. Default 20 s.
	Grace time.Duration
	// Progress is told where long work stands; done and total count files, and are 0 where there is nothing to count.
	Progress func(step string, done, total int)
}

// Engine syncs one data directory. Its methods must not be called at the same time.
type Engine struct {
	Config
	dir   *disk.Dir
	taken int // how often dir became another
	cache *plan.Cache
	last  delivered // what lies on the disk
	held  heldAt    // the sync that was held last
	seen  string    // the start whose gateway was seen running
	odd   oddities  // of a standby node
	lost  *lost     // of what lies on the disk; nil for nothing
	asked func()    // called when a look at drift asks for a file that the store does not have
}

// New makes an Engine. The data directory is opened by the first sync, because it must not be touched before it is
// seeded.
func New(c Config) *Engine {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Grace <= 0 {
		c.Grace = 20 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	return &Engine{Config: c, cache: plan.NewCache()}
}

// Close lets go of the data directory.
func (e *Engine) Close() error {
	if e.dir == nil {
		return nil
	}
	err := e.dir.Close()
	e.dir = nil
	e.taken++
	return err
}

// Taken is another number whenever the data directory is another, or is let go of: what was found out before does not hold
// for the one that is there now.
func (e *Engine) Taken() int { return e.taken }

// Open takes the data directory and finishes what a crash left; it is a no-op where that was done.
//
// A directory that is no longer the one at its path (a backup was put back, .stoker was removed) is let go of, and the
// one that is there now is opened.
func (e *Engine) Open() (*disk.Dir, error) {
	if e.dir != nil {
		err := e.dir.Current()
		if err == nil {
			return e.dir, nil
		}
		e.Log.Warn("the data directory is opened anew", "error", err)
		if err := e.Close(); err != nil {
			return nil, err
		}
	}
	o := e.Disk
	o.Wanted = e.wanted
	d, err := disk.Open(e.DataDir, o)
	if err != nil {
		return nil, err
	}
	e.dir = d
	e.taken++
	if r := d.Recovered(); r != nil {
		e.Log.Warn("a sync that did not end was settled", "commit", r.Commit.String(), "finished", r.Forward, "files", len(r.Paths), "saved", len(r.Saved))
	}
	return d, nil
}

// Drift compares what is ours with what lies on the disk; full hashes every file.
func (e *Engine) Drift(ctx context.Context, full bool) (disk.Drift, error) {
	dir, err := e.Open()
	if err != nil {
		return disk.Drift{}, err
	}
	e.asked = func() {
		e.asked = nil // once a look
		e.find(ctx)
	}
	defer func() { e.asked = nil }()
	return dir.Drift(ctx, full)
}

// Owned gives the files that are ours, sorted by path; nothing where the data directory is not open.
func (e *Engine) Owned(to func(iter.Seq2[plan.Owned, error])) {
	if e.dir != nil {
		to(e.dir.Manifest().All(""))
	}
}

// LostAndFound is the number of bytes in lost+found, 0 where the data directory is not open.
func (e *Engine) LostAndFound() (int64, error) {
	if e.dir == nil {
		return 0, nil
	}
	return e.dir.LostAndFoundBytes()
}

// Sync delivers t and reports. It returns when nothing of it runs any more; a context that ends stops it before the
// first file of the gateway is changed, and not between two.
func (e *Engine) Sync(ctx context.Context, p Peers, t Target) *Report {
	r := &Report{Phase: Synced, Reason: v1alpha1.ReasonSynced, Ref: t.Ref, Target: t.Commit, Started: e.Now(), Steps: map[string]time.Duration{}}
	s := &run{Engine: e, peers: p, t: t, r: r}
	err := s.all(ctx)
	if s.dir != nil {
		h := s.dir.Manifest().Header()
		r.Commit, r.Files.Total = h.Commit, h.Files
		s.remember(h)
	}
	if s.looking {
		err = errors.Join(err, s.dir.Close())
	}
	r.Duration = e.Now().Sub(r.Started)
	r.settle(err)
	return r
}

// Resume delivers what a gateway is owed of the commit that lies on the disk, where the rules are those that it was
// synced with: what can be done while git cannot be asked. It is nil where there is nothing to resume.
func (e *Engine) Resume(ctx context.Context, p Peers, t Target) *Report {
	d, err := e.Open()
	if err != nil {
		return nil // the first sync says why
	}
	h := d.Manifest().Header()
	t.Ref, t.Name, t.Commit, t.ForceID = h.Ref, "", h.Commit, ""
	s := &run{Engine: e, t: t, r: &Report{}, dir: d}
	if s.rules, err = s.rulesAt(t.Ref, t.Commit); err != nil || h.Commit.IsZero() || !s.settled() {
		return nil
	}
	return e.Sync(ctx, p, t)
}

// run is the state of one sync.
type run struct {
	*Engine
	peers Peers
	t     Target
	r     *Report

	dir     *disk.Dir
	rules   plan.Rules
	desired *plan.Desired
	owed    owed
	before  gatewayState // before the first file moved
	again   bool         // it was planned once more
	force   bool
	deletes string // the files that its plan deletes; see deleted
	looking bool   // dir is our own, opened only to look

	platform             ignition.Platform
	standby              standby
	brought              bool // the copied files may have come by the pair
	planned              bool // brought, as the plan has it
	takes, steps         bool // this node has taken over, or stepped back, since its files were compared
	info                 ignition.Info
	infoKnown, infoAsked bool
}

func (s *run) all(ctx context.Context) error {
	if s.t.Profile.Paused {
		return s.paused(ctx)
	}
	var err error
	if s.rules, err = s.rulesAt(s.t.Ref, s.t.Commit); err != nil {
		return err
	}
	if s.dir, err = s.open(); err != nil {
		return err
	}
	if s.owed, err = loadOwed(s.dir); err != nil {
		return err
	}
	if s.force, err = s.forced(); err != nil {
		return err
	}
	there := s.settled()
	if there {
		s.remind(ctx)
		if err := s.recall(ctx); err != nil {
			return err
		}
		there = !s.takes && !s.steps
	}
	if !there {
		if s.t.Working != nil {
			s.t.Working()
		}
		if err := s.files(ctx); err != nil {
			return err
		}
	}
	if s.t.Profile.DryRun {
		return s.unasked(ctx)
	}
	ctx, cancel := lasting(ctx, s.Grace)
	defer cancel()
	if err := s.deliver(ctx); err != nil {
		return err
	}
	return s.handled()
}

// open takes the data directory; for a dry run it only looks into it, beside whoever else works there.
func (s *run) open() (*disk.Dir, error) {
	if !s.t.Profile.DryRun || s.Engine.dir != nil {
		return s.Open()
	}
	o := s.Disk
	o.ReadOnly, o.AllowUnseeded, o.Wanted = true, true, s.wanted
	d, err := disk.Open(s.DataDir, o)
	s.looking = err == nil
	return d, err
}

const forcedNote = "force-sync"

// forced reports whether the request to force a sync is a new one. What was dealt with is kept in the data directory,
// so that a restart does not repeat it.
func (s *run) forced() (bool, error) {
	if s.t.ForceID == "" {
		return false, nil
	}
	done, err := s.dir.Note(forcedNote)
	return string(done) != s.t.ForceID, err
}

// handled keeps the request to force a sync as dealt with.
func (s *run) handled() error {
	if !s.force {
		return nil
	}
	return s.dir.SetNote(forcedNote, []byte(s.t.ForceID))
}

// settled reports whether the files of the target are on the disk already, by the manifest alone: nothing is fetched
// and nothing is read for a target that is there.
func (s *run) settled() bool {
	h := s.dir.Manifest().Header()
	if h.Commit != s.t.Commit || h.Ref != s.t.Ref && s.rules.AsksForRef() || h.Rules != s.rules.Fingerprint() || !h.Complete || s.force || s.t.Repair {
		return false
	}
	s.r.Message = fmt.Sprintf("%s is there already: nothing to do", s.t.Commit.Short())
	return true
}

// files brings the commit's files to the disk.
func (s *run) files(ctx context.Context) error {
	s.lost = nil
	changes, err := s.plan(ctx)
	if err != nil {
		return err
	}
	s.r.Changes = changes
	s.r.Notes = append(s.r.Notes, changes.Warnings...)
	if s.t.Profile.DryRun {
		return s.dryRun(ctx, changes)
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	if changes, err = s.place(changes); err != nil {
		return err
	}
	if s.waited("") {
		if err := s.sessions(ctx, changes); err != nil {
			return err
		}
	}
	if h := changes.Held; h != nil && s.waited(h.Message) {
		return errors.Join(failure.New(h.Reason, "%s", h.Message), s.rememberHeld(h))
	}
	if err := s.adopted(ctx, changes); err != nil {
		return err
	}
	done := s.step("stage")
	staged, err := s.dir.Stage(ctx, changes, s.Store.SortKey, s.source(changes))
	done()
	if err != nil {
		return err
	}
	if h := changes.Held; h != nil {
		s.wait(h.Message)
		return errors.Join(failure.New(h.Reason, "%s", h.Message), staged.Discard(), s.rememberHeld(h))
	}
	if err := s.apply(ctx, changes, staged); err != nil {
		return err
	}
	return s.whole()
}

// plan fetches the commit and compares it with the manifest and the disk.
func (s *run) plan(ctx context.Context) (*plan.Changes, error) {
	done := s.step("fetch")
	stats, err := s.fetch(ctx)
	done()
	if err != nil {
		return nil, err
	}
	s.r.Fetch = Fetch{Kind: string(stats.Kind), Objects: stats.Objects, Bytes: stats.Bytes}
	defer s.step("plan")()
	s.rules.Form = s.form(ctx)
	if s.desired, err = s.desire(s.t.Commit); err != nil {
		return nil, err
	}
	if err := s.differing(ctx); err != nil {
		return nil, err
	}
	was, err := s.lastPlace()
	if err != nil {
		return nil, err
	}
	s.brought = was.standby()
	return s.compute()
}

// compute compares the target with the manifest and the disk.
func (s *run) compute() (*plan.Changes, error) {
	h := s.dir.Manifest().Header()
	in := plan.Input{
		Desired: s.desired, From: h.Commit, To: s.t.Commit, Manifest: s.dir.Manifest(), State: s.dir,
		Repair: s.force || s.t.Repair, Verify: s.force,
	}
	if s.planned = s.brought; s.brought {
		in.Brought = replicated
	}
	if h.Complete && h.Rules == s.rules.Fingerprint() && !in.Repair && !s.brought && s.Store.Has(h.Commit) {
		// Where the old commit cannot be read any more the plan is a full one, which is right too and only slower.
		if previous, err := s.previous(h); err == nil {
			in.Previous = previous
		} else {
			s.Log.Debug("the last commit cannot be read; every file is compared", "commit", h.Commit.String(), "error", err)
		}
	}
	changes, err := plan.Compute(in)
	if err != nil {
		return nil, err
	}
	s.deletes = deleted(changes)
	if changes.Held == nil || changes.Held.Reason != v1alpha1.ReasonMassDeletion {
		return changes, nil
	}
	if in.AllowMassDeletion, err = s.mayDelete(); err != nil || !in.AllowMassDeletion {
		return changes, err
	}
	return plan.Compute(in) // with what else holds it
}

// source streams the wanted bytes of a change through the check of what a gateway must never be given.
func (s *run) source(changes *plan.Changes) disk.Source {
	counts := changes.Counts()
	total, n := counts.Added+counts.Modified, 0
	return func(w io.Writer, c plan.Change) error {
		check := resource.NewChecker(c.Path)
		out := &bounded{w: io.MultiWriter(w, check), left: s.MaxBlob, path: c.Path, limit: s.MaxBlob}
		if _, err := s.desired.WriteBlob(out, c.ID); err != nil {
			return err
		}
		n++
		s.Progress("stage", n, total)
		return check.Close()
	}
}

// dryRun validates what would be written, and writes nothing.
func (s *run) dryRun(ctx context.Context, changes *plan.Changes) error {
	defer s.step("validate")()
	src := s.source(changes)
	for _, c := range changes.List {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.Op != plan.Create && c.Op != plan.Update {
			continue
		}
		if err := src(io.Discard, c); err != nil {
			return err
		}
	}
	if err := s.adopted(ctx, changes); err != nil {
		return err
	}
	s.r.Phase, s.r.Reason, s.r.DryRun = Pending, v1alpha1.ReasonProgressing, true
	s.r.Message = "dry run, nothing was written: " + changes.Summary()
	if err := s.dir.Seeded(); err != nil && !s.Disk.AllowUnseeded {
		s.note("a sync would wait: %v", err)
	}
	if changes.Held != nil {
		return failure.New(changes.Held.Reason, "%s", changes.Held.Message)
	}
	return nil
}

// step names a part of the sync for Report.Steps and for progress; call what it returns when the part is done.
func (s *run) step(name string) func() {
	s.Progress(name, 0, 0)
	t := s.Now()
	return func() { s.r.Steps[name] += s.Now().Sub(t) }
}
