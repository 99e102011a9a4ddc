package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A pod that is made anew starts its gateway anew. Where the volume holds the target already nothing is owed to that
// gateway, and yet it may never come up: so it has to be seen running once before its pod is called Synced. What becomes of
// it later is its own probes' business.

// ranNote keeps the start whose gateway was seen running, so that an agent that starts again beside it does not ask again.
const ranNote = "gateway-ran"

// ran reports whether the gateway was seen running since its start.
func (s *run) ran() bool {
	if s.t.Start == "" || s.seen == s.t.Start {
		return true
	}
	note, err := s.dir.Note(ranNote)
	if err != nil {
		s.Log.Debug("whether the gateway ran since its start cannot be read", "error", err)
	}
	if string(note) != s.t.Start {
		return false
	}
	s.seen = s.t.Start
	return true
}

// sawRunning notes that the gateway runs.
func (s *run) sawRunning() {
	if s.t.BeforeStart || s.ran() {
		return
	}
	s.seen = s.t.Start
	if err := s.dir.SetNote(ranNote, []byte(s.t.Start)); err != nil {
		s.Log.Debug("that the gateway ran is not kept", "error", err)
	}
}

// awaitStart ends a sync that had nothing to do for a gateway that did not run yet.
func (s *run) awaitStart(ctx context.Context) error {
	if state, err := s.look(ctx); state != running {
		if failure.Is(err, v1alpha1.ReasonGatewayUnreachable) && !ignition.Untrusted(err) { // a web server that comes up answers in many ways
			err = failure.New(v1alpha1.ReasonWaitingForGateway, "%w", err)
		}
		s.r.Phase = Applied
		return fmt.Errorf("%s is there already, and the gateway was not seen running since its pod started: %w", s.t.Commit.Short(), err)
	}
	return nil
}
