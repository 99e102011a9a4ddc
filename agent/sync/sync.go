// Package sync runs one sync from a target commit to a report: fetch, plan, validate, hold, apply, scan, verify. It
// knows git, the data directory and the gateway, but not Kubernetes. The loops that drive it (standalone, follow)
// decide when it runs and what happens to its report.
package sync

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
)

// Gateway is the part of the gateway's REST API that a sync needs. *ignition.Client implements it.
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
	Backup(ctx context.Context, w io.Writer) error
}

// Target identifies what to deliver. The lead writes it into the SyncTarget, the follower reads it, and reports repeat it. The
// standalone agent makes it from a file.
type Target struct {
	// Ref is the ref as requested. Name is the full name of the ref that Commit is the tip of, or "" for a bare commit;
	// some git servers do not serve a commit by its id.
	Ref, Name string
	Commit    plan.ID // zero if not known yet
	// ForceID is the value of the annotation stoker.io/force-sync. A new value forces the sync: every file is verified
	// by its hash, differences are repaired, and the gateway scans again.
	ForceID string
	// ConfirmDeletion is the commit whose mass deletion an operator has approved, or its first digits.
	ConfirmDeletion string
	// Propose is the value of the annotation stoker.io/propose if it is about this gateway. A new value requests that the
	// gateway's changes are proposed again, from today's base. No sync depends on it.
	Propose string
	// Restore asks to bring the gateway back to a snapshot: its id, and what tells the request from an earlier one. It is empty
	// if there is no request about this gateway.
	Restore string
	// Retry is the value of the annotation stoker.io/retry. A new value about Commit asks to take it again after the gateway went back from it.
	Retry string
	// WindowApproved reports that a user approved to deliver Commit although no maintenance window allows it.
	WindowApproved bool
	// Revision, Generation, RequestedAt and Term are those of the SyncTarget.
	Revision    int64
	Generation  int64
	RequestedAt string
	Term        int32
}

// Task is a target with all other inputs of a sync.
type Task struct {
	Target
	Profile v1alpha1.Effective
	// Facts are the gateway's facts for templates. The sync fills in what follows from Ref, Commit and Profile.
	Facts plan.Facts
	// Admit is called before fetching a commit that is not on the disk. It returns the Name to use, or why the commit
	// must not be fetched. nil admits every commit.
	Admit func(ctx context.Context) (name string, err error)
	// BeforeStart reports that the gateway starts only after this sync. The sync does not contact it, and need not scan
	// what it reads at its start. The report is Applied, and the next sync verifies.
	BeforeStart bool
	// Start identifies the last known start of the gateway, that of its pod, or is "". The sync reports Synced only
	// after it has seen the gateway running since.
	Start string
	// Working is called once if there is something to do. It may be nil.
	Working func()
	// Request is who requested the ref; it goes to the audit record.
	Request Request
	// Rollback reports that an operator requested to go back to this commit. No maintenance window delays that.
	Rollback bool
	// GoesBack reports that a rollout went back to this commit, which ran on every gateway: it may delete what the rollout brought.
	GoesBack bool
	// Repair restores files that were changed on the gateway (driftPolicy repair).
	Repair bool
	// Back says how the sync treats changes that are sent back to git; nil if none are.
	Back *Back
}

// Back is how a sync treats changes that were made on the gateway and are sent back to git.
type Back struct {
	// Watches reports whether changes at a path are sent back.
	Watches func(path string) bool
	// Proposed reports whether the change at a path is not settled yet: no repair undoes it.
	Proposed func(path string) bool
	// Replace is called before files are staged with the paths of changes that the sync would replace. An error holds the sync.
	Replace func(paths []string) error
}

// Connections are the git remote and the gateway. They follow the spec and may differ from sync to sync.
type Connections struct {
	Remote  *repo.Remote
	Gateway Gateway // nil: files only
	// Token reports whether there is an API token. Without one, nothing is scanned or verified.
	Token bool
	// Verifier verifies the signature of a commit before it is planned; nil if spec.git.verify demands none.
	Verifier *repo.Verifier
	// Webhook is asked before a change; nil if spec.validation names none.
	Webhook *Webhook
	// Storage is where copies of snapshots are kept; nil for the data volume alone.
	Storage archive.Store
}

// Config configures an Engine.
type Config struct {
	DataDir string
	Disk    disk.Options
	// Mounts are paths below the data directory at which the gateway has mounts that the agent must not write.
	Mounts  []string
	Store   *repo.Store
	Limits  plan.Limits
	MaxBlob int64 // size limit of a file in bytes; 0 means no limit
	Log     *slog.Logger
	Now     func() time.Time
	// Grace is how long a sync that has written files may go on after it is asked to stop, and how long unlocking may
	// take after a failed apply. Default 20 s.
	Grace time.Duration
	// LookWait bounds how long drift detection waits for git if the store has lost objects: once for the trees, and
	// then once for all blobs. Default 10 s.
	LookWait time.Duration
	// Progress is called during long steps; done and total count files, and are 0 if there is nothing to count.
	Progress func(step string, done, total int)
}

