package sync

import "stoker.io/stoker/agent/plan"

// heldAt is a sync that was held, and by which plan; "" by a Designer. Its files were staged and checked once, and are not
// written again and again while a person is waited for.
type heldAt struct {
	commit plan.ID
	rules  string
	plan   string
}

func (s *run) wait(why string) { s.held = heldAt{s.t.Commit, s.rules.Fingerprint(), why} }

// waited reports whether this very sync has been held for that before.
func (s *run) waited(why string) bool {
	return s.held == heldAt{s.t.Commit, s.rules.Fingerprint(), why}
}
