// Package sync runs one sync from a target commit to a report: fetch, plan, stage, apply, scan, verify. It uses git, the data
// directory, the gateway, object storage and the validation webhook, but not Kubernetes. Its caller (agent/loop) decides when a
// sync runs and what happens to its report.
package sync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"strings"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/references"
	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
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
	Lock(ctx context.Context, kind ignition.Kind, hold time.Duration) error
	Scan(ctx context.Context, kind ignition.Kind) (ignition.ScanResult, error)
	Designers(ctx context.Context) ([]ignition.Designer, error)
	Modules(ctx context.Context) ([]string, error)
	PendingRestarts(ctx context.Context) ([]string, error)
	TrialExpired(ctx context.Context) (bool, error)
	Platform(ctx context.Context) (ignition.Platform, error)
	ScanByModule(ctx context.Context, force bool) (ignition.ModuleScan, error)
	Backup(ctx context.Context, w io.Writer) error
}

// Target identifies what to deliver. The lead writes it into the SyncTarget, the follower reads it, and reports repeat it. The
// standalone agent makes it from a file.
type Target struct {
	// Ref is the ref as requested. Name is the full name of the ref that Commit is the tip of, or "" for a bare commit.
	// The agent fetches Name if the git server refuses to serve Commit by its id.
	Ref, Name string
	Commit    plan.ID // zero if not known yet
	// Requests are what users ask of this gateway.
	annotation.Requests
	// Revision, Generation, RequestedAt and Term are those of the SyncTarget.
	Revision    int64
	Generation  int64
	RequestedAt string
	Term        int32
}

// Task is a target with all other inputs of a sync.
type Task struct {
	Target
	Profile effective.Settings
	// Facts are the gateway's facts for templates. The sync fills in what follows from Ref, Commit and Profile.
	Facts plan.Facts
	// File is the path of the GatewaySync of a standalone agent. It is empty in a cluster.
	File string
	// Admit is called before fetching a commit, unless a sync wrote this commit last, and the ref is the same or no file depends on it.
	// It returns the Name to use, or why the commit must not be fetched. nil admits every commit.
	Admit func(ctx context.Context) (name string, err error)
	// Stop is called before files of the gateway change. An error ends the sync without a change. nil stops nothing.
	Stop func(ctx context.Context) error
	// BeforeStart reports that the gateway starts only after this sync. The sync does not contact the gateway, which reads the files
	// when it starts. With an API key, the report is Applied, and the next sync verifies.
	BeforeStart bool
	// NewVolume reports that Ignition had not seeded the volume yet when the pod started.
	NewVolume bool
	// RestoreOnly reports that the sync may only restore a snapshot.
	RestoreOnly bool
	// Start identifies the last known start of the gateway or, if that is unknown, of its pod. The sync reports Synced
	// only if the gateway was seen running since. "" makes no such demand, nor does a gateway without an API key.
	Start string
	// OnWorking is called when the sync has something to do. It may be nil.
	OnWorking func()
	// Request is who requested the ref; it goes to the audit record.
	Request audit.Request
	// RequestedRollback reports that an operator requested a rollback to Commit. No maintenance window and no validation webhook delays it.
	RequestedRollback bool
	// RolloutRollback reports that a failed rollout returned to Commit, which ran on every gateway. The sync may delete all
	// that the rollout added.
	RolloutRollback bool
	// Repair restores files that were changed on the gateway (driftPolicy repair).
	Repair bool
	// Proposals says how the sync treats changes that are proposed to git; nil if none are.
	Proposals *Proposals
}

// ask says how a user makes a request: by a command in a cluster, and by an annotation in the file of a standalone agent.
func (t *Task) ask(command, flag, annotation, value string) string {
	if t.File == "" {
		return strings.TrimSpace(fmt.Sprintf("stoker %s %s %s", command, t.Facts.CRName, flag))
	}
	return fmt.Sprintf("set the annotation %s to %s in %s", annotation, value, t.File)
}

