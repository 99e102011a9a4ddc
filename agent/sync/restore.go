package sync

import (
	"context"
	"encoding/json"
	"fmt"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/failure"
)

// A restore returns the gateway to a snapshot. It is a sync whose files come from the data volume, so it needs neither git nor
// the target's commit. From then on, the commit that was the target is blocked, also after a restart, until another commit
// is the target, a user requests a retry or forces a sync, or another restore brings the target back. A new profile alone does
// not end this: what made the commit wrong for the plant may be in any file.
//
// An automatic rollback (autorollback.go) restores a snapshot in the same way.

const restoreNoteName = "restored"

func saveNote(d *disk.Dir, n decide.RestoreNote) error {
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the note about a restore: %w", err)
	}
	return d.SetNote(restoreNoteName, b)
}

// restorer restores snapshots.
type restorer struct{ *job }

// asked returns what is asked of the gateway.
func (j restorer) asked() decide.Asked {
	return decide.Asked{
		Gateway: j.t.Facts.GatewayName, Commit: j.t.Commit, Requests: j.t.Requests, Disk: j.dir.Manifest().Header().Commit, Now: j.Now(),
	}
}

// loadNote returns the note on the disk, or the one that must replace it: replaced reports that the note on the disk is damaged.
func (j restorer) loadNote() (n decide.RestoreNote, replaced bool, err error) {
	b, err := j.dir.Note(restoreNoteName)
	if err != nil || b == nil {
		return decide.RestoreNote{}, false, err
	}
	if json.Unmarshal(b, &n) == nil {
		return n, false, nil
	}
	return j.asked().Damaged(), true, nil
}

// run carries out a request to restore a snapshot. It reports whether a snapshot replaces the target.
func (j restorer) run(ctx context.Context) (bool, error) {
	if j.t.Profile.DryRun || j.resumes {
		return false, nil
	}
	n, changed, remark, err := j.updatedNote()
	if err != nil {
		return false, err
	}
	if remark != "" {
		j.note("%s", remark)
	}
	if changed {
		if err := saveNote(j.dir, n); err != nil {
			return false, err
		}
	}
	if n.Snapshot != j.download.id { // the restore that needed it has lapsed
		if err := j.download.Close(); err != nil {
			return false, err
		}
	}
	if n.Snapshot == "" {
		return false, nil
	}
	return j.restore(ctx, n)
}

// updatedNote returns the note on the disk, updated for the target. changed reports whether it differs from the one on the disk. remark is
// for the report; it says why a request is ignored.
func (j restorer) updatedNote() (n decide.RestoreNote, changed bool, remark string, err error) {
	old, replaced, err := j.loadNote()
	if err != nil {
		return old, false, "", err
	}
	n, remark = decide.Restore(old, j.asked())
	return n, replaced || n != old, remark, nil
}

// reachedTarget reports whether the restore brought the target back. If the gateway ran the target before, too, the restore undid a
// repair, and blocks the next one.
func (j restorer) reachedTarget() bool {
	h := j.dir.Manifest().Header()
	return j.from != j.t.Commit && h.Complete && j.describesTarget(h)
}

// Restores reports whether a snapshot replaces the target of t: a sync restores it, or has restored it.
func (e *Engine) Restores(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	j := &job{Engine: e, t: t, dir: d}
	n, _, _, err := restorer{j}.updatedNote()
	return err == nil && n.Snapshot != ""
}

// TargetOnDisk returns the target that the files on the disk belong to: their commit or, if they are those of a snapshot, the
// target that is blocked.
func (e *Engine) TargetOnDisk() (Target, error) {
	d, err := e.Open()
	if err != nil {
		return Target{}, err
	}
	h := d.Manifest().Header()
	j := &job{Engine: e, t: Task{Target: Target{Ref: h.Ref, Commit: h.Commit}}, dir: d}
	n, _, err := restorer{j}.loadNote()
	if err != nil || n.Snapshot == "" {
		return j.t.Target, err
	}
	return Target{Ref: h.Ref, Commit: n.Commit, Requests: annotation.Requests{Force: n.Force, Restore: n.Request, Retry: n.Retry}}, nil
}

// restore restores the snapshot of a note, unless that is done, and makes the gateway load it. It reports whether the snapshot
// replaces the target. If it does, restore always returns an error, because the gateway does not run the target.
func (j restorer) restore(ctx context.Context, n decide.RestoreNote) (replaced bool, err error) {
	if n.Trigger != "" {
		j.r.AutoRollback = &AutoRollback{Commit: n.Commit, Trigger: n.Trigger, Snapshot: n.Snapshot}
	}
	if !n.Done {
		j.t.OnWorking()
		if err := j.restoreFiles(ctx, n.Snapshot); err != nil {
			return true, fmt.Errorf("%srestore the snapshot %s: %w", n.Why(), n.Snapshot, err)
		}
		if n.Done = true; j.reachedTarget() {
			n.Snapshot = ""
		}
		if err := saveNote(j.dir, n); err != nil {
			return true, err
		}
		j.restored = true
		if n.Snapshot == "" {
			return false, nil
		}
	}
	if err := j.recordForced(); err != nil { // the restore ends a forced sync, and the next commit is not forced
		return true, err
	}
	j.force = false
	done, state := "restored the snapshot "+n.Snapshot, "the gateway is back at the snapshot "+n.Snapshot+", commit"
	if n.Snapshot == decide.UnknownSnapshot {
		done, state = "load the files on the disk again", "the record of the last restore is damaged, so the gateway stays at commit"
	}
	if err := j.loadDiskCommit(ctx); err != nil {
		return true, fmt.Errorf("%s%s: %w", n.Why(), done, err)
	}
	reason := v1alpha1.ReasonRestored
	if n.Trigger != "" || n.Snapshot == decide.UnknownSnapshot {
		reason = v1alpha1.ReasonRolledBack
	}
	return true, failure.New(reason,
		"%s%s %s; %s is blocked until another commit is requested, or until it is retried: %s",
		n.Why(), state, j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short(),
		j.t.ask("retry", "", v1alpha1.AnnotationRetry, j.t.Commit.String()+", a space and the time,"))
}

// restoreFiles returns the files to what they were before the sync that made the snapshot.
func (j restorer) restoreFiles(ctx context.Context, id string) error {
	j.ahead.Wait()
	f := &files{job: j.job}
	var err error
	if f.before, err = f.ready(ctx); err != nil {
		return err
	}
	if f.node.Standby() {
		return failure.New(v1alpha1.ReasonNoConfigAccess, "this node of a redundant pair has no config access: restore a snapshot of the active node, whose files the pair copies")
	}
	done := f.step("plan")
	p, err := j.plan(ctx, id)
	done()
	if err != nil || p.done { // done: restored before the agent was killed
		return err
	}
	if p.local != nil { // the snapshot is on the data volume
		defer p.local.Close()
	}
	f.r.Changes = p.changes
	if err := f.checkDesigners(ctx, p.changes); err != nil {
		return err
	}
	done = f.step("stage")
	staged, err := f.dir.Stage(ctx, p.changes, nil, p.source)
	done()
	if err != nil {
		return err
	}
	if p.local != nil { // it has the manifest of that time
		staged.RestoreManifest(p.local)
	}
	f.header = &p.header
	if err := f.apply(ctx, p.changes, staged); err != nil {
		return err
	}
	return j.download.Close() // a downloaded archive is no longer needed
}
