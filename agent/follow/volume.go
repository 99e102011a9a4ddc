package follow

import (
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// volume tells which commit the last sync left in the data directory.
type volume struct{ engine *sync.Engine }

// commit returns the commit on the disk, or the zero ID before the first sync.
func (v volume) commit() plan.ID {
	d, err := v.engine.Open()
	if err != nil {
		return plan.ID{}
	}
	return d.Manifest().Header().Commit
}

// holds reports whether the whole commit is on the disk, synced from this ref; "" means any ref.
func (v volume) holds(ref string, commit plan.ID) bool {
	d, err := v.engine.Open()
	if err != nil {
		return false
	}
	h := d.Manifest().Header()
	return h.Complete && !commit.IsZero() && h.Commit == commit && (ref == "" || ref == h.Ref)
}

// ran reports whether a commit is or was completely on the disk, by the manifest, which no user of the API server can write.
func (v volume) ran(commit plan.ID) bool {
	d, err := v.engine.Open()
	return err == nil && d.Manifest().Header().Ran(commit)
}

// earlier returns the last commits that were completely on the disk before the one that is there now.
func (v volume) earlier() []plan.ID {
	d, err := v.engine.Open()
	if err != nil {
		return nil
	}
	return d.Manifest().Header().Earlier
}

// incomplete reports whether the volume lacks files of a commit that was delivered. It returns false for a volume with another commit, which
// was synced after the last report or is another volume. It also returns false if a snapshot is in place of the target, because to sync the
// commit of the snapshot would end the restore.
func (v volume) incomplete(commit plan.ID) bool {
	d, err := v.engine.Open()
	if err != nil {
		return false
	}
	h := d.Manifest().Header()
	if h.Commit != commit || h.Complete || h.Rules == "" && h.Files > 0 {
		return false
	}
	t, err := v.engine.TargetOnDisk()
	return err == nil && t.Commit == commit
}

// isEmpty reports whether no sync has written a file.
func (v volume) isEmpty() bool {
	d, err := v.engine.Open()
	return err == nil && d.Manifest().Header().Files == 0
}

// unsynced reports whether no sync was ever completed on this gateway, as far as is known: see package record.
func (v volume) unsynced() bool {
	if _, commit := v.engine.Record.Delivered(); !commit.IsZero() {
		return false
	}
	d, err := v.engine.Open()
	if err != nil {
		return failure.Is(err, v1alpha1.ReasonWaitingForGateway)
	}
	return d.Manifest().Header().Commit.IsZero()
}