// Connections are the git remote and the gateway. They follow the spec and may differ from sync to sync.
type Connections struct {
	Remote  *repo.Remote
	Gateway Gateway // nil: files only
	// HasAPIToken reports whether Gateway authenticates. If not, nothing is verified, and only a gateway before 8.3 scans.
	HasAPIToken bool
	// Verifier verifies the signature of a commit before it is planned; nil if spec.git.verify demands none.
	Verifier *repo.Verifier
	// Webhook allows or denies each change; nil if spec.validation names none.
	Webhook *review.Webhook
	// Storage has copies of snapshots; nil if snapshots stay on the data volume alone.
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
	// DriftFetchTimeout bounds how long drift detection and proposals wait for git if the store has lost objects. For trees it doubles after a
	// timeout, up to three times. Default 10 s.
	DriftFetchTimeout time.Duration
	// Progress is called during long steps; done and total count files, and are 0 if there is nothing to count.
	Progress func(step string, done, total int)
	// Once reports that the process ends after one sync, so that it prepares nothing for the next one.
	Once bool
	// Record is what is known about earlier syncs without the data directory; see SetRecord.
	Record *record.Record
}

// Engine syncs one data directory. Its methods must not be called concurrently.
type Engine struct {
	Config
	dir           *disk.Dir  // nil until it is opened
	dirGeneration int        // changes whenever dir is opened or closed
	records       dirRecords // read from dir
	trees         trees
	memory        memory
	references    references.Keeper
	seenStart     string // see gateway.seenStart
	lastFailure   auditedFailure
	failures      decide.Failures
	download      archive.Download // kept until it is restored
	pairMemory    redundancy.Memory
	comparison    *disk.Comparison // see StartCompare

	watched func(path string) bool // see Watch
}

// dirRecords are what the Engine has read from the open data directory.
type dirRecords struct {
	snapshots     []disk.Snapshot
	snapshotsRead bool
	history       audit.History
	recovered     *disk.Recovery // the last one that recordRecovery has handled
	unloaded      *unloaded.Note
}