// Engine syncs one data directory. Its methods must not be called concurrently.
type Engine struct {
	Config
	dir     *disk.Dir
	taken   int // changes whenever dir is opened or closed
	cache   *desired.Cache
	last    delivered // what is on the disk
	held    hold      // the last held sync
	verdict reviewed  // the last question to the validation webhook
	seen    string    // the start whose gateway was seen running
	kept    kept      // the snapshots
	failing failing
	brought brought // the archive that is restored
	audits  audited
	past    history // the last syncs
	pair    redundancy.Memory
	// watch reports whether changes at a path are sent back to git; nil for none.
	watch func(path string) bool
	lost  *lost  // the commit on the disk if the store lost it, otherwise nil
	asked func() // called when drift detection needs a file that the store lacks

	planning context.Context //nolint:containedctx // of the plan that is made, see during; nil for none
}

// New returns an Engine. The first sync opens the data directory, because it must not be touched before the gateway has
// seeded it.
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
	return &Engine{Config: c, cache: desired.NewCache()}
}

// Close closes the data directory.
func (e *Engine) Close() error {
	err := e.brought.Close()
	if e.dir == nil {
		return err
	}
	err = errors.Join(err, e.dir.Close())
	e.dir = nil
	e.taken++
	return err
}

// Taken returns a number that changes whenever the data directory is opened or closed: results from before apply to
// another directory.
func (e *Engine) Taken() int { return e.taken }

// Open opens the data directory and recovers from a crash, if that is not done yet.
//
// If the open directory is no longer the one at its path, because a backup was restored or .stoker was removed, Open
// closes it and opens the new one.
func (e *Engine) Open() (*disk.Dir, error) {
	if e.dir != nil {
		err := e.dir.Current()
		if err == nil {
			return e.dir, nil
		}
		e.Log.Warn("reopening the data directory", "error", err)
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

// disk returns the options of the data directory.
func (e *Engine) disk() disk.Options {
	o := e.Disk
	o.Wanted, o.MaxFiles, o.MaxBlob, o.Watch = e.wanted, e.Limits.Files, e.MaxBlob, e.watches
	return o
}

// Drift compares the owned files with the disk; full hashes every file.
func (e *Engine) Drift(ctx context.Context, full bool) (disk.Drift, error) {
	dir, err := e.Open()
	if err != nil {
		return disk.Drift{}, err
	}
	waiting, end := context.WithCancelCause(ctx)
	defer end(nil)
	var late *time.Timer
	e.asked = func() {
		e.asked = nil // once per comparison
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

// Owned calls to with the owned files, sorted by path, if the data directory is open.
func (e *Engine) Owned(to func(iter.Seq2[plan.Owned, error])) {
	if e.dir != nil {
		to(e.dir.Manifest().All(""))
	}
}

// LostAndFound returns the number of bytes in lost+found and their limit, or zeros if the data directory is not open.
func (e *Engine) LostAndFound() (is, limit int64, err error) {
	if e.dir == nil {
		return 0, 0, nil
	}
	is, err = e.dir.LostAndFoundBytes()
	return is, e.dir.LostAndFoundMax(), err
}

// Sync delivers t and reports. Canceling ctx stops it before the first file of the gateway changes, but not between two
// files. Sync leaves nothing running.
func (e *Engine) Sync(ctx context.Context, c Connections, t Task) *Report {
	return e.sync(ctx, &job{Engine: e, conn: c, t: t})
}

func (e *Engine) sync(ctx context.Context, j *job) *Report {
	r := &Report{Phase: Synced, Reason: v1alpha1.ReasonSynced, Ref: j.t.Ref, Target: j.t.Commit, Started: e.Now(), Steps: map[string]time.Duration{}}
	j.r = r
	err := j.run(ctx)
	if j.dir != nil {
		h := j.dir.Manifest().Header()
		r.Commit, r.Files.Total = h.Commit, h.Files
		j.remember(h)
		if e.lost != nil && e.lost.commit != h.Commit {
			e.lost = nil
		}
	}
	if j.dir != nil && !j.readOnly {
		r.Err = err
		r.Snapshots = j.snapshots()
	}
	if j.readOnly {
		err = errors.Join(err, j.dir.Close())
	}
	r.Duration = e.Now().Sub(r.Started)
	r.settle(err)
	if j.dir != nil && !j.readOnly && !j.t.Profile.DryRun {
		j.audit(j.from)
		r.History = j.history()
	}
	return r
}

// Resume makes the gateway load what it has not loaded yet of the commit on the disk, which works without git. It
// returns nil if the rules have changed since, or there is nothing to resume.
func (e *Engine) Resume(ctx context.Context, c Connections, t Task) *Report {
	d, err := e.Open()
	if err != nil {
		return nil // the first sync reports the error
	}
	h := d.Manifest().Header()
	t.Ref, t.Name, t.Commit, t.ForceID = h.Ref, "", h.Commit, ""
	j := &job{Engine: e, conn: c, t: t, r: &Report{}, dir: d}
	if j.rules, err = j.rulesAt(t.Ref, t.Commit); err != nil || h.Commit.IsZero() || !j.filesDone() {
		return nil
	}
	return e.sync(ctx, &job{Engine: e, conn: c, t: t, resumes: true})
}
