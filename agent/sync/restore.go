package sync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// A restore returns the gateway to a snapshot. It is a sync whose files come from the data volume or from object storage, so it needs neither
// git nor the target's commit. From then on, the commit that was the target is blocked, also after a restart. The block ends when another
// commit is the target, when a user requests a retry, or when another restore brings the target back. A new profile or a forced sync does
// not end it: what made the commit wrong for the plant may be in any file.
//
// An automatic rollback (autorollback.go) restores a snapshot in the same way.

// restoreNoteName is the name of the note with a decide.RestoreNote.
const restoreNoteName = "restored"

func saveNote(d *disk.Dir, n decide.RestoreNote) error {
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the note about a restore: %w", err)
	}
	return d.SetNote(restoreNoteName, b)
}

// restorer restores snapshots.
type restorer struct {
	in         *scope
	memory     *memory
	download   *archive.Download
	comparison *disk.Comparison
	unloaded   unloaded.Set // what the gateway has not loaded; a restore adds the snapshot
	restored   bool         // a snapshot was restored
}

// asked returns what is asked of the gateway.
func (j *restorer) asked() decide.Asked { return asked(j.in.dir, &j.in.task, j.in.Now()) }

func asked(d *disk.Dir, t *Task, now time.Time) decide.Asked {
	return decide.Asked{Gateway: t.Facts.GatewayName, Commit: t.Commit, Requests: t.Requests, Disk: d.Manifest().Header().Commit, Now: now}
}

// loadNote returns the note on the disk or, if that is damaged, the one that must replace it.
func (j *restorer) loadNote() (n decide.RestoreNote, damaged bool, err error) {
	return loadRestoreNote(j.in.dir, j.asked())
}

func loadRestoreNote(d *disk.Dir, a decide.Asked) (n decide.RestoreNote, damaged bool, err error) {
	b, err := d.Note(restoreNoteName)
	if err != nil || b == nil {
		return decide.RestoreNote{}, false, err
	}
	if json.Unmarshal(b, &n) == nil {
		return n, false, nil
	}
	return a.Damaged(), true, nil
}

// run carries out a request to restore a snapshot. It reports whether a snapshot replaces the target.
func (j *restorer) run(ctx context.Context) (bool, error) {
	was, damaged, err := j.loadNote()
	if err != nil {
		return false, err
	}
	n, remark := decide.Restore(was, j.asked())
	if remark != "" {
		j.in.note("%s", remark)
	}
	if damaged || n != was {
		if err := saveNote(j.in.dir, n); err != nil {
			return false, err
		}
	}
	if n.Snapshot != j.download.ID() { // the restore that needed it is no longer in force
		if err := j.download.Close(); err != nil {
			return false, err
		}
	}
	if n.Snapshot == "" {
		return false, nil
	}
	return j.restore(ctx, n)
}

// reachedTarget reports whether the restore brought the target back from another commit. Then the target is not blocked, and if the manifest
// is not complete, this sync compares all files. If the disk had the target's commit before, too, the restore undid a repair. Then the
// target stays blocked, so that the repair is not repeated.
func (j *restorer) reachedTarget() bool {
	h := j.in.dir.Manifest().Header()
	return j.in.from != j.in.task.Commit && describes(h, &j.in.task, j.in.rules)
}

// Restores reports whether a snapshot replaces the target of t: a sync restores it, or has restored it.
func (e *Engine) Restores(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	a := asked(d, &t, e.Now())
	n, _, err := loadRestoreNote(d, a)
	if err != nil {
		return false
	}
	n, _ = decide.Restore(n, a)
	return n.Snapshot != ""
}

// TargetOnDisk returns the target that the files on the disk belong to: their commit or, if they are those of a snapshot, the
// target that is blocked.
func (e *Engine) TargetOnDisk() (Target, error) {
	d, err := e.Open()
	if err != nil {
		return Target{}, err
	}
	h := d.Manifest().Header()
	t := Target{Ref: h.Ref, Commit: h.Commit}
	n, _, err := loadRestoreNote(d, asked(d, &Task{Target: t}, e.Now()))
	if err != nil || n.Snapshot == "" {
		return t, err
	}
	return Target{Ref: h.Ref, Commit: n.Commit, Requests: annotation.Requests{Retry: n.Retry}}, nil
}