// New returns an Engine. It does not open the data directory, which the gateway may not have seeded yet.
func New(c Config) *Engine {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Grace <= 0 {
		c.Grace = 20 * time.Second
	}
	if c.DriftFetchTimeout <= 0 {
		c.DriftFetchTimeout = 10 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
	e := &Engine{Config: c}
	e.trees = trees{config: &e.Config, cache: desired.NewCache()}
	return e
}

// Close closes the data directory and drops the download of a snapshot. The Engine can be used again: its methods open the directory.
func (e *Engine) Close() error {
	e.comparison.Wait()
	err := e.download.Close()
	if e.dir == nil {
		return err
	}
	err = errors.Join(err, e.dir.Close())
	e.dir = nil
	e.dirGeneration++
	return err
}

// DirGeneration returns a number that changes whenever the data directory is opened or closed. Results of another
// generation are stale: they may describe another directory.
func (e *Engine) DirGeneration() int { return e.dirGeneration }

// Open opens the data directory and recovers from a crash, if that is not done yet. The Engine closes the Dir.
//
// If the open directory is no longer the one at its path, because a backup was restored or .stoker was removed, Open
// closes it and opens the new one.
func (e *Engine) Open() (*disk.Dir, error) {
	if e.dir != nil {
		err := e.dir.CheckOpen()
		if err == nil {
			return e.dir, nil
		}
		e.Log.Warn("reopening the data directory", "error", err)
		if err := e.Close(); err != nil {
			return nil, err
		}
	}
	d, err := disk.Open(e.DataDir, e.diskOptions())
	if err != nil {
		return nil, err
	}
	if err := e.Record.Correct(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	e.dir, e.records = d, dirRecords{unloaded: unloaded.NewNote(d, e.records.unloaded)}
	e.dirGeneration++
	if r := d.Recovered(); r != nil {
		e.Log.Warn("settled an interrupted sync", "commit", r.Commit.String(), "finished", r.Forward, "files", len(r.Paths), "saved", len(r.Saved))
	}
	return d, nil
}

// SetRecord sets what is known about earlier syncs, and closes the data directory. From then on, Open corrects a manifest that names another
// commit than r.
func (e *Engine) SetRecord(r record.Record) error {
	e.Record = &r
	return e.Close()
}

func (e *Engine) diskOptions() disk.Options {
	o := e.Disk
	o.Wanted, o.MaxFiles, o.MaxBlob, o.Watch = e.trees.writeWanted, e.Limits.Files, e.MaxBlob, e.isWatched
	return o
}

// StartCompare starts to compare the owned files with the manifest. The next sync waits for the result before it changes a file.
func (e *Engine) StartCompare(ctx context.Context) {
	e.comparison.Wait()
	if e.comparison = nil; e.dir != nil {
		e.comparison = e.dir.StartCompare(ctx)
	}
}

// Unchanged returns the result of StartCompare. If not ok, Drift has to compare the files.
func (e *Engine) Unchanged() (result disk.Drift, ok bool) {
	c := e.comparison
	e.comparison = nil
	return c.Unchanged(e.dir)
}

// Drift compares the owned files with the manifest; see disk.Dir.Drift. If full is set, it hashes every file.
//
// The comparison reads git's version of files that look different. If the store lacks one, Drift tries once to fetch the trees of the commit
// on the disk. From then on, the store may fetch blobs until DriftFetchTimeout is over.
func (e *Engine) Drift(ctx context.Context, full bool) (disk.Drift, error) {
	dir, err := e.Open()
	if err != nil {
		return disk.Drift{}, err
	}
	defer e.trees.fetchForDrift(ctx)()
	defer e.trees.limit(ctx)()
	return dir.Drift(ctx, full)
}

// Owned returns the owned files, sorted by path, or nil if the data directory is not open.
func (e *Engine) Owned() iter.Seq2[plan.Owned, error] {
	if e.dir == nil {
		return nil
	}
	return e.dir.Manifest().All("")
}

// LostAndFound returns the number of bytes in lost+found and their limit, or zeros if the data directory is not open.
func (e *Engine) LostAndFound() (used, limit int64, err error) {
	if e.dir == nil {
		return 0, 0, nil
	}
	used, err = e.dir.LostAndFoundBytes()
	return used, e.dir.LostAndFoundMax(), err
}

// Sync delivers t and reports. Canceling ctx stops it before the first file of the gateway changes, but not between two
// files. Sync leaves nothing running but the download of a snapshot, which Close ends.
func (e *Engine) Sync(ctx context.Context, c Connections, t Task) *Report {
	return e.job(c, t).report(ctx)
}

func (e *Engine) job(c Connections, t Task) *job {
	return &job{engine: e, in: &scope{Config: &e.Config, conn: c, task: t, trees: &e.trees}}
}

// Resume makes the gateway load what it has not loaded yet of the commit on the disk, which works without git. It returns nil unless Has
// reports that the commit is there, completely, and under the same rules.
func (e *Engine) Resume(ctx context.Context, c Connections, t Task) *Report {
	d, err := e.Open()
	if err != nil {
		return nil // the first sync reports the error
	}
	h := d.Manifest().Header()
	t.Ref, t.Name, t.Commit, t.Force = h.Ref, "", h.Commit, ""
	if h.Commit.IsZero() || !e.Has(t) {
		return nil
	}
	j := e.job(c, t)
	j.resumes = true
	return j.report(ctx)
}

// Has reports whether, by the manifest, the files of t are on the disk as its rules want them. It returns false for a repair, and if the
// data directory cannot be opened.
func (e *Engine) Has(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	rules, err := rulesAt(&e.Config, &t, t.Ref, t.Commit)
	h := d.Manifest().Header()
	return err == nil && describes(h, &t, rules) && h.Complete && !t.Repair
}
