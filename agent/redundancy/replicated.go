package redundancy

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
)

// A pair also copies resources that are in no commit that this node saw: an earlier commit brought them and a later one
// deleted them, and this agent saw neither. Nothing deletes them here, because this agent has no record of them; and a
// user may have created them on the other node instead. So the report names them while they exist.

const (
	// knownNote lists the resources that git did not have when the node was complete. Its first line is the fingerprint
	// of the rules.
	knownNote = "pair-known"
	// extraNote lists those that came later.
	extraNote = "pair-brought"
)

// maxKnown bounds knownNote, in bytes. Beyond it, old and new resources cannot be told apart.
const maxKnown = 512 << 10

// maxExtra bounds extraNote.
const maxExtra = 1000

// recordExtra updates the notes after a sync of a node of a pair that has the commit completely.
func (n *Node) recordExtra(tree *desired.Tree) error {
	if !n.paired || n.missing.files > 0 || n.BeforeStart || n.Rules.Prune == plan.PruneNone {
		return nil
	}
	var there []string
	for f, err := range tree.Unwanted(n.Dir.Manifest(), n.Dir) {
		if err != nil {
			return fmt.Errorf("list files that git does not have: %w", err)
		}
		if Replicated(f.Path) && slices.Contains(descriptors(), path.Base(f.Path)) {
			there = append(there, f.Path)
		}
	}
	rules := n.Rules.Fingerprint()
	known, err := n.lines(knownNote)
	if err != nil {
		return err
	}
	came, err := n.lines(extraNote)
	if err != nil {
		return err
	}
	if n.copied && len(known) > 0 && known[0] == rules {
		if slices.Contains(known, unbounded) {
			return nil
		}
		came = less(there, known)
	} else {
		came = less(came, less(came, there)) // drop those that are gone or git's now
		if err := n.setLines(knownNote, append([]string{rules}, less(there, came)...)); err != nil {
			return err
		}
	}
	return n.setLines(extraNote, came[:min(len(came), maxExtra)])
}

// unbounded replaces the names in knownNote if there are too many.
const unbounded = "*"

// describeExtra names the resources that the pair copied, that git does not have and that still exist.
func (n *Node) describeExtra() (string, error) {
	if !n.paired {
		return "", nil
	}
	came, err := n.lines(extraNote)
	if err != nil || len(came) == 0 {
		return "", err
	}
	var still []string
	for _, name := range came {
		st, err := n.Dir.Stat(name)
		if err != nil {
			return "", err
		}
		_, owned, err := n.Dir.Manifest().Get(name)
		if err != nil {
			return "", err
		}
		if st.Kind != plan.Missing && !owned {
			still = append(still, name)
		}
	}
	text := ""
	if len(still) > 0 {
		text = fmt.Sprintf("the pair copied %d resources that are in no commit of this node (%s first): delete them on the gateway, or commit them",
			len(still), path.Dir(still[0]))
	}
	if len(still) == len(came) {
		return text, nil
	}
	return text, n.setLines(extraNote, still)
}

func (n *Node) lines(note string) ([]string, error) {
	b, err := n.Dir.Note(note)
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(line string) bool { return line == "" }), err
}

// setLines writes a note if its lines have changed, and deletes it if there are none.
func (n *Node) setLines(note string, lines []string) error {
	b := []byte(strings.Join(lines, "\n"))
	if len(b) > maxKnown {
		b = []byte(lines[0] + "\n" + unbounded)
	}
	was, err := n.Dir.Note(note)
	if err != nil || bytes.Equal(was, b) {
		return err
	}
	if len(b) == 0 {
		b = nil
	}
	return n.Dir.SetNote(note, b)
}

// less returns a without the elements of b.
func less(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, name := range b {
		in[name] = true
	}
	var out []string
	for _, name := range a {
		if !in[name] {
			out = append(out, name)
		}
	}
	return out
}
