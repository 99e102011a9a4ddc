package decide

import (
	"slices"
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	// maxSettling is how long after the first look at a change it is proposed, even if saving goes on.
	maxSettling = 10 * time.Minute
	// MaxPushes bounds the pushes of a proposal within pushWindow.
	MaxPushes  = 6
	pushWindow = time.Hour
	// walkEvery is the number of comparisons after which the agent looks for new files even without a file event.
	walkEvery = 10
)

// Schedule is when the changes of a gateway are looked for, pushed, tried again, and polled. A restart of the agent forgets it.
type Schedule struct {
	// Failures is the number of failed attempts in a row.
	Failures int
	// Overwrote reports that the last comparison followed a sync that wrote files. It stays true until the caller resets it.
	Overwrote bool

	event       time.Time // the last file event
	wrote       time.Time // when a sync last wrote files; zero once a comparison has followed
	compared    time.Time // the end of the last comparison
	previous    time.Time // the end of the one before
	comparisons int       // since the last walk
	walked      bool      // no file event has followed the last walk

	files         string    // identifies the changed files at the last look
	stable, first time.Time // when files last changed; when a change was first seen since the changes were last read
	attempt       time.Time // the next one after a failure
	declined      string    // the changes whose push the server declined; "" if it declined none
	poll          time.Time // the next one
}

// Event adds a file event.
func (s Schedule) Event(now time.Time) Schedule { s.event, s.walked = now, false; return s }

// Wrote adds a sync that wrote files.
func (s Schedule) Wrote(now time.Time) Schedule { s.wrote = now; return s }

// Compared adds a comparison of the owned files; the same one again changes nothing. walk reports that the agent has to look for new files now:
// after each new comparison until Walked, then again after a file event or walkEvery comparisons. It is never true on a standby node.
func (s Schedule) Compared(ended time.Time, standby bool) (next Schedule, walk bool) {
	if !s.wrote.IsZero() && !ended.Before(s.wrote) { // only such a comparison shows which changes the sync has replaced
		s.wrote, s.Overwrote = time.Time{}, true
	}
	switch {
	case standby:
		s.walked = false
	case !ended.Equal(s.compared):
		s.previous, s.compared, s.comparisons = s.compared, ended, s.comparisons+1
		walk = !s.walked || s.comparisons >= walkEvery
	}
	return s, walk
}

// Walked adds that the agent has looked for new files.
func (s Schedule) Walked() Schedule { s.walked, s.comparisons = true, 0; return s }

// Unwalked makes the agent look for new files after the next comparison.
func (s Schedule) Unwalked() Schedule { s.walked = false; return s }

// LookedAt adds a look at the changed files, for the last comparison. If they differ from those of the last look, debounce begins with the last
// file event, or now if an earlier comparison followed that event.
func (s Schedule) LookedAt(files string, now time.Time) Schedule {
	if files == s.files {
		return s
	}
	s.files, s.stable = files, now
	if s.event.After(s.previous) && s.event.Before(now) { // otherwise an earlier comparison followed the event
		s.stable = s.event
	}
	if s.first.IsZero() {
		s.first = now
	}
	return s
}

// ChangedWhileRead returns the schedule after files changed while they were read.
func (s Schedule) ChangedWhileRead() Schedule { s.files = ""; return s }

// WasRead returns the schedule after the changes were read.
func (s Schedule) WasRead() Schedule { s.first = time.Time{}; return s }

// ChangesGone returns the schedule after the changes were undone, or after their proposal ended.
func (s Schedule) ChangesGone() Schedule {
	s.files, s.stable, s.first = "", time.Time{}, time.Time{}
	return s
}

// Failed returns the schedule after a failure, and with the time of the next attempt.
func (s Schedule) Failed(next time.Time) Schedule { s.Failures++; s.attempt = next; return s }

// Declined returns the schedule after the server declined changes. Other changes need not wait for the next attempt.
func (s Schedule) Declined(changes string) Schedule { s.declined = changes; return s }

// Succeeded returns the schedule after a success, and with the time of the next poll.
func (s Schedule) Succeeded(poll time.Time) Schedule {
	s.Failures, s.attempt, s.declined, s.poll = 0, time.Time{}, "", poll
	return s
}

// Attempt returns when the next attempt after a failure is due.
func (s Schedule) Attempt() time.Time { return s.attempt }

// ProposalSituation is what the next move of a proposal depends on, beside its Schedule.
type ProposalSituation struct {
	Now      time.Time
	Debounce time.Duration

	// Active reports that there is a proposal that has not ended. Ends is the state with which it is ending; "" if it goes on.
	Active bool
	Ends   v1alpha1.ProposalState
	// InGit reports that the commit on the disk has the proposed files, or one of them after the merge; Merged that the forge has merged them.
	InGit, Merged bool
	// Foreign reports that another author committed to the branch, Replaced that a sync replaced a file of the proposal.
	Foreign, Replaced bool
	// Published reports that there is a pull request to ask about, or a branch that will have none.
	Published bool
	// Standby reports that the other node of a redundant pair has the files, Renew that a user requests to propose again.
	Standby, Renew bool
	// Pushes are the times of the last pushes.
	Pushes []time.Time

	// Changed reports that files differ from git, Looked that LookedAt was called for them, and Read that they were read. The fields below are set
	// only after that.
	Changed, Looked, Read bool
	// Files is the number of files that a proposal of the changes has, Changes identifies them.
	Files   int
	Changes string
	// Refused reports that the changes must not leave the gateway.
	Refused bool
	// Covered reports that the proposal has all of them, Pushed that its branch shows exactly them, and Open that its pull request does, too.
	Covered, Pushed, Open bool
	// Closed reports that a pull request with these changes was closed.
	Closed bool
}

