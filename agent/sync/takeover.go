package sync

import (
	"context"

	"stoker.io/stoker/agent/plan"
)

// A node that takes over cannot tell by its manifest what lies on its disk: the pair has copied to it, and what it copied is
// perhaps of a commit that this agent never saw, or of none any more. So the place of a node is noted, and the first plan
// with config access compares every file that may have come by the pair, and gives git's version the place of what differs,
// which goes to lost+found. Only then is the node called Synced.

// standbyNote says what the node of a pair was last: its role where it was on standby, withAccess where it was not and its
// files were compared since. An independent gateway has none.
const standbyNote = "standby"

const withAccess = "active"

// lastPlace is what the note says; "" for nothing.
type lastPlace string

func (p lastPlace) standby() bool { return p != "" && p != withAccess }

func (s *run) lastPlace() (lastPlace, error) {
	note, err := s.dir.Note(standbyNote)
	return lastPlace(note), err
}

// findPlace finds out whether this node may change its configuration, and keeps it.
func (s *run) findPlace(ctx context.Context, state gatewayState) error {
	if err := s.askPlace(ctx, state); err != nil {
		return err
	}
	was, err := s.lastPlace()
	if err != nil {
		return err
	}
	if was == withAccess && state == running && !s.placeKnown() { // one answer that fails is no failover
		s.standby.on, s.standby.paired = false, true
	}
	s.brought = s.standby.on || was.standby()
	s.takes = was.standby() && !s.standby.on && s.placeKnown()
	s.steps = s.steps || s.standby.on && !was.standby()
	s.r.Paired = s.standby.paired || was != ""
	now := was
	switch {
	case s.standby.on:
		now = lastPlace(s.standby.role)
	case was.standby(): // until the files were compared
	case s.standby.paired:
		now = withAccess
	case s.placeKnown():
		now = ""
	}
	return s.keepPlace(was, now)
}

func (s *run) keepPlace(was, now lastPlace) error {
	switch now {
	case was:
		return nil
	case "":
		return s.dir.SetNote(standbyNote, nil)
	}
	return s.dir.SetNote(standbyNote, []byte(now))
}

// placeKnown reports whether the place is what the gateway said, or nobody will ever say more of it than its role. While a
// gateway is away its role is taken for its place, and the next answer may be another one.
func (s *run) placeKnown() bool {
	return s.standby.asked || s.peers.Gateway == nil || !s.peers.Token || s.older()
}

// recall finds out, for a sync that had nothing to do, where a node of a pair stands now.
func (s *run) recall(ctx context.Context) error {
	was, err := s.lastPlace()
	if err != nil || was == "" || s.t.BeforeStart || s.t.Profile.DryRun {
		return err
	}
	s.r.Paired = true
	state, _ := s.look(ctx)
	if state != running && !was.standby() {
		return nil // it is seen to when it runs
	}
	return s.findPlace(ctx, state)
}

// place makes of a plan what this node may do. One that was made for another place is made again.
func (s *run) place(ctx context.Context, changes *plan.Changes) (*plan.Changes, error) {
	if s.brought && !s.planned {
		var err error
		if changes, err = s.compute(ctx); err != nil {
			return nil, err
		}
		s.r.Changes = changes
	}
	return s.restrict(changes)
}

// whole notes that the files of a node that took over were compared, and are the commit's.
func (s *run) whole() error {
	if err := s.strangers(); err != nil {
		return err
	}
	if !s.takes {
		return nil
	}
	now := lastPlace("")
	if s.standby.paired {
		now = withAccess
	}
	was, err := s.lastPlace()
	if err != nil {
		return err
	}
	return s.keepPlace(was, now)
}
