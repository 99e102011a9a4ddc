package redundancy

import (
	"crypto/sha256"
	"fmt"
	"time"

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

// maxRemembered bounds the remembered files.
const maxRemembered = 10_000

// Memory has what a standby node remembers from sync to sync: the files that it waits for, and those that count as
// drift. The zero value is ready for use.
type Memory struct {
	waitingFor target // the sync that found files with a record
	since      time.Time
	drifted    map[string]content
	// described is the sync whose drift suffix describes in its message.
	described target
	suffix    string
	// unknown identifies the files without a record, and unchanged is when they last changed or something was left to
	// copy.
	unknown   [sha256.Size]byte
	unchanged time.Time
}

type target struct {
	commit plan.ID
	rules  string
}

// content is the content of a file that counts as drift, and what git wanted.
type content struct{ found, want plan.ID }

// driftOf returns the files that count as drift, and waits for the others. At a commit that this node had completely on
// standby, all are drift, because nothing is left to copy.
func (n *Node) driftOf(changes *plan.Changes, recorded, unrecorded []plan.Change) []plan.Change {
	m, h := n.Memory, n.Dir.Manifest().Header()
	m.described, m.suffix = n.target(), ""
	complete := !n.steps && h.Complete && h.Commit == n.Commit && h.Rules == n.Rules.Fingerprint()
	var drifted []plan.Change
	add := func(list []plan.Change, drift bool) {
		if drift {
			drifted = append(drifted, list...)
			return
		}
		for _, c := range list {
			n.missing.add(c)
		}
	}
	settled := n.unrecordedSettled(changes, recorded, unrecorded)
	add(recorded, complete || m.has(changes, recorded) || n.overdue(changes, recorded))
	add(unrecorded, complete || settled)
	if len(drifted) > 0 {
		m.suffix = fmt.Sprintf(", except %d that were changed on the gateway (%s first)", len(drifted), drifted[0].Path)
		n.Note("%d replicated files were changed on the gateway and are not restored on a node without config access", len(drifted))
	}
	return drifted
}

// overdue reports whether files with a record have been waited for long enough.
func (n *Node) overdue(changes *plan.Changes, list []plan.Change) bool {
	m, at := n.Memory, n.target()
	if len(list) > 0 && m.waitingFor != at {
		m.waitingFor, m.since = at, n.Now()
	}
	if len(list) == 0 || n.Now().Sub(m.since) < patience {
		return false
	}
	m.add(changes, list)
	return true
}

// unrecordedSettled reports whether files without a record have stayed unchanged for long enough, while nothing else was left to
// copy except possible drift. If the other node replaces some of that, it is still working.
func (n *Node) unrecordedSettled(changes *plan.Changes, recorded, list []plan.Change) bool {
	m := n.Memory
	quiet := n.place.asked && n.place.connected && !n.place.pending && n.missing.files == 0
	if len(list) == 0 || !quiet {
		m.unchanged = time.Time{}
		return false
	}
	if m.has(changes, list) {
		return true
	}
	if is := n.fingerprint(changes, recorded, list); m.unchanged.IsZero() || m.unknown != is {
		m.unknown, m.unchanged = is, n.Now()
	}
	if n.Now().Sub(m.unchanged) < patience {
		return false
	}
	m.add(changes, list)
	return true
}

// fingerprint identifies the target, the paths of the files with a record, and the content of those without one.
func (n *Node) fingerprint(changes *plan.Changes, recorded, list []plan.Change) (sum [sha256.Size]byte) {
	h := sha256.New()
	line := func(what ...any) { _, _ = fmt.Fprintf(h, "%q\n", what) } // a hash never fails
	line(n.Commit, n.Rules.Fingerprint())
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

func (n *Node) target() target { return target{n.Commit, n.Rules.Fingerprint()} }

// exceptions returns the suffix about drift if the last plan was for the same target.
func (n *Node) exceptions() string {
	if n.Memory.described != n.target() {
		return ""
	}
	return n.Memory.suffix
}

// has reports whether all files already count as drift in their current state. A file without a record must also have
// the same wanted blob, because the other node has to write what git changed since.
func (m *Memory) has(changes *plan.Changes, list []plan.Change) bool {
	for _, c := range list {
		was, ok := m.drifted[c.Path]
		if !ok || was.found != c.FoundID && !signed(c.Path) || !c.Owned && was.want != wantOf(changes, c) {
			return false
		}
	}
	return true
}

func (m *Memory) add(changes *plan.Changes, list []plan.Change) {
	if m.drifted == nil || len(m.drifted)+len(list) > maxRemembered {
		m.drifted = make(map[string]content)
	}
	for _, c := range list {
		m.drifted[c.Path] = content{found: c.FoundID, want: wantOf(changes, c)}
	}
}
