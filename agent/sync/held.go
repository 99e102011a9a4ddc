package sync

import "stoker.io/stoker/agent/plan"

// heldAt identifies a held sync and its plan; plan is "" if a Designer holds it. Its files were staged and checked
// once, and are not written again while the sync waits.
type heldAt struct {
	commit plan.ID
	rules  string
	plan   string
}

func (s *run) wait(why string) { s.held = heldAt{s.t.Commit, s.rules.Fingerprint(), why} }

// waited reports whether the same sync has been held for the same reason before.
func (s *run) waited(why string) bool {
	return s.held == heldAt{s.t.Commit, s.rules.Fingerprint(), why}
}
