package redundancy

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"stoker.io/stoker/agent/plan"
)

// On a standby node, a replicated file that equals neither git nor the last sync has one of two causes. It came from a
// commit that the other node had meanwhile, and will soon be replaced. Or a user changed it on the other node, which is
// drift that the pair copied. Only time distinguishes the two. So the sync first waits for such a file, and reports it as
// drift if it stays unchanged.
//
// For a file without a record, this node does not know what git had before: it may be of an older commit that the other
// node still has. Its time counts only while everything else is complete and the gateway reports nothing left to copy,
// and starts again when any of these files changes.

// driftAge is how long a file must stay unchanged to count as drift.
const driftAge = 5 * time.Minute

// maxRemembered bounds the remembered files.
const maxRemembered = 10_000

// Memory is the memory of a standby node between syncs: the files that it waits for, and those that count as drift. The
// zero value is ready for use.
type Memory struct {
	// waitingFor is the target for which the node waits for files with a record, waitingSince when it began to wait.
	waitingFor   target
	waitingSince time.Time
	// unknown is the fingerprint of the files without a record. unchangedSince is when it last changed or something was
	// left to copy.
	unknown        [sha256.Size]byte
	unchangedSince time.Time
	drifted        map[string]content
	// suffix is the end of the message about the drift of the target described.
	described target
	suffix    string
}

type target struct {
	commit plan.ID
	rules  string
}

// content is the content of a file that counts as drift, and what git wanted.
type content struct{ found, want plan.ID }

// driftOf returns the files, with and without a record, that count as drift, and counts the others as missing. If this node has had the
// complete commit on standby, all are drift, because nothing is left to copy.
func (n *Node) driftOf(changes *plan.Changes, recorded, unrecorded []plan.Change) []plan.Change {
	m, h := n.Memory, n.Dir.Manifest().Header()
	m.described, m.suffix = n.target(), ""
	complete := !n.steppedDown && h.Complete && h.Commit == n.Commit && h.Rules == n.Rules.Fingerprint()
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
	if len(recorded) == 0 {
		m.waitingFor = target{}
	}
	settled := n.unrecordedSettled(changes, recorded, unrecorded)
	add(recorded, complete || m.allDrifted(changes, recorded) || n.overdue(changes, recorded))
	add(unrecorded, complete || settled)
	if len(drifted) > 0 {
		m.suffix = fmt.Sprintf(", except %d that were changed on the gateway (%s first)", len(drifted), drifted[0].Path)
		n.Note("%d replicated files were changed on the gateway and are not restored on a node without config access", len(drifted))
	}
	return drifted
}

// overdue reports whether the node has waited long enough for files with a record. If so, they count as drift from now on.
func (n *Node) overdue(changes *plan.Changes, list []plan.Change) bool {
	m, now := n.Memory, n.Now()
	if m.waitingFor != n.target() {
		m.waitingFor, m.waitingSince = n.target(), now
	}
	if now.Sub(m.waitingSince) < driftAge {
		return false
	}
	m.addDrifted(changes, list)
	return true
}

// unrecordedSettled reports whether files without a record have stayed unchanged for long enough, while nothing else was left to
// copy except possible drift. If the other node replaces some of these files, it is still working. Settled files count as drift from now on.
func (n *Node) unrecordedSettled(changes *plan.Changes, recorded, list []plan.Change) bool {
	m := n.Memory
	quiet := n.state.answered && n.state.connected && !n.state.pending && n.missing.files == 0
	if len(list) == 0 || !quiet {
		m.unchangedSince = time.Time{}
		return false
	}
	if m.allDrifted(changes, list) {
		return true
	}
	if sum := n.fingerprint(changes, recorded, list); m.unchangedSince.IsZero() || m.unknown != sum {
		m.unknown, m.unchangedSince = sum, n.Now()
	}
	if n.Now().Sub(m.unchangedSince) < driftAge {
		return false
	}
	m.addDrifted(changes, list)
	return true
}

// fingerprint identifies the target, the paths of the files with a record, and of those without one also git's blob and the content,
// unless the gateway rewrites the file by itself.
func (n *Node) fingerprint(changes *plan.Changes, recorded, list []plan.Change) (sum [sha256.Size]byte) {
	h := sha256.New()
	line := func(parts ...any) { _, _ = fmt.Fprintf(h, "%q\n", parts) } // a hash never fails
	line(n.Commit, n.Rules.Fingerprint())
	for _, c := range recorded {
		line(c.Path)
	}
	for _, c := range list {
		found := c.FoundID
		if rewrites(c.Path) {
			found = plan.ID{}
		}
		line(c.Path, found, wantOf(changes, c))
	}
	h.Sum(sum[:0])
	return sum
}

func (n *Node) target() target { return target{n.Commit, n.Rules.Fingerprint()} }

// driftSuffix returns the end of the message about drift if the last plan was for the same target.
func (n *Node) driftSuffix() string {
	if n.Memory.described != n.target() {
		return ""
	}
	return n.Memory.suffix
}

// allDrifted reports whether all files already count as drift in their current state. For a file without a record, git must
// also want the same blob, because the other node has to write what git changed since.
func (m *Memory) allDrifted(changes *plan.Changes, list []plan.Change) bool {
	return !slices.ContainsFunc(list, func(c plan.Change) bool {
		known, ok := m.drifted[c.Path]
		return !ok || known.found != c.FoundID && !rewrites(c.Path) || !c.Owned && known.want != wantOf(changes, c)
	})
}

// addDrifted makes files count as drift. If there are more than maxRemembered then, it forgets the earlier ones.
func (m *Memory) addDrifted(changes *plan.Changes, list []plan.Change) {
	if m.drifted == nil || len(m.drifted)+len(list) > maxRemembered {
		m.drifted = make(map[string]content)
	}
	for _, c := range list {
		m.drifted[c.Path] = content{found: c.FoundID, want: wantOf(changes, c)}
	}
}
