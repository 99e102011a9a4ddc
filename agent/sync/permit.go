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

// maxTold bounds the list of what was told: with 21 characters each it fits into a note.
const maxTold = 1 << 15

// held is the mass deletion that somebody was told of: at which commit, of which files, and which request to force a sync
// stood there already. Only a request that came later speaks of it: an older one, which waits for a broken commit to be
// mended, was never meant as leave to delete what a commit after that deletes. Nor is one that was made while another commit
// was wanted, wherefore what was told is forgotten then. Nor is it leave for what another plan of the same commit deletes
// beside: one that is made months later, when more projects are there, or when a directory is back that was away.
type held struct {
	Commit  plan.ID  `json:"commit"`
	Deletes string   `json:"deletes"` // a hash of the paths; "" in the note of a version that did not keep it
	Told    []uint64 `json:"told,omitempty"`
	Force   string   `json:"force"`
}

// heldBy describes what a plan deletes. Told has a short hash of each path, sorted; none where they are more than maxTold.
func heldBy(changes *plan.Changes) held {
	h := held{Commit: changes.To}
	all := sha256.New()
	for path := range deletions(changes) {
		_, _ = fmt.Fprintf(all, "%q\n", path) // a hash takes all
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

// covers reports whether all that a plan deletes was told. It may be less by now: some of it went by hand, or by the other
// node of a pair that was faster. Of what was too much for a list, it is all or nothing.
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

// deletions are the paths that a plan deletes.
func deletions(changes *plan.Changes) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range changes.List {
			if c := &changes.List[i]; c.Op == plan.Delete && !yield(c.Path) {
				return
			}
		}
	}
}

// rememberHeld notes that a mass deletion was reported. The last one counts, also where it was less than the one before: who
// gives leave has read of that.
func (s *run) rememberHeld(h *plan.Held) error {
	if h.Reason != v1alpha1.ReasonMassDeletion {
		return nil
	}
	now := heldBy(s.r.Changes) // as it was told, with what the other node of a pair is to delete
	was, err := s.lastHeld()
	if err != nil || was.Commit == now.Commit && was.Deletes == now.Deletes {
		return err
	}
	now.Force = s.t.ForceID
	b, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("encode what is held: %w", err)
	}
	return s.dir.SetNote(heldNote, b)
}

// forgetHeld drops what was told where another commit is wanted by now: a request to force a sync can be meant for that one,
// and what was told is told again where its commit comes back. A sync that resumes does not know what is wanted.
func (s *run) forgetHeld() error {
	if s.t.Profile.DryRun || s.resumes {
		return nil
	}
	was, err := s.lastHeld()
	if err != nil || was.Commit == s.t.Commit {
		return err
	}
	return s.dir.SetNote(heldNote, nil)
}

// mayDelete returns what says whether a mass deletion was told, and then asked for; nil where none was.
func (s *run) mayDelete() (func(*plan.Changes) bool, error) {
	if !s.force {
		return nil, nil
	}
	was, err := s.lastHeld()
	if err != nil || was.Commit != s.t.Commit || was.Deletes == "" || was.Force == s.t.ForceID {
		return nil, err
	}
	return was.covers, nil
}

func (s *run) lastHeld() (held, error) {
	var h held
	b, err := s.dir.Note(heldNote)
	if err == nil && b != nil && json.Unmarshal(b, &h) != nil {
		h = held{} // our own file, damaged: nothing was allowed
	}
	return h, err
}
