package desired

import (
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// checkPatches returns an error for a patch that matches no file of its mapping: such a patch is a mistake. A mapping
// whose source is missing is skipped with its patches.
func (d *Tree) checkPatches() error {
	for _, m := range d.overlay.sources() {
		rule := &d.overlay.rules.Mappings[m.mapping]
		for j := range rule.Patches {
			files := rule.Patches[j].Files
			invalid := func(format string, args ...any) error {
				return failure.New(v1alpha1.ReasonPatchFailed, "mappings[%d].patches[%d]: %s", m.mapping, j, fmt.Sprintf(format, args...))
			}
			switch isFile := m.entry.Mode != plan.Directory; {
			case isFile && files != "":
				return invalid("%s is a file in the commit: remove file", rule.Source)
			case isFile:
				continue
			case files == "":
				return invalid("%s is a folder in the commit: set file to the files to patch", rule.Source)
			}
			found, err := d.matchesAny(m, files)
			if err != nil {
				return err
			}
			if !found {
				return invalid("no file of %s matches %q: correct the pattern, or remove the patch", rule.Source, files)
			}
		}
	}
	return nil
}

// matchesAny reports whether a mapping brings a file that the pattern matches. It tries the file that matched last time
// first, which usually costs one lookup, and then searches the mapping.
func (d *Tree) matchesAny(m source, pattern string) (bool, error) {
	rule := &d.overlay.rules.Mappings[m.mapping]
	s := search{o: d.overlay, pattern: pattern, base: rule.Destination.Rel()}
	top := node{path: s.base, layers: []layer{{mapping: uint16(m.mapping), tree: m.entry.ID}}}
	if s.base != "" {
		top.depth = strings.Count(s.base, "/") + 1
	}
	key := string(rule.Source) + "\x00" + s.base + "\x00" + pattern
	if proof, ok := d.renderer.cache.proofs[key]; ok {
		s.only = proof
		if s.in(top) {
			return true, nil
		}
		s.only = ""
	}
	found := s.in(top)
	if found {
		put(d.renderer.cache.proofs, key, s.proof, maxProofs)
		return true, nil
	}
	return false, s.err
}

// search looks for a file that a pattern matches in the layers of one mapping.
type search struct {
	o             *overlay
	pattern, base string
	only          string // if set, the only path to consider
	proof         string
	err           error // of a directory that could not be read; it counts only if nothing is found
	counter
}

func (s *search) in(n node) bool {
	if err := s.dir(&s.o.rules.Limits); err != nil {
		s.err = err
		return false
	}
	children, err := s.o.list(n)
	if err != nil {
		s.err = err
		return false
	}
	for i := range children {
		c := &children[i]
		path := relpath.Join(n.path, c.name)
		if s.only != "" && path != s.only && !relpath.Below(s.only, path) {
			continue
		}
		if c.isDir {
			if s.leads(path) && s.in(c.dir(n)) {
				return true
			}
			continue
		}
		if doublestar.MatchUnvalidated(s.pattern, s.rel(path)) {
			s.proof = path
			return true
		}
	}
	return false
}

func (s *search) rel(path string) string {
	if s.base == "" {
		return path
	}
	return path[len(s.base)+1:]
}

// leads reports whether a directory can have a file that the pattern matches, judged by its first elements.
func (s *search) leads(dir string) bool {
	if strings.ContainsAny(s.pattern, `{\`) {
		return true // a brace expression may contain a slash
	}
	pattern := strings.Split(s.pattern, "/")
	for i, name := range strings.Split(s.rel(dir), "/") {
		switch {
		case i == len(pattern)-1 && pattern[i] != "**":
			return false
		case pattern[i] == "**":
			return true
		case !doublestar.MatchUnvalidated(pattern[i], name):
			return false
		}
	}
	return true
}
