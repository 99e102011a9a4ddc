package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A recreated pod starts its gateway again. If the volume already has the target, nothing is owed to that gateway, but
// it may never come up. So the sync reports Synced only after it has seen the gateway running once. After that, the
// gateway's own probes are responsible.

// ranNote has the start whose gateway was seen running, so that a restarted agent does not check again.
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

// sawRunning records that the gateway runs.
func (s *run) sawRunning() {
	if s.t.BeforeStart || s.ran() {
		return
	}
	s.seen = s.t.Start
	if err := s.dir.SetNote(ranNote, []byte(s.t.Start)); err != nil {
		s.Log.Debug("that the gateway ran is not kept", "error", err)
	}
}

// awaitStart ends a sync without changes for a gateway that has not been seen running yet.
func (s *run) awaitStart(ctx context.Context) error {
	if state, err := s.look(ctx); state != running {
		if failure.Is(err, v1alpha1.ReasonGatewayUnreachable) && !ignition.Untrusted(err) { // a web server that is coming up can fail in many ways
			err = failure.New(v1alpha1.ReasonWaitingForGateway, "%w", err)
		}
		s.r.Phase = Applied
		return fmt.Errorf("%s is there already, and the gateway was not seen running since its pod started: %w", s.t.Commit.Short(), err)
	}
	return nil
}