// ProposalAction is what happens to a proposal.
type ProposalAction string

// The actions. Look and Read complete ProposalSituation, for another call of Schedule.Move.
const (
	Look     ProposalAction = "look"     // at the changed files
	Read     ProposalAction = "read"     // the changed files
	Show     ProposalAction = "show"     // what is recorded
	Settle   ProposalAction = "settle"   // wait for the end of the debounce
	Refuse   ProposalAction = "refuse"   // show why the changes are not proposed
	Withhold ProposalAction = "withhold" // show that their pull request was closed
	Retry    ProposalAction = "retry"    // wait for the next attempt
	Throttle ProposalAction = "throttle" // wait for the next push
	Push     ProposalAction = "push"     // push, and open the pull request
	Renew    ProposalAction = "renew"    // end the proposal, and begin another one
	End      ProposalAction = "end"      // close the pull request, and delete the branch
)

// ProposedAgain is the comment on a pull request that another one replaces.
const ProposedAgain = "It is proposed again from the commit that the gateway runs now."

// Move is the next move of a proposal.
type Move struct {
	Do ProposalAction
	// State is how the proposal ends, Comment what the pull request then says.
	State   v1alpha1.ProposalState
	Comment string
	// Poll reports that the server is asked now for the state of the pull request, or for the base branch after its merge.
	Poll bool
	// At is when to ask again; zero if only an event changes the move.
	At time.Time
}

// Move returns the next move of a proposal:
//
//	an end was begun                                    end it, when the next attempt is due
//	the commit on the disk has the proposed files       end: merged
//	the other node of the pair has the files            show, poll
//	a user requests to propose again                    renew
//	files were saved within debounce                    settle, for at most ten minutes
//	merged, and the changes are gone, or not all in it  end: merged
//	merged, and it has all changes                      show, poll, until the gateway has the merge
//	the changes must not leave the gateway              refuse, poll
//	a user undid the changes                            end: withdrawn
//	a sync replaced them, or they are proposed          show, poll
//	a pull request with these changes was closed        withhold
//	another author committed to the branch              show, poll
//	the last attempt failed                             retry when due; at once if the server declined other changes
//	there were six pushes within an hour                throttle
//	otherwise                                           push
func (s Schedule) Move(p ProposalSituation) Move {
	switch {
	case p.Ends != "" && p.Now.Before(s.attempt):
		return Move{Do: Show, At: s.attempt}
	case p.Ends != "":
		return Move{Do: End, State: p.Ends}
	case p.InGit:
		return Move{Do: End, State: v1alpha1.ProposalMerged}
	case p.Standby:
		return s.polls(p, Show)
	case p.Renew:
		return Move{Do: Renew, State: v1alpha1.ProposalWithdrawn, Comment: ProposedAgain}
	case !p.Changed || p.Read:
		return s.moveKnown(p)
	case !p.Looked:
		return Move{Do: Look}
	}
	ready := s.stable.Add(p.Debounce)
	if last := s.first.Add(maxSettling); last.Before(ready) {
		ready = last
	}
	if p.Now.Before(ready) {
		return Move{Do: Settle, At: ready}
	}
	return Move{Do: Read}
}

// moveKnown is Move for changes that are known.
func (s Schedule) moveKnown(p ProposalSituation) Move {
	switch {
	case p.Active && p.Merged && (p.Files == 0 || !p.Covered): // a reviewer may have changed the files before the merge
		return Move{Do: End, State: v1alpha1.ProposalMerged}
	case p.Active && p.Merged:
		return s.polls(p, Show)
	case p.Refused:
		return s.polls(p, Refuse)
	case p.Files == 0 && p.Active && !p.Replaced && !p.Foreign:
		return Move{Do: End, State: v1alpha1.ProposalWithdrawn, Comment: "The change was undone on the gateway."}
	case p.Files == 0 || p.Open:
		return s.polls(p, Show)
	case p.Closed:
		return Move{Do: Withhold}
	case p.Foreign:
		return s.polls(p, Show)
	case p.Now.Before(s.attempt) && (s.declined == "" || s.declined == p.Changes):
		return Move{Do: Retry, At: s.attempt}
	}
	if recent := RecentPushes(p.Pushes, p.Now); len(recent) >= MaxPushes && !p.Pushed {
		return Move{Do: Throttle, At: recent[len(recent)-MaxPushes].Add(pushWindow)}
	}
	return Move{Do: Push}
}

// polls returns a move that asks for the state of the pull request, or of the branch, if that is due.
func (s Schedule) polls(p ProposalSituation, do ProposalAction) Move {
	if !p.Active || !p.Published {
		return Move{Do: do}
	}
	if due := slices.MaxFunc([]time.Time{s.poll, s.attempt}, time.Time.Compare); p.Now.Before(due) {
		return Move{Do: do, At: due}
	}
	return Move{Do: do, Poll: true}
}

// RecentPushes returns the pushes of the last pushWindow, without times in the future, which a wrong clock set.
func RecentPushes(pushes []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(pushes), func(t time.Time) bool { return now.Sub(t) >= pushWindow || t.After(now) })
}
