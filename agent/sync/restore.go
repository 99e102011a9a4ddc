package sync

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
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

// restoreNote is the note in the data directory about the last request to restore a snapshot, or the last automatic rollback.
// It is in one of three states:
//
//	Snapshot  Done
//	named     false  the snapshot replaces the target, and its files are still to be written
//	named     true   its files are written, and the target is blocked
//	""        -      nothing replaces the target: the request is not for this gateway, or has lapsed
//
// In the last state, Request still counts: the same request is not carried out again.
type restoreNote struct {
	Request  string  `json:"request"` // as in Target.Restore
	Snapshot string  `json:"snapshot,omitempty"`
	Commit   plan.ID `json:"commit,omitzero"` // the target that is blocked
	Force    string  `json:"force,omitempty"` // the force-sync request at that time
	Retry    string  `json:"retry,omitempty"` // the request to retry at that time
	Done     bool    `json:"done,omitempty"`
	// Trigger and Cause say why the gateway rolled back automatically; "" for a requested restore.
	Trigger v1alpha1.AutoRollbackTrigger `json:"trigger,omitempty"`
	Cause   string                       `json:"cause,omitempty"`
	// RolledBackFrom is the commit of the last automatic rollback. It is kept in every state, unless the note is damaged.
	RolledBackFrom plan.ID `json:"rolledBackFrom,omitzero"`
}

const (
	restoreNoteName = "restored"
	// unknownSnapshot is the Snapshot of the note that replaces a damaged one. No snapshot has this name.
	unknownSnapshot = "unknown"
)

// lapsed reports whether the target t is not, or no longer, the commit that is blocked.
func (n restoreNote) lapsed(t Target) bool {
	return n.Commit != t.Commit || n.Force != t.Force || n.Retry != t.Retry && annotation.Retries(t.Retry, t.Commit.String())
}

func (n restoreNote) save(d *disk.Dir) error {
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the note about a restore: %w", err)
	}
	return d.SetNote(restoreNoteName, b)
}

// messagePrefix returns the beginning of a message: why the gateway rolled back automatically, or "".
func (n restoreNote) messagePrefix() string {
	if n.Trigger == "" {
		return ""
	}
	return fmt.Sprintf("rolled back automatically (%s: %s); ", n.Trigger, n.Cause)
}

// restorer restores snapshots.
type restorer struct{ *job }

// loadNote returns the note on the disk, or the one that must replace it: replaced reports that the note on the disk is
// damaged. It may have blocked the target, so the target is then blocked unless its files are on the disk.
func (j restorer) loadNote() (n restoreNote, replaced bool, err error) {
	b, err := j.dir.Note(restoreNoteName)
	if err != nil || b == nil {
		return restoreNote{}, false, err
	}
	if json.Unmarshal(b, &n) == nil {
		return n, false, nil
	}
	if j.dir.Manifest().Header().Commit == j.t.Commit {
		return restoreNote{Request: j.t.Restore}, true, nil
	}
	n = j.newNote(unknownSnapshot)
	n.Done = true
	return n, true, nil
}

// newNote returns a note that a snapshot replaces the current target.
func (j restorer) newNote(snapshot string) restoreNote {
	return restoreNote{Request: j.t.Restore, Snapshot: snapshot, Commit: j.t.Commit, Force: j.t.Force, Retry: j.t.Retry}
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
		if err := n.save(j.dir); err != nil {
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

// updatedNote returns the note on the disk, updated for the target: it takes over a new request, and drops the snapshot of one
// that has lapsed. changed reports whether the note differs from the one on the disk. remark is for the report; it says why a
// request is ignored.
func (j restorer) updatedNote() (n restoreNote, changed bool, remark string, err error) {
	if n, changed, err = j.loadNote(); err != nil {
		return n, false, "", err
	}
	if j.t.Restore != "" && j.t.Restore != n.Request {
		rolledBackFrom := n.RolledBackFrom
		n, changed = j.newNote(annotation.RestoresOn(j.t.Restore, j.t.Facts.GatewayName)), true
		n.RolledBackFrom = rolledBackFrom
	}
	switch {
	case n.Snapshot == "": // nothing to drop
	case n.lapsed(j.t.Target):
		n.Snapshot, changed = "", true
	case !n.Done && j.requestOutdated():
		remark = fmt.Sprintf("the request to restore %s is older than this data volume; ask again to restore it", n.Snapshot)
		n.Snapshot, changed = "", true
	}
	return n, changed, remark, nil
}

// reachedTarget reports whether the restore brought the target back. If the gateway ran the target before, too, the restore undid a
// repair, and blocks the next one.
func (j restorer) reachedTarget() bool {
	h := j.dir.Manifest().Header()
	return j.from != j.t.Commit && h.Complete && j.describesTarget(h)
}

// maxRequestAge is the age from which a new data volume ignores a request to restore a snapshot.
const maxRequestAge = 24 * time.Hour

// requestOutdated reports whether the request to restore a snapshot was probably carried out on an earlier data volume,
// because this one is new and the request is not. A request without a time is part of the spec, and never outdated.
func (j restorer) requestOutdated() bool {
	_, requestedAt, _ := strings.Cut(j.t.Restore, " ")
	t, err := time.Parse(time.RFC3339, requestedAt)
	return err == nil && j.from.IsZero() && j.Now().Sub(t) > maxRequestAge
}

// Restores reports whether a snapshot replaces the target of t: a sync restores it, or has restored it.
func (e *Engine) Restores(t Task) bool {
	d, err := e.Open()
	if err != nil {
		return false
	}
	j := &job{Engine: e, t: t, dir: d, from: d.Manifest().Header().Commit}
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
func (j restorer) restore(ctx context.Context, n restoreNote) (replaced bool, err error) {
	if n.Trigger != "" {
		j.r.AutoRollback = &AutoRollback{Commit: n.Commit, Trigger: n.Trigger, Snapshot: n.Snapshot}
	}
	if !n.Done {
		j.t.OnWorking()
		if err := j.restoreFiles(ctx, n.Snapshot); err != nil {
			return true, fmt.Errorf("%srestore the snapshot %s: %w", n.messagePrefix(), n.Snapshot, err)
		}
		if n.Done = true; j.reachedTarget() {
			n.Snapshot = ""
		}
		if err := n.save(j.dir); err != nil {
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
	if n.Snapshot == unknownSnapshot {
		done, state = "load the files on the disk again", "the record of the last restore is damaged, so the gateway stays at commit"
	}
	if err := j.loadDiskCommit(ctx); err != nil {
		return true, fmt.Errorf("%s%s: %w", n.messagePrefix(), done, err)
	}
	reason := v1alpha1.ReasonRestored
	if n.Trigger != "" || n.Snapshot == unknownSnapshot {
		reason = v1alpha1.ReasonRolledBack
	}
	return true, failure.New(reason,
		"%s%s %s; %s is blocked until another commit is requested, or until it is retried: %s",
		n.messagePrefix(), state, j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short(),
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
