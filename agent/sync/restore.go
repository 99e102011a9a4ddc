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
// until another commit is the target or a user forces a sync. A new profile alone does not end it: what made the commit wrong
// for the plant may be in any file.

// restored is the note about the last request to restore a snapshot.
type restored struct {
	Request  string  `json:"request"`            // as in Target.Restore
	Snapshot string  `json:"snapshot,omitempty"` // "" if the request has lapsed
	Commit   plan.ID `json:"commit,omitzero"`    // the target that is held off
	Force    string  `json:"force,omitempty"`    // the force-sync request at that time
	Done     bool    `json:"done,omitempty"`
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

// restoreNow returns the note for a request about the present target.
func (j *job) restoreNow(snapshot string, done bool) restored {
	return restored{Request: j.t.Restore, Snapshot: snapshot, Commit: j.t.Commit, Force: j.t.ForceID, Done: done}
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
	n, err := j.loadRestored()
	if err != nil {
		return false, err
	}
	if j.t.Restore != "" && j.t.Restore != n.Request {
		n = j.restoreNow(v1alpha1.RestoresOn(j.t.Restore, j.t.Facts.GatewayName), false)
		if err := n.save(j.dir); err != nil {
			return false, err
		}
	}
	if n.Snapshot == "" {
		return false, nil
	}
	if n.Commit != j.t.Commit || n.Force != j.t.ForceID {
		n.Snapshot = ""
		return false, n.save(j.dir)
	}
	if !n.Done {
		if j.t.Working != nil {
			j.t.Working()
		}
		if err := (&files{job: j}).takeBack(ctx, n.Snapshot); err != nil {
			return true, fmt.Errorf("restore the snapshot %s: %w", n.Snapshot, err)
		}
		n.Done = true
		if err := n.save(j.dir); err != nil {
			return true, err
		}
	}
	return true, j.loadRestoredFiles(ctx, n)
}

// loadRestoredFiles makes the gateway load what it has not loaded yet of a snapshot. It always returns an error, because the
// gateway does not run the target.
func (j *job) loadRestoredFiles(ctx context.Context, n restored) error {
	target := j.t.Target
	h := j.dir.Manifest().Header()
	j.t.Ref, j.t.Commit = h.Ref, h.Commit
	defer func() { j.t.Target = target }()
	ctx, cancel := outlive(ctx, j.Grace)
	defer cancel()
	if err := (&loader{job: j}).load(ctx); err != nil {
		return fmt.Errorf("restored the snapshot %s: %w", n.Snapshot, err)
	}
	return failure.New(v1alpha1.ReasonRolledBack,
		"the gateway is back at the snapshot %s, commit %s; %s is held off until another commit is requested, or until a sync is forced (stoker sync NAME --force)",
		n.Snapshot, h.Commit.Short(), target.Commit.Short())
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
	b, err := f.dir.PlanTakeBack(ctx, id, f.Store)
	done()
	if err != nil {
		return err
	}
	f.r.Changes = b.Changes
	if len(b.Edited) > 0 {
		f.note("%s: neither a snapshot nor git has the version from before a user changed it; the user's version is back", some(b.Edited))
	}
	if err := f.checkDesigners(ctx, b.Changes); err != nil {
		return err
	}
	done = f.step("stage")
	staged, err := f.dir.Stage(ctx, b.Changes, nil, b.Source)
	done()
	if err != nil {
		return err
	}
	staged.TakeBack(b)
	f.header = &b.Header
	return f.apply(ctx, b.Changes, staged)
}

// snapshot makes the sync keep what it displaces, if the spec asks for it.
func (f *files) snapshot(staged *disk.Staged) error {
	s := f.t.Profile.Snapshots
	if s == nil {
		return nil
	}
	err := staged.Snapshot(disk.Snapshots{Gateway: f.t.Facts.GatewayName, Keep: int(s.RetentionCount), MaxBytes: v1alpha1.SnapshotSize(s.MaxSize)})
	if err != nil {
		return errors.Join(err, staged.Discard())
	}
	return nil
}

// snapshots returns the snapshots, oldest first. It looks for new ones only after a sync that wrote something or failed.
func (j *job) snapshots() []disk.Snapshot {
	if j.t.Profile.Snapshots == nil {
		j.kept = kept{}
		return nil
	}
	if !j.kept.known || j.kept.taken != j.taken || j.r.Wrote() || j.r.Err != nil {
		list, err := j.dir.ListSnapshots(j.kept.list...)
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
