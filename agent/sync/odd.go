package sync

import (
	"crypto/sha256"
	"fmt"
	"path"
	"time"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// On a standby node, a replicated file that is neither git's nor what was there before has one of two causes: it came
// from a commit that the other node had meanwhile, and will soon be replaced; or a user changed it there, which is
// drift that the pair copied. Only time distinguishes the two. So the sync first waits for such a file, and reports it
// as drift if it stays unchanged.
//
// For a file without a record, this node does not know what git had before: it may be of an older commit that the other
// node still has. Its time counts only while everything else is complete and the gateway reports nothing left to copy,
// and starts again when any of these files changes.

// patience is how long a file must stay unchanged to count as drift.
const patience = 5 * time.Minute

// maxOdd bounds the remembered files.
const maxOdd = 10_000

// oddities are the files that the sync waits for, and those that count as drift.
type oddities struct {
	of    heldAt // the sync that found them
	since time.Time
	left  map[string]waited
	said  heldAt
	but   string // suffix of the message of that sync about drift
	// strange identifies the files without a record, still is when they last changed or something was left to copy.
	strange [sha256.Size]byte
	still   time.Time
}

// waited is a file that counts as drift: its content, and what git wanted.
type waited struct{ found, want plan.ID }

// verdict classifies a change to a replicated file on a standby node.
type verdict int

const (
	behind     verdict = iota // the other node has to write it
	odd                       // restores what git wanted before, or replaces what the other node may have kept
	unrecorded                // replaces a file of which this node has no record
	stray                     // deletes a file of no commit that this node saw; nothing is missing
	equal                     // a resource.json as the gateway signed it, written only because of a file beside it
)

func (s *run) judge(changes *plan.Changes, c plan.Change) (verdict, error) {
	rec, owned, err := s.dir.Manifest().Get(c.Path)
	switch {
	case err != nil:
		return behind, err
	case !owned && c.Op == plan.Delete:
		return stray, nil
	case !owned && c.Found.Kind == plan.File:
		return unrecorded, nil
	case !owned:
		return behind, nil
	}
	touched := c.FoundID != rec.Have
	switch same := asBefore(changes, c, rec); {
	case same && signed(c.Path) && (!touched || !c.Conflict):
		return equal, nil
	case same, touched && s.rules.Conflict == plan.GatewayWins:
		return odd, nil
	}
	return behind, nil
}

// signed reports whether the gateway rewrites a file when others of its resource change.
func signed(file string) bool {
	return path.Base(file) == resource.File || path.Base(file) == resource.Thumbnail
}

// asBefore reports whether a change only restores what git wanted at the last sync.
func asBefore(changes *plan.Changes, c plan.Change, rec plan.Owned) bool {
	return c.Op != plan.Delete && rec.Want == wantOf(changes, c) && rec.Exec == c.Exec
}

// wantOf returns git's blob for a change.
func wantOf(changes *plan.Changes, c plan.Change) plan.ID {
	if id, ok := changes.Signed[c.Path]; ok {
		return id
	}
	return c.ID
}

// leave returns the files that count as drift and makes the standby wait for the others. At a commit that this node had
// completely on standby, all are drift, because nothing is left to copy.
func (s *run) leave(changes *plan.Changes, recorded, unrecorded []plan.Change) []plan.Change {
	o, h := &s.odd, s.dir.Manifest().Header()
	o.said, o.but = s.at(), ""
	whole := !s.steps && h.Complete && h.Commit == s.t.Commit && h.Rules == s.rules.Fingerprint()
	var left []plan.Change
	settle := func(list []plan.Change, leave bool) {
		if leave {
			left = append(left, list...)
			return
		}
		for _, c := range list {
			s.standby.wait(c)
		}
	}
	unmoved := s.unmoved(changes, recorded, unrecorded)
	settle(recorded, whole || o.know(changes, recorded) || s.overdue(changes, recorded))
	settle(unrecorded, whole || unmoved)
	if len(left) > 0 {
		o.but = fmt.Sprintf(", but for %d that were changed on the gateway (%s first)", len(left), left[0].Path)
		s.note("%d replicated files were changed on the gateway and are not restored on a node without config access", len(left))
	}
	return left
}

// overdue reports whether files with a record have been waited for long enough.
func (s *run) overdue(changes *plan.Changes, list []plan.Change) bool {
	o, at := &s.odd, s.at()
	if len(list) > 0 && o.of != at {
		o.of, o.since = at, s.Now()
	}
	if len(list) == 0 || s.Now().Sub(o.since) < patience {
		return false
	}
	o.add(changes, list)
	return true
}

// unmoved reports whether files without a record have stayed unchanged for long enough, while nothing else was left to
// copy except possible drift. If the other node replaces some of that, it is still working.
func (s *run) unmoved(changes *plan.Changes, recorded, list []plan.Change) bool {
	o := &s.odd
	quiet := s.standby.asked && s.standby.peer && !s.standby.pending && s.standby.behind == 0
	if len(list) == 0 || !quiet {
		o.still = time.Time{}
		return false
	}
	if o.know(changes, list) {
		return true
	}
	if is := s.likeness(changes, recorded, list); o.still.IsZero() || o.strange != is {
		o.strange, o.still = is, s.Now()
	}
	if s.Now().Sub(o.still) < patience {
		return false
	}
	o.add(changes, list)
	return true
}

// likeness identifies the target, the paths of the files with a record, and the content of those without one.
func (s *run) likeness(changes *plan.Changes, recorded, list []plan.Change) (sum [sha256.Size]byte) {
	h := sha256.New()
	line := func(what ...any) { _, _ = fmt.Fprintf(h, "%q\n", what) } // a hash never fails
	line(s.t.Commit, s.rules.Fingerprint())
	for _, c := range recorded {
		line(c.Path)
	}
	for _, c := range list {
		found := c.FoundID
		if signed(c.Path) {
			found = plan.ID{}
		}
		line(c.Path, found, wantOf(changes, c))
	}
	h.Sum(sum[:0])
	return sum
}

func (s *run) at() heldAt { return heldAt{commit: s.t.Commit, rules: s.rules.Fingerprint()} }

// exceptions returns the suffix about drift if the last plan was for the same target.
func (s *run) exceptions() string {
	if s.odd.said != s.at() {
		return ""
	}
	return s.odd.but
}

// know reports whether all files already count as drift in their current state. A file without a record must also have
// the same wanted blob, because the other node has to write what git changed since.
func (o *oddities) know(changes *plan.Changes, list []plan.Change) bool {
	for _, c := range list {
		was, ok := o.left[c.Path]
		if !ok || was.found != c.FoundID && !signed(c.Path) || !c.Owned && was.want != wantOf(changes, c) {
			return false
		}
	}
	return true
}

func (o *oddities) add(changes *plan.Changes, list []plan.Change) {
	if o.left == nil || len(o.left)+len(list) > maxOdd {
		o.left = make(map[string]waited)
	}
	for _, c := range list {
		o.left[c.Path] = waited{found: c.FoundID, want: wantOf(changes, c)}
	}
}
