package sync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A restore brings the gateway back to a snapshot. It is a sync whose files come from the data volume, so it needs neither
// git nor the target's commit. The commit that was the target at its request is held off afterwards, also after a restart,
// until another commit is the target, or a user requests a retry or forces a sync. A new profile alone does not end it: what
// made the commit wrong for the plant may be in any file.
//
// A gateway that goes back by itself (baseline.go) restores a snapshot in the same way, with a note of its own accord.

// restored is the note about the last restore.
type restored struct {
	Request  string  `json:"request"`            // as in Target.Restore
	Snapshot string  `json:"snapshot,omitempty"` // "" if the restore has lapsed
	Commit   plan.ID `json:"commit,omitzero"`    // the target that is held off
	Force    string  `json:"force,omitempty"`    // the force-sync request at that time
	Retry    string  `json:"retry,omitempty"`    // the request to retry at that time
	Done     bool    `json:"done,omitempty"`
	// Trigger is what made the gateway go back by itself, and Why the error; "" for a request.
	Trigger v1alpha1.AutoRollbackTrigger `json:"trigger,omitempty"`
	Why     string                       `json:"why,omitempty"`
	// Tried is the last commit that the gateway went back from by itself.
	Tried plan.ID `json:"tried,omitzero"`
}

const restoredNote = "restored"

func (j *job) loadRestored() (restored, error) {
	b, err := j.dir.Note(restoredNote)
	if err != nil || b == nil {
		return restored{}, err
	}
	var n restored
	if json.Unmarshal(b, &n) == nil {
		return n, nil
	}
	// It may have held off the target. A target whose files are on the disk was not.
	if h := j.dir.Manifest().Header(); h.Commit == j.t.Commit {
		return restored{Request: j.t.Restore}, nil
	}
	n = j.restoreNow("unknown", true)
	return n, n.save(j.dir)
}

// restoreNow returns the note for a restore in place of the present target.
func (j *job) restoreNow(snapshot string, done bool) restored {
	return restored{Request: j.t.Restore, Snapshot: snapshot, Commit: j.t.Commit, Force: j.t.ForceID, Retry: j.t.Retry, Done: done}
}

// lapsed reports whether the target is no longer held off.
func (n restored) lapsed(t Target) bool {
	return n.Commit != t.Commit || n.Force != t.ForceID || n.Retry != t.Retry && v1alpha1.Retries(t.Retry, t.Commit.String())
}

func (n restored) save(d *disk.Dir) error {
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the note about a restore: %w", err)
	}
	return d.SetNote(restoredNote, b)
}

// restore carries out a request to restore a snapshot, and reports whether one stands in for the target.
func (j *job) restore(ctx context.Context) (bool, error) {
	if j.t.Profile.DryRun || j.resumes {
		return false, nil
	}
	n, changed, err := j.standIn()
	if err != nil {
		return false, err
	}
	if changed {
		if err := n.save(j.dir); err != nil {
			return false, err
		}
	}
	if n.Snapshot == "" {
		return false, nil
	}
	return true, j.takeBack(ctx, n)
}

// standIn returns the note about the restore that stands in for the target, and whether it differs from the one on the disk. Without a
// snapshot nothing stands in for the target.
func (j *job) standIn() (n restored, changed bool, err error) {
	if n, err = j.loadRestored(); err != nil {
		return n, false, err
	}
	if j.t.Restore != "" && j.t.Restore != n.Request {
		tried := n.Tried
		n, changed = j.restoreNow(v1alpha1.RestoresOn(j.t.Restore, j.t.Facts.GatewayName), false), true
		n.Tried = tried
	}
	switch {
	case n.Snapshot == "":
		return n, changed, nil
	case n.lapsed(j.t.Target):
	case !n.Done && j.stale():
		j.note("the request to restore %s is older than this data volume; ask again to restore it", n.Snapshot)
	default:
		return n, changed, nil
	}
	n.Snapshot = ""
	return n, true, nil
}

// Restores reports whether a snapshot stands in for the target of t, so that a sync restores it, or has restored it, and does not bring the
// target.
func (e *Engine) Restores(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	j := &job{Engine: e, t: t, r: &Report{}, dir: d, from: d.Manifest().Header().Commit}
	n, _, err := j.standIn()
	return err == nil && n.Snapshot != ""
}

// Has reports whether the files of t are on the disk, as its rules want them.
func (e *Engine) Has(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	j := &job{Engine: e, t: t, r: &Report{}, dir: d}
	j.rules, err = j.rulesAt(t.Ref, t.Commit)
	return err == nil && j.filesDone()
}

// Kept returns the target that the files on the disk stand for: their commit or, if they are those of a snapshot, the one that is held off.
func (e *Engine) Kept() (Target, error) {
	d, err := e.Open()
	if err != nil {
		return Target{}, err
	}
	h := d.Manifest().Header()
	j := &job{Engine: e, t: Task{Target: Target{Ref: h.Ref, Commit: h.Commit}}, dir: d}
	n, err := j.loadRestored()
	if err != nil || n.Snapshot == "" {
		return j.t.Target, err
	}
	return Target{Ref: h.Ref, Commit: n.Commit, ForceID: n.Force, Restore: n.Request, Retry: n.Retry}, nil
}

