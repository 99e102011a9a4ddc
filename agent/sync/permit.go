package sync

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

const heldNote = "held"

// maxTold bounds the list of reported paths: with 21 characters each it fits into a note.
const maxTold = 1 << 15

// held is a reported mass deletion: its commit, its files, and the force-sync request that existed at the time. Only a
// later request approves it: an older one, which waited for a broken commit to be fixed, was not meant for the
// deletions of the commit after it. held is dropped when another commit is wanted, so that a request for one commit
// does not approve another. Nor does an approval cover what a later plan of the same commit deletes in addition, for
// example after months, with more projects, or with a directory that is back.
type held struct {
	Commit  plan.ID  `json:"commit"`
	Deletes string   `json:"deletes"` // hash of the paths; "" in notes of versions without it
	Told    []uint64 `json:"told,omitempty"`
	Force   string   `json:"force"`
}

// heldBy returns the description of what a plan deletes. Told has a sorted short hash of each path, or nothing if there
// are more than maxTold.
func heldBy(changes *plan.Changes) held {
	h := held{Commit: changes.To}
	all := sha256.New()
	for path := range deletions(changes) {
		_, _ = fmt.Fprintf(all, "%q\n", path) // a hash never fails
		if len(h.Told) <= maxTold {
			h.Told = append(h.Told, hashOf(path))
		}
	}
	if len(h.Told) > maxTold {
		h.Told = nil
	}
	slices.Sort(h.Told)
	h.Deletes = hex.EncodeToString(all.Sum(nil))
	return h
}

// covers reports whether everything that a plan deletes was reported. It may delete less: an operator or the other node
// of a pair may have deleted some files. Without Told the paths must be exactly the same.
func (h held) covers(changes *plan.Changes) bool {
	if len(h.Told) == 0 {
		return h.Deletes == heldBy(changes).Deletes
	}
	for path := range deletions(changes) {
		if _, ok := slices.BinarySearch(h.Told, hashOf(path)); !ok {
			return false
		}
	}
	return true
}

func hashOf(path string) uint64 {
	sum := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(sum[:])
}

// deletions yields the paths that a plan deletes.
func deletions(changes *plan.Changes) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range changes.List {
			if c := &changes.List[i]; c.Op == plan.Delete && !yield(c.Path) {
				return
			}
		}
	}
}

// rememberHeld records a reported mass deletion. The latest report replaces the one before even if it is smaller,
// because it is the one that an operator approves.
func (j *job) rememberHeld(h *plan.Held) error {
	if h.Reason != v1alpha1.ReasonMassDeletion {
		return nil
	}
	now := heldBy(j.r.Changes) // as reported, including what the other node of a pair deletes
	was, err := j.lastHeld()
	if err != nil || was.Commit == now.Commit && was.Deletes == now.Deletes {
		return err
	}
	now.Force = j.t.ForceID
	b, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("encode what is held: %w", err)
	}
	return j.dir.SetNote(heldNote, b)
}

// forgetHeld drops the reported mass deletion if another commit is wanted now: a force-sync request may be meant for
// that one. If the old commit comes back, it is reported again. A resuming sync does not know the wanted commit and
// keeps the report.
func (j *job) forgetHeld() error {
	if j.t.Profile.DryRun || j.resumes {
		return nil
	}
	was, err := j.lastHeld()
	if err != nil || was.Commit == j.t.Commit {
		return err
	}
	return j.dir.SetNote(heldNote, nil)
}

// mayDelete returns the function that reports whether a mass deletion was reported and then approved, or nil if none
// was.
func (j *job) mayDelete() (func(*plan.Changes) bool, error) {
	if !j.force {
		return nil, nil
	}
	was, err := j.lastHeld()
	if err != nil || was.Commit != j.t.Commit || was.Deletes == "" || was.Force == j.t.ForceID {
		return nil, err
	}
	return was.covers, nil
}

func (j *job) lastHeld() (held, error) {
	var h held
	b, err := j.dir.Note(heldNote)
	if err == nil && b != nil && json.Unmarshal(b, &h) != nil {
		h = held{} // a damaged file of our own approves nothing
	}
	return h, err
}
