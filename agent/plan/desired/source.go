package desired

import (
	"bytes"
	"io"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Source says where git has a file of the data directory, or would have a new one.
type Source struct {
	Path    plan.Path // in the commit
	Mapping int       // index in the rules
	ID      plan.ID   // of git's blob; zero for a file that git does not have
	Exec    bool      // of git's file
	recipe  *recipe
}

// Rendered reports whether a template, a patch or the gateway's name can give the file other bytes than git's.
func (s *Source) Rendered() bool { return s.recipe != nil }

// Source returns where git has a desired file, or would have a new one (see mappingFor). It returns false if no mapping brings files
// there.
func (t *Tree) Source(path string) (Source, bool, error) {
	children, err := t.overlay.children(relpath.Parent(path), t.overlay.list)
	if err != nil {
		return Source{}, false, err
	}
	if c := fileOf(children, relpath.Base(path)); c != nil {
		r, err := t.renderer.newRecipe(path, c)
		mapping := int(c.origin)
		return Source{Path: t.overlay.rules.Mappings[mapping].SourceOf(path), Mapping: mapping, ID: c.id, Exec: c.exec, recipe: r}, err == nil, err
	}
	mapping, err := t.mappingFor(path)
	if err != nil || mapping < 0 {
		return Source{}, false, err
	}
	return Source{Path: t.overlay.rules.Mappings[mapping].SourceOf(path), Mapping: mapping}, true, nil
}

// mappingFor returns the mapping of a new file, or -1: that of its nearest sibling, or else of the nearest sibling of a parent, or else
// the one with the longest destination, of several the last.
func (t *Tree) mappingFor(path string) (int, error) {
	covers := func(i int) bool {
		m := &t.overlay.rules.Mappings[i]
		return !t.overlay.isFile[i] && m.Kind != plan.FileSource && relpath.Below(path, m.Destination.Rel())
	}
	for dir, name := relpath.Parent(path), relpath.Base(path); ; dir, name = relpath.Parent(dir), relpath.Base(dir) {
		children, err := t.overlay.children(dir, t.overlay.list)
		if err != nil {
			return -1, err
		}
		if mapping := nearest(children, name, covers); mapping >= 0 {
			return mapping, nil
		}
		if dir == "" {
			break
		}
	}
	best := -1
	for i := range t.overlay.rules.Mappings {
		if covers(i) && (best < 0 || len(t.overlay.rules.Mappings[i].Destination.Rel()) >= len(t.overlay.rules.Mappings[best].Destination.Rel())) {
			best = i
		}
	}
	return best, nil
}

// nearest returns the mapping of the last child before name whose mapping covers the new file, or else of the first such child after
// name, or -1.
func nearest(children []child, name string, covers func(int) bool) int {
	mapping := -1
	for i := range children {
		c := &children[i]
		origin := int(c.origin)
		if c.isDir {
			if len(c.layers) == 0 {
				continue
			}
			origin = int(c.layers[len(c.layers)-1].mapping)
		}
		if !covers(origin) {
			continue
		}
		if c.name > name && mapping >= 0 {
			break
		}
		mapping = origin
	}
	return mapping
}

// Invert returns what git must have at s so that the agent writes wanted to path. Of a patched file, git keeps its own values at the
// patched places. A template cannot be inverted: the error is ChangesRefused. The caller must check that the result renders to wanted.
func (t *Tree) Invert(path string, s Source, wanted []byte) ([]byte, error) {
	switch r := s.recipe; {
	case r == nil:
		return wanted, nil
	case r.template != plain:
		return nil, failure.New(v1alpha1.ReasonChangesRefused, "%s is a template in git (%s), and the agent cannot tell which part of it to change: edit it in git", path, s.Path)
	}
	git, err := t.renderer.read(path, s.ID)
	if err != nil {
		return nil, err
	}
	return render.Unpatch(path, git, wanted, s.recipe.edits)
}

// Resign signs raw, a resource.json that a gateway signed, for the files that inGit writes. It returns raw unchanged if raw is unsigned or
// damaged, if its signature does not match the files that onDisk writes, or if inGit fails.
func Resign(raw []byte, onDisk, inGit func(w io.Writer, name string) error) []byte {
	s, err := resource.ParseSigned(raw)
	if err != nil || s.Stored() == "" {
		return raw
	}
	for _, form := range []resource.Form{resource.Form83, resource.Form81} {
		if sum, err := s.Signature(form, onDisk); err != nil || sum != s.Stored() {
			continue
		}
		if sum, err := s.Signature(form, inGit); err == nil {
			return bytes.Clone(s.WithSignature(sum))
		}
	}
	return raw
}
