package redundancy

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A pair also copies resources that are in no commit that this node saw. Either an earlier commit brought them and a later
// one deleted them, or a user created them on the other node. This agent has no record of them, so it deletes none. The report
// names them while they exist.

const (
	// knownNote has the fingerprint of the rules, and the resources that git did not have at the first complete sync with these rules, or at
	// the last one while the pair could copy nothing to the node.
	knownNote = "pair-known"
	// untrackedNote lists the resources that appeared since and that git does not have.
	untrackedNote = "pair-brought"
)

// maxKnown bounds the notes in bytes. If knownNote is longer, old and new resources cannot be told apart.
const maxKnown = 512 << 10

// maxUntracked bounds the lines of untrackedNote.
const maxUntracked = 1000

// recordUntracked updates the notes after a sync of a node of a pair, if the node has the complete commit. It does nothing before a start of
// the gateway, and if nothing is pruned.
func (n *Node) recordUntracked(desired *desired.Tree) error {
	if !n.paired || n.missing.files > 0 || n.BeforeStart || n.Rules.Prune == plan.PruneNone {
		return nil
	}
	var unwanted []string
	for f, err := range desired.Unwanted(n.Dir.Manifest(), n.Dir) {
		if err != nil {
			return fmt.Errorf("list files that git does not have: %w", err)
		}
		if Replicated(f.Path) && slices.Contains(descriptors(), path.Base(f.Path)) {
			unwanted = append(unwanted, f.Path)
		}
	}
	rules := n.Rules.Fingerprint()
	known, err := n.lines(knownNote)
	if err != nil {
		return err
	}
	untracked, err := n.lines(untrackedNote)
	if err != nil {
		return err
	}
	if n.copied && len(known) > 0 && known[0] == rules {
		if slices.Contains(known, tooMany) {
			return nil
		}
		untracked = subtract(unwanted, known)
	} else {
		untracked = subtract(untracked, subtract(untracked, unwanted)) // drop those that are gone or git's now
		if err := n.setLines(knownNote, append([]string{rules}, subtract(unwanted, untracked)...)); err != nil {
			return err
		}
	}
	return n.setLines(untrackedNote, untracked[:min(len(untracked), maxUntracked)])
}

// tooMany replaces the names in a note that would exceed maxKnown.
const tooMany = "*"

// describeUntracked names the untracked resources that still exist, or returns "". It removes the others from the note.
func (n *Node) describeUntracked() (string, error) {
	if !n.paired {
		return "", nil
	}
	recorded, err := n.lines(untrackedNote)
	if err != nil || len(recorded) == 0 {
		return "", err
	}
	var untracked []string
	for _, name := range recorded {
		st, err := n.Dir.Stat(name)
		switch {
		case failure.Is(err, v1alpha1.ReasonUnsafePath), errors.Is(err, syscall.ENAMETOOLONG): // the gateway can write the note, too
			continue
		case err != nil:
			return "", err
		}
		_, owned, err := n.Dir.Manifest().Get(name)
		if err != nil {
			return "", err
		}
		if st.Kind != plan.Missing && !owned {
			untracked = append(untracked, name)
		}
	}
	text := ""
	if len(untracked) > 0 {
		text = fmt.Sprintf("the pair copied %d resources that are in no commit of this node (%s first): delete them on the gateway, or commit them",
			len(untracked), path.Dir(untracked[0]))
	}
	return text, n.setLines(untrackedNote, untracked)
}

// lines returns the lines of a note.
func (n *Node) lines(note string) ([]string, error) {
	b, err := n.Dir.Note(note)
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(line string) bool { return line == "" }), err
}

// setLines writes a note if its lines have changed, and deletes it if there are none.
func (n *Node) setLines(note string, lines []string) error {
	b := []byte(strings.Join(lines, "\n"))
	if len(b) > maxKnown {
		b = []byte(lines[0] + "\n" + tooMany)
	}
	old, err := n.Dir.Note(note)
	if err != nil || bytes.Equal(old, b) {
		return err
	}
	if len(b) == 0 {
		b = nil
	}
	return n.Dir.SetNote(note, b)
}

// subtract returns a without the elements of b.
func subtract(a, b []string) []string {
	inB := make(map[string]bool, len(b))
	for _, name := range b {
		inB[name] = true
	}
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return inB[name] })
}
