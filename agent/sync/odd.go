package sync

import (
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

// patience is how long.
const patience = 5 * time.Minute

// maxOdd bounds the files that are remembered.
const maxOdd = 10_000

// oddities are the files that are waited for, and those that were waited for in vain.
type oddities struct {
	of    heldAt // the sync that met them
	since time.Time
	left  map[string]plan.ID
	but   string // what is said of those that are called drift
}

// verdict is what a change to a copied file means on a standby node.
type verdict int

const (
	behind verdict = iota // the other node has to write it
	odd                   // it would only restore what git wanted before, or replaces what the other node may have kept
	equal                 // a resource.json as the gateway signed it, which is only written because of a file beside it
)

func (s *run) judge(changes *plan.Changes, c plan.Change) (verdict, error) {
	rec, owned, err := s.dir.Manifest().Get(c.Path)
	if err != nil || !owned {
		return behind, err
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
	want := c.ID
	if id, ok := changes.Signed[c.Path]; ok {
		want = id
	}
	return c.Op != plan.Delete && rec.Want == want && rec.Exec == c.Exec
}

// leaveOdd reports whether files are called drift. At a commit that this node had whole on standby all of them are: nothing
// has to come any more.
func (s *run) leaveOdd(list []plan.Change) bool {
	o := &s.odd
	o.but = ""
	if len(list) == 0 {
		return false
	}
	h := s.dir.Manifest().Header()
	leave := !s.steps && h.Complete && h.Commit == s.t.Commit && h.Rules == s.rules.Fingerprint() || o.know(list)
	if at := s.at(); o.of != at {
		o.of, o.since = at, s.Now()
	}
	if !leave && s.Now().Sub(o.since) >= patience {
		leave = true
		o.add(list)
	}
	if leave {
		o.but = fmt.Sprintf(", but for %d that were changed on the gateway (%s first)", len(list), list[0].Path)
		s.note("%d replicated files were changed on the gateway and are not restored on a node without config access", len(list))
	}
	return leave
}

func (s *run) at() heldAt { return heldAt{commit: s.t.Commit, rules: s.rules.Fingerprint()} }

// exceptions is what leaveOdd said at the last plan of this commit.
func (s *run) exceptions() string {
	if s.odd.of != s.at() {
		return ""
	}
	return s.odd.but
}

// know reports whether each file was waited for in vain, as it is now.
func (o *oddities) know(list []plan.Change) bool {
	for _, c := range list {
		if id, ok := o.left[c.Path]; !ok || id != c.FoundID && !signed(c.Path) {
			return false
		}
	}
	return true
}

func (o *oddities) add(list []plan.Change) {
	if o.left == nil || len(o.left)+len(list) > maxOdd {
		o.left = make(map[string]plan.ID)
	}
	for _, c := range list {
		o.left[c.Path] = c.FoundID
	}
}
