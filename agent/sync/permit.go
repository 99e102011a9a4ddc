package sync

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

const heldNote = "held"

// held is the mass deletion that somebody was told of: at which commit, of which files, and which request to force a sync
// stood there already. Only a request that came later speaks of it: an older one, which waits for a broken commit to be
// mended, was never meant as leave to delete what a commit after that deletes. Nor is it leave for another plan of the same
// commit, such as one that is made months later, when more projects are there.
type held struct {
	Commit plan.ID `json:"commit"`
	Files  string  `json:"files"` // see deleted
	Force  string  `json:"force"`
}

// rememberHeld notes that a mass deletion was reported.
func (s *run) rememberHeld(h *plan.Held) error {
	if h.Reason != v1alpha1.ReasonMassDeletion {
		return nil
	}
	was, err := s.lastHeld()
	if err != nil || was.Commit == s.t.Commit && was.Files == s.deletes {
		return err
	}
	b, err := json.Marshal(held{s.t.Commit, s.deletes, s.t.ForceID})
	if err != nil {
		return fmt.Errorf("encode what is held: %w", err)
	}
	return s.dir.SetNote(heldNote, b)
}

// mayDelete reports whether the mass deletion of this plan was held, and then asked for.
func (s *run) mayDelete() (bool, error) {
	if !s.force {
		return false, nil
	}
	was, err := s.lastHeld()
	return was.Commit == s.t.Commit && was.Files == s.deletes && was.Force != s.t.ForceID, err
}

func (s *run) lastHeld() (held, error) {
	var h held
	b, err := s.dir.Note(heldNote)
	if err == nil && b != nil && json.Unmarshal(b, &h) != nil {
		h = held{} // our own file, damaged: nothing was allowed
	}
	return h, err
}

// deleted is a hash of the paths that a plan deletes, with those of ours that have gone meanwhile: by hand, or by the other node
// of a pair that was faster.
func deleted(changes *plan.Changes) string {
	h := sha256.New()
	for i := range changes.List {
		if c := &changes.List[i]; c.Op == plan.Delete || c.Op == plan.Release && c.Owned && c.Found.Kind == plan.Missing {
			_, _ = fmt.Fprintf(h, "%q\n", c.Path) // a hash takes all
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
