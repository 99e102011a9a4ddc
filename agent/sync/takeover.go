package sync

import (
	"context"

	"stoker.io/stoker/agent/plan"
)

// The manifest of a node that takes over does not tell what is on its disk: the pair has copied files, perhaps of a
// commit that this agent never saw. So a note records the node's place. The first plan with config access compares
// every file that the pair may have copied, and replaces differences by git's version, after saving them to lost+found.
// Only then does the node become Synced.

// standbyNote has the last place of a node of a pair: its role if it was on standby, or withAccess if it had config
// access and its files have been compared since. An independent gateway has no such note.
const standbyNote = "standby"

const withAccess = "active"

// lastPlace is the content of standbyNote, "" for none.
type lastPlace string

func (p lastPlace) standby() bool { return p != "" && p != withAccess }

func (s *run) lastPlace() (lastPlace, error) {
	note, err := s.dir.Note(standbyNote)
	return lastPlace(note), err
}

// findPlace determines whether this node has config access, and records it.
func (s *run) findPlace(ctx context.Context, state gatewayState) error {
	if err := s.askPlace(ctx, state); err != nil {
		return err
	}
	was, err := s.lastPlace()
	if err != nil {
		return err
	}
	if was == withAccess && state == running && !s.placeKnown() { // a single failed answer is not a failover
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
	case was.standby(): // keep it until the files are compared
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

// placeKnown reports whether the place is certain: the gateway answered, or can never tell more than its role. While a
// gateway is away its role stands in for its place, and its next answer may differ.
func (s *run) placeKnown() bool {
	return s.standby.asked || s.conn.Gateway == nil || !s.conn.Token || s.older()
}

// recall determines the place of a node of a pair for a sync that had nothing to do.
func (s *run) recall(ctx context.Context) error {
	was, err := s.lastPlace()
	if err != nil || was == "" || s.t.BeforeStart || s.t.Profile.DryRun {
		return err
	}
	s.r.Paired = true
	state, _ := s.look(ctx)
	if state != running && !was.standby() {
		return nil // the sync after its start does this
	}
	return s.findPlace(ctx, state)
}

// place restricts a plan to what this node may do. It plans again if the plan was made for another place.
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

// whole records that the files of a node that took over have been compared and are the commit's.
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