// restore restores the snapshot of a note, unless that is done, and makes the gateway load it. It reports whether the snapshot
// replaces the target. If it does, restore always returns an error, because the gateway does not run the target.
func (j *restorer) restore(ctx context.Context, n decide.RestoreNote) (replaced bool, err error) {
	if n.Trigger != "" {
		j.in.report.AutoRollback = &audit.AutoRollback{Commit: n.Commit, Trigger: n.Trigger, Snapshot: n.Snapshot}
	}
	if !n.Done {
		j.in.task.OnWorking()
		if err := j.restoreFiles(ctx, n.Snapshot); err != nil {
			return true, fmt.Errorf("%srestore the snapshot %s: %w", n.Why(), n.Snapshot, err)
		}
		if n.Done = true; j.reachedTarget() {
			n.Snapshot = ""
		}
		if err := saveNote(j.in.dir, n); err != nil {
			return true, err
		}
		j.restored = true
		if n.Snapshot == "" {
			return false, nil
		}
	}
	if err := j.in.recordForced(); err != nil { // the restore ends a forced sync, and the next commit is not forced
		return true, err
	}
	done, state := "restored the snapshot "+n.Snapshot, "the gateway is back at the snapshot "+n.Snapshot+", commit"
	if n.Snapshot == decide.UnknownSnapshot {
		done, state = "load the files on the disk again", "the record of the last restore is damaged, so the gateway stays at commit"
	}
	in := *j.in
	in.force = false
	if j.unloaded, err = loadDiskCommit(ctx, &in, j.unloaded); err != nil {
		return true, fmt.Errorf("%s%s: %w", n.Why(), done, err)
	}
	reason := v1alpha1.ReasonRestored
	if n.Trigger != "" || n.Snapshot == decide.UnknownSnapshot {
		reason = v1alpha1.ReasonRolledBack
	}
	return true, failure.New(reason,
		"%s%s %s; %s is blocked until another commit is requested, or until it is retried: %s",
		n.Why(), state, j.in.dir.Manifest().Header().Commit.Short(), j.in.task.Commit.Short(),
		j.in.task.ask("retry", "", v1alpha1.AnnotationRetry, j.in.task.Commit.String()+", a space and the time,"))
}

// restoreFiles returns the files to what they were before the sync that made the snapshot.
func (j *restorer) restoreFiles(ctx context.Context, id string) error {
	in := j.in
	j.comparison.Wait()
	state, err := ready(ctx, in)
	if err != nil {
		return err
	}
	if in.node.Standby() {
		return failure.New(v1alpha1.ReasonNoConfigAccess, "this node of a redundant pair has no config access: restore a snapshot of the active node, whose files the pair copies")
	}
	done := in.step("plan")
	p, err := j.plan(ctx, id)
	done()
	if err != nil || p.done { // done: restored before the agent was killed
		return err
	}
	if p.local != nil { // the snapshot is on the data volume
		defer p.local.Close()
	}
	in.report.Changes = p.changes
	g := guard{in: in, state: state, memory: j.memory}
	if err := g.checkDesigners(ctx, p.changes); err != nil {
		return err
	}
	done = in.step("stage")
	staged, err := in.dir.Stage(ctx, p.changes, nil, p.source)
	done()
	if err != nil {
		return err
	}
	if p.local != nil { // a local snapshot has the manifest of its time
		staged.RestoreManifest(p.local)
	}
	a := applier{in: in, guard: g, header: &p.header, unloaded: j.unloaded}
	err = a.apply(ctx, p.changes, staged)
	if j.unloaded = a.unloaded; err != nil {
		return err
	}
	return j.download.Close() // a downloaded archive is no longer needed
}

// restorePlan is a plan that restores the files of a snapshot.
type restorePlan struct {
	changes *plan.Changes
	header  plan.Header
	source  disk.Source
	local   *disk.SnapshotRestore // nil for an archive
	done    bool                  // the last sync restored the snapshot already; see disk.SnapshotRestore.Done
}

// plan plans the restore of a snapshot from the data volume or, if it is missing or damaged there, from its archive.
func (j *restorer) plan(ctx context.Context, id string) (restorePlan, error) {
	local, err := j.in.dir.PlanRestore(ctx, id, j.in.Store)
	if err == nil && local.Done {
		return restorePlan{done: true}, nil
	}
	if err == nil {
		if len(local.Edited) > 0 {
			j.in.note("%s: a user has changed or deleted these files, and neither a snapshot nor git has the delivered version; they are restored as the user left them",
				unloaded.FirstNames(local.Edited))
		}
		return restorePlan{changes: local.Changes, header: local.Header, source: local.Source, local: local}, nil
	}
	b := bucket(j.in.conn, &j.in.task)
	if b == nil || !failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return restorePlan{}, err
	}
	a, downloadErr := j.download.Get(ctx, b, id, j.beginDownload)
	if errors.Is(downloadErr, fs.ErrNotExist) {
		return restorePlan{}, fmt.Errorf("%w; object storage does not have the snapshot", err)
	}
	if errors.Is(downloadErr, archive.ErrDownloading) {
		return restorePlan{}, downloadErr
	}
	if downloadErr != nil {
		return restorePlan{}, failure.New(failure.Reason(downloadErr, v1alpha1.ReasonSnapshotFailed), "%w; object storage: %w", err, downloadErr)
	}
	changes, err := j.in.dir.PlanReplace(ctx, a.Header, a.Files)
	if err != nil {
		return restorePlan{}, err
	}
	// An earlier attempt may have read the archive.
	if err := a.Restart(); err != nil {
		return restorePlan{}, err
	}
	j.in.note("the snapshot %s comes from object storage", id)
	return restorePlan{changes: changes, header: a.Header, source: a.Source}, nil
}

// beginDownload returns an empty file for an archive, and what bounds the archive.
func (j *restorer) beginDownload() (*os.File, archive.Limits, error) {
	file, err := j.in.dir.Scratch()
	limits := archive.Limits{
		Files:     cmp.Or(j.in.Limits.Files, plan.DefaultLimits.Files),
		PathBytes: cmp.Or(j.in.Limits.PathBytes, plan.DefaultLimits.PathBytes),
		FileBytes: j.in.MaxBlob, ArchiveBytes: syntax.SnapshotSize(j.in.task.Profile.Snapshots.MaxSize),
	}
	return file, limits, err
}
