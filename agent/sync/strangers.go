package sync

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
)

// A pair also copies resources that are in no commit that this node saw: an earlier commit brought them and a later one
// deleted them, and this agent saw neither. Nothing deletes them here, because this agent has no record of them; and a
// user may have created them on the other node instead. So the report names them while they exist.

const (
	// knownNote lists the resources that git did not have when the node was complete. Its first line is the fingerprint
	// of the rules.
	knownNote = "pair-known"
	// broughtNote lists those that came later.
	broughtNote = "pair-brought"
)

// maxKnown bounds knownNote, in bytes. Beyond it, old and new resources cannot be told apart.
const maxKnown = 512 << 10

// maxStrangers bounds broughtNote.
const maxStrangers = 1000

// strangers updates the notes after a sync of a node of a pair that has the commit completely.
func (s *run) strangers() error {
	if !s.r.Paired || s.standby.behind > 0 || s.t.BeforeStart || s.rules.Prune == plan.PruneNone {
		return nil
	}
	var there []string
	for f, err := range s.desired.Unwanted(s.dir.Manifest(), s.dir) {
		if err != nil {
			return fmt.Errorf("look for what git does not have: %w", err)
		}
		if replicated(f.Path) && slices.Contains(marks(), path.Base(f.Path)) {
			there = append(there, f.Path)
		}
	}
	rules := s.rules.Fingerprint()
	known, err := s.lines(knownNote)
	if err != nil {
		return err
	}
	came, err := s.lines(broughtNote)
	if err != nil {
		return err
	}
	if s.brought && len(known) > 0 && known[0] == rules {
		if slices.Contains(known, unbounded) {
			return nil
		}
		came = less(there, known)
	} else {
		came = less(came, less(came, there)) // drop those that are gone or git's now
		if err := s.setLines(knownNote, append([]string{rules}, less(there, came)...)); err != nil {
			return err
		}
	}
	return s.setLines(broughtNote, came[:min(len(came), maxStrangers)])
}

// unbounded replaces the names in knownNote if there are too many.
const unbounded = "*"

// nameStrangers reports the resources that the pair brought, that git does not have and that still exist.
func (s *run) nameStrangers() error {
	if !s.r.Paired {
		return nil
	}
	came, err := s.lines(broughtNote)
	if err != nil || len(came) == 0 {
		return err
	}
	var still []string
	for _, name := range came {
		st, err := s.dir.Stat(name)
		if err != nil {
			return err
		}
		_, owned, err := s.dir.Manifest().Get(name)
		if err != nil {
			return err
		}
		if st.Kind != plan.Missing && !owned {
			still = append(still, name)
		}
	}
	if len(still) > 0 {
		s.r.Message = also(s.r.Message, fmt.Sprintf("%d resources came by the pair and are in no commit that this node met (%s first): they stay until somebody deletes them on the gateway, or commits them",
			len(still), path.Dir(still[0])))
	}
	if len(still) == len(came) {
		return nil
	}
	return s.setLines(broughtNote, still)
}

func (s *run) lines(note string) ([]string, error) {
	b, err := s.dir.Note(note)
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(line string) bool { return line == "" }), err
}

// setLines writes a note if its lines have changed, and deletes it if there are none.
func (s *run) setLines(note string, lines []string) error {
	b := []byte(strings.Join(lines, "\n"))
	if len(b) > maxKnown {
		b = []byte(lines[0] + "\n" + unbounded)
	}
	was, err := s.dir.Note(note)
	if err != nil || bytes.Equal(was, b) {
		return err
	}
	if len(b) == 0 {
		b = nil
	}
	return s.dir.SetNote(note, b)
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
