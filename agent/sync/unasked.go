package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A dry run and a pause send nothing to the gateway. About files that are already there they report only what is known.

// unasked ends a dry run.
func (s *run) unasked(ctx context.Context) error {
	if s.r.DryRun { // the plan is the answer
		return nil
	}
	confirmed, err := s.confirmed(ctx)
	if err != nil || confirmed {
		return err
	}
	s.r.Phase, s.r.Reason, s.r.DryRun = Applied, v1alpha1.ReasonDryRun, true
	s.r.Message = fmt.Sprintf("dry run, the gateway was asked for nothing: the files of %s are on the disk, and it has not confirmed them", s.t.Commit.Short())
	return nil
}

// paused ends a sync while syncing is paused. If the gateway already runs the target, the report says so.
func (s *run) paused(ctx context.Context) error {
	held := failure.New(v1alpha1.ReasonPaused, "syncing is paused; what is on the disk stays")
	s.r.Phase = Held
	d, err := s.open()
	if err != nil {
		return held
	}
	s.dir = d // report what is on the disk
	if err := s.forgetHeld(); err != nil {
		return err
	}
	if !s.there() {
		return held
	}
	confirmed, err := s.confirmed(ctx)
	if err != nil {
		return err
	}
	if !confirmed {
		return held
	}
	stays, err := s.stays(ctx)
	if err != nil {
		return err
	}
	if !stays {
		return held
	}
	s.r.Phase, s.r.Reason = Synced, v1alpha1.ReasonPaused
	if s.standby.on {
		s.r.Phase = Standby
	}
	s.r.Message = "syncing is paused; " + s.t.Commit.Short() + " is there already"
	return nil
}

// stays reports whether the node of a pair has the same place as when its files were last compared. It does not record
// the current place: the sync after the pause must notice a change and compare the files.
func (s *run) stays(ctx context.Context) (bool, error) {
	was, err := s.lastPlace()
	if err != nil || was == "" {
		return true, err
	}
	s.r.Paired = true
	state, _ := s.look(ctx)
	err = s.askPlace(ctx, state)
	return s.standby.on == was.standby(), err
}

// there reports whether the target's files need nothing. If that is unknown, it returns false.
func (s *run) there() bool {
	var err error
	if s.rules, err = s.rulesAt(s.t.Ref, s.t.Commit); err != nil {
		return false
	}
	if s.owed, err = loadOwed(s.dir); err != nil {
		return false
	}
	if s.force, err = s.forced(); err != nil {
		return false
	}
	return s.settled()
}

// confirmed reports whether the gateway has loaded the files on the disk, as far as that is ever checked. It returns an
// error if the gateway was not seen running.
func (s *run) confirmed(ctx context.Context) (bool, error) {
	if s.conn.Gateway == nil || !s.conn.Token {
		return true, nil
	}
	if err := s.owed.drop(s.dir); err != nil {
		return false, err
	}
	if s.t.BeforeStart {
		return false, s.notStarted()
	}
	if !s.ran() {
		if err := s.awaitStart(ctx); err != nil {
			return false, err
		}
	}
	return s.owed.empty(), nil
}
