// Package record remembers outside a gateway's data volume what was delivered to the gateway: from the SyncReport, the status of the
// GatewaySync, and this process. Every program of the gateway can write the files in .stoker on the volume, so these files alone never exempt a
// sync from a maintenance window, an approval or the validation webhook.
//
// If none of the three knows the gateway, the agent has only these files. So has the standalone agent, whose Record is nil.
package record

import (
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
)

// Record is what is known about the earlier syncs of a gateway.
type Record struct {
	// Commit is what was delivered last, and Ref its ref if it is known. Commit is zero if nothing is known.
	Ref    string
	Commit plan.ID
	// Force is the last force-sync request that is no longer new.
	Force string
}

// Delivered returns the commit that was delivered last, and its ref if it is known.
func (r *Record) Delivered() (ref string, commit plan.ID) {
	if r == nil {
		return "", plan.ID{}
	}
	return r.Ref, r.Commit
}

// Correct changes a manifest that names another commit than the record: it then names the recorded commit, and the next sync compares every
// file with git. The manifest may be that of another volume, of a sync that was interrupted before its report, or forged.
func (r *Record) Correct(d *disk.Dir) error {
	if r == nil || r.Commit.IsZero() || d.Manifest().Header().Commit == r.Commit {
		return nil
	}
	return d.CorrectCommit(r.Ref, r.Commit)
}

// Follow records what a sync has left in d, whose manifest in memory only this process changes.
func (r *Record) Follow(d *disk.Dir) {
	if r != nil {
		h := d.Manifest().Header()
		r.Ref, r.Commit = h.Ref, h.Commit
	}
}

// Forced records that a force-sync request was carried out.
func (r *Record) Forced(id string) {
	if r != nil {
		r.Force = id
	}
}

// NewForce reports whether a force-sync request is new according to the record, whatever the note on the volume says.
func (r *Record) NewForce(id string) bool { return r == nil || r.Force != id }

// Allows reports whether a new volume may get a commit outside the maintenance windows, because the gateway had it last.
func (r *Record) Allows(commit plan.ID) bool { return r == nil || r.Commit == commit }
