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
func (t *Tree) checkPatches() error {
	for _, m := range t.overlay.sources() {
		rule := &t.overlay.rules.Mappings[m.mapping]
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
			found, err := t.matchesAny(m, files)
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
func (t *Tree) matchesAny(m source, pattern string) (bool, error) {
	rule := &t.overlay.rules.Mappings[m.mapping]
	s := search{overlay: t.overlay, pattern: pattern, base: rule.Destination.Rel()}
	top := node{path: s.base, layers: []layer{{mapping: uint16(m.mapping), tree: m.entry.ID}}}
	if s.base != "" {
		top.depth = strings.Count(s.base, "/") + 1
	}
	key := string(rule.Source) + "\x00" + s.base + "\x00" + pattern
	if match, ok := t.renderer.cache.matches[key]; ok {
		s.only = match
		if s.finds(top) {
			return true, nil
		}
		s.only = ""
	}
	found := s.finds(top)
	if found {
		put(t.renderer.cache.matches, key, s.match, maxMatches)
		return true, nil
	}
	return false, s.err
}

// search looks for a file that a pattern matches in the layers of one mapping.
type search struct {
	overlay       *overlay
	pattern, base string
	only          string // if set, the only path to consider
	match         string // the file that was found
	err           error  // of a directory that could not be read; it counts only if nothing is found
	counter
}

// finds reports whether the pattern matches a file below n.
func (s *search) finds(n node) bool {
	if err := s.addDir(&s.overlay.rules.Limits); err != nil {
		s.err = err
		return false
	}
	children, err := s.overlay.list(n)
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
			if s.mayContain(path) && s.finds(c.dir(n)) {
				return true
			}
			continue
		}
		if doublestar.MatchUnvalidated(s.pattern, s.rel(path)) {
			s.match = path
			return true
		}
	}
	return false
}

// rel returns the part of a path below base.
func (s *search) rel(path string) string {
	if s.base == "" {
		return path
	}
	return path[len(s.base)+1:]
}

// mayContain reports whether a directory can have a file that the pattern matches, judged by its first elements.
func (s *search) mayContain(dir string) bool {
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
