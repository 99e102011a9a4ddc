package sync

import (
	"crypto/sha256"
	"fmt"
	"path"
	"time"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// On a standby node a copied file that is neither git's nor what lay there before may be two things: it came from a commit
// that the other node had meanwhile, and will be replaced by it at any moment; or a person changed it there, it is drift, and
// the pair copied that, too. Nothing tells the two apart but time. So such a file is waited for at first like any other,
// and called drift when it has stayed as it is.
//
// Of a file without a record this node does not even know what git had before: it may be of an older commit at which the
// other node still is. So its time counts only while everything else is there and the gateway says that the pair has nothing
// to copy, and begins anew when any of these files becomes another.

// patience is how long.
const patience = 5 * time.Minute

// maxOdd bounds the files that are remembered.
const maxOdd = 10_000

// oddities are the files that are waited for, and those that were waited for in vain.
type oddities struct {
	of    heldAt // the sync that met them
	since time.Time
	left  map[string]waited
	said  heldAt
	but   string // what is said, of this sync, of those that are called drift
	// Those without a record, and since when they are as they are and nothing else was to come.
	strange [sha256.Size]byte
	still   time.Time
}

// waited is a file that was waited for in vain: what lay there, and what git wanted instead.
type waited struct{ found, want plan.ID }

// verdict is what a change to a copied file means on a standby node.
type verdict int

const (
	behind     verdict = iota // the other node has to write it
	odd                       // it would only restore what git wanted before, or replaces what the other node may have kept
	unrecorded                // it replaces a file of which this node has no record
	stray                     // it deletes what is in no commit that this node met: nothing is missing
	equal                     // a resource.json as the gateway signed it, which is only written because of a file beside it
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

// signed reports whether the gateway writes a file by itself when others of its resource change.
func signed(file string) bool {
	return path.Base(file) == resource.File || path.Base(file) == resource.Thumbnail
}

// asBefore reports whether a change would only restore what git wanted at the last sync.
func asBefore(changes *plan.Changes, c plan.Change, rec plan.Owned) bool {
	return c.Op != plan.Delete && rec.Want == wantOf(changes, c) && rec.Exec == c.Exec
}

// wantOf is the blob that git has for a change.
func wantOf(changes *plan.Changes, c plan.Change) plan.ID {
	if id, ok := changes.Signed[c.Path]; ok {
		return id
	}
	return c.ID
}

// leave takes the files that are waited for, with a record and without, and gives those that are called drift. At a commit
// that this node had whole on standby all of them are: nothing has to come any more. The others are waited for on.
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

// overdue reports whether files with a record were waited for long enough.
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

// unmoved reports whether files without a record have stayed as they are for long enough, while nothing was to come but what
// may be drift, too. Where the other node replaces some of that, it is at work.
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

// likeness is another one when any of the files without a record is, when one with a record is git's, or for another target.
func (s *run) likeness(changes *plan.Changes, recorded, list []plan.Change) (sum [sha256.Size]byte) {
	h := sha256.New()
	line := func(what ...any) { _, _ = fmt.Fprintf(h, "%q\n", what) } // a hash takes every write
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

// exceptions is what was said of drift at the last plan of this commit.
func (s *run) exceptions() string {
	if s.odd.said != s.at() {
		return ""
	}
	return s.odd.but
}

// know reports whether each file was waited for in vain, as it is now. Of one without a record only the same wish counts:
// what git changed since, the other node has to write.
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
