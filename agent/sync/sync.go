// Package sync runs one sync from a target commit to a report: fetch, plan, validate, hold, apply, scan, verify. It
// knows git, the data directory and the gateway, and nothing of Kubernetes; the loops that drive it (standalone,
// follow) decide when it runs and where its report goes.
package sync

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
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
	// Admit is called before a commit is fetched that does not lie on the disk. It returns the Name that counts, or why the
	// commit must not be fetched. nil admits every commit.
	Admit   func(ctx context.Context) (name string, err error)
	Profile v1alpha1.Effective
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
	// LookWait is how long a look at drift waits for git, where it needs of it what a store has lost: once for the trees, and from
	// then on for all blobs. Default 10 s.
	LookWait time.Duration
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

	planning context.Context //nolint:containedctx // of the plan that is made, see during; nil for none
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
	if c.LookWait <= 0 {
		c.LookWait = 10 * time.Second
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
	o := e.disk()
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

// disk are the settings of the data directory.
func (e *Engine) disk() disk.Options {
	o := e.Disk
	o.Wanted, o.MaxFiles, o.MaxBlob = e.wanted, e.Limits.Files, e.MaxBlob
	return o
}

// Drift compares what is ours with what lies on the disk; full hashes every file.
func (e *Engine) Drift(ctx context.Context, full bool) (disk.Drift, error) {
	dir, err := e.Open()
	if err != nil {
		return disk.Drift{}, err
	}
	waiting, end := context.WithCancelCause(ctx)
	defer end(nil)
	var late *time.Timer
	e.asked = func() {
		e.asked = nil // once a look
		late = time.AfterFunc(e.LookWait, func() { end(context.DeadlineExceeded) })
		e.find(ctx)
	}
	defer e.Store.Hasten(waiting)()
	defer e.during(ctx)()
	defer func() {
		if e.asked = nil; late != nil {
			late.Stop()
		}
	}()
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
	return e.sync(ctx, &run{Engine: e, peers: p, t: t})
}

func (e *Engine) sync(ctx context.Context, s *run) *Report {
	r := &Report{Phase: Synced, Reason: v1alpha1.ReasonSynced, Ref: s.t.Ref, Target: s.t.Commit, Started: e.Now(), Steps: map[string]time.Duration{}}
	s.r = r
	err := s.all(ctx)
	if s.dir != nil {
		h := s.dir.Manifest().Header()
		r.Commit, r.Files.Total = h.Commit, h.Files
		s.remember(h)
		s.gone(h)
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
	return e.sync(ctx, &run{Engine: e, peers: p, t: t, resumes: true})
}