// takeBack restores the snapshot of a note, unless that is done, and makes the gateway load it. It always returns an error, because the
// gateway does not run the target.
func (j *job) takeBack(ctx context.Context, n restored) error {
	if n.Trigger != "" {
		j.r.AutoRollback = &AutoRollback{Commit: n.Commit, Trigger: n.Trigger, Snapshot: n.Snapshot}
	}
	if !n.Done {
		if j.t.Working != nil {
			j.t.Working()
		}
		if err := (&files{job: j}).takeBack(ctx, n.Snapshot); err != nil {
			return fmt.Errorf("%srestore the snapshot %s: %w", n.because(), n.Snapshot, err)
		}
		n.Done = true
		if err := n.save(j.dir); err != nil {
			return err
		}
	}
	return j.loadRestoredFiles(ctx, n)
}

// because returns the beginning of a message: why the gateway went back by itself.
func (n restored) because() string {
	if n.Trigger == "" {
		return ""
	}
	return fmt.Sprintf("went back by itself (%s: %s); ", n.Trigger, n.Why)
}

// loadRestoredFiles makes the gateway load what it has not loaded yet of a snapshot.
func (j *job) loadRestoredFiles(ctx context.Context, n restored) error {
	if err := j.loadCurrent(ctx); err != nil {
		return fmt.Errorf("%srestored the snapshot %s: %w", n.because(), n.Snapshot, err)
	}
	return failure.New(v1alpha1.ReasonRolledBack,
		"%sthe gateway is back at the snapshot %s, commit %s; %s is held off until another commit is requested, or until it is retried (stoker retry NAME)",
		n.because(), n.Snapshot, j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short())
}

// loadCurrent makes the gateway load the commit on the disk instead of the target.
func (j *job) loadCurrent(ctx context.Context) error {
	target, h := j.t.Target, j.dir.Manifest().Header()
	j.t.Ref, j.t.Commit = h.Ref, h.Commit
	defer func() { j.t.Target = target }()
	ctx, cancel := outlive(ctx, j.Grace)
	defer cancel()
	return (&loader{job: j}).load(ctx)
}

// takeBack brings the files back to what they were before the sync of a snapshot.
func (f *files) takeBack(ctx context.Context, id string) error {
	var err error
	if f.before, err = f.ready(ctx); err != nil {
		return err
	}
	if f.node.Standby() {
		return failure.New(v1alpha1.ReasonNoConfigAccess, "this node of a redundant pair has no config access: restore a snapshot of the active node, whose files the pair copies")
	}
	done := f.step("plan")
	b, err := f.planRestore(ctx, id)
	done()
	if err != nil {
		return err
	}
	if b.done {
		return nil
	}
	if b.local != nil {
		defer b.local.Close()
	}
	f.r.Changes = b.changes
	if err := f.checkDesigners(ctx, b.changes); err != nil {
		return err
	}
	done = f.step("stage")
	staged, err := f.dir.Stage(ctx, b.changes, nil, b.source)
	done()
	if err != nil {
		return err
	}
	if b.local != nil {
		staged.RestoreManifest(b.local)
	}
	f.header = &b.header
	if err := f.apply(ctx, b.changes, staged); err != nil {
		return err
	}
	return f.brought.Close()
}

// snapshot makes the sync keep what it displaces, and backs up the gateway, if the spec asks for that. It returns the ids of the snapshot
// and of the backup; "" if there is none.
func (f *files) snapshot(ctx context.Context, staged *disk.Staged) (id, backup string, err error) {
	switch {
	case f.t.Profile.Snapshots == nil && staged.Moves():
		err = f.dir.DropBackups()
	case f.t.Profile.Snapshots != nil:
		if err = staged.Snapshot(snapshotLimits(&f.t)); err == nil {
			backup, err = f.backUp(ctx, staged)
		}
	}
	if err != nil {
		return "", "", errors.Join(err, staged.Discard())
	}
	return staged.SnapshotID(), backup, nil
}

func snapshotLimits(t *Task) disk.Snapshots {
	s := t.Profile.Snapshots
	return disk.Snapshots{Gateway: t.Facts.GatewayName, Keep: int(s.RetentionCount), MaxBytes: v1alpha1.SnapshotSize(s.MaxSize)}
}

// snapshots returns the snapshots, oldest first. It looks for new ones only after a sync that wrote something or failed.
func (j *job) snapshots() []disk.Snapshot {
	if j.t.Profile.Snapshots == nil {
		j.kept = kept{}
		return nil
	}
	if !j.kept.known || j.kept.taken != j.taken || j.r.Wrote() || j.r.Err != nil {
		list, err := j.dir.ListSnapshots()
		if err != nil {
			j.Log.Warn("snapshots unreadable", "error", err)
			return nil
		}
		j.kept = kept{known: true, taken: j.taken, list: list}
	}
	return j.kept.list
}

// kept are the snapshots of an open data directory.
type kept struct {
	known bool
	taken int // see Engine.Taken
	list  []disk.Snapshot
}
