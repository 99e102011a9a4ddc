package desired

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Delta is a path at which two desired trees differ. After is nil if the newer tree does not have the path.
type Delta struct {
	Path  string
	After *File
	// Uncertain reports that only the manifest's record tells whether the file differs, because its bytes are not git's.
	Uncertain bool
}

// ErrPrevious marks an error of the older tree, which only saves work: planner.Compute can do without it.
var ErrPrevious = errors.New("the previous tree cannot be read")

// Diff yields the paths at which two trees made with the same rules differ, sorted bytewise. It skips directories made
// of the same trees, unless something in them renders differently, so its cost is that of the changed directories. It
// renders nothing of the older tree: the manifest has those results.
func Diff(from, to *Tree) iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		x := newDiffer(from, to, yield)
		if from.overlay.root != to.overlay.root || to.renders {
			before, after := from.overlay.top(), to.overlay.top()
			x.compareDirs(&before, &after)
		}
	}
}

// differ is the state of one Diff.
type differ struct {
	from, to *Tree
	yield    func(Delta, error) bool
	stale    []bool   // by mapping: the values of its patches differ
	commit   bool     // the ref or the commit differs
	forced   []string // files that are compared by their records, whatever git's ids say

	before, after, volatile counter // directories and files listed in either tree, and by volatileTree
}

func newDiffer(from, to *Tree, yield func(Delta, error) bool) *differ {
	a, b := from.overlay.rules, to.overlay.rules
	x := &differ{from: from, to: to, yield: yield, stale: make([]bool, len(b.Mappings))}
	x.commit = a.Facts.Ref != b.Facts.Ref || a.Facts.Commit != b.Facts.Commit
	for i := range b.Mappings {
		x.stale[i] = i >= len(a.Mappings) || a.Mappings[i].VolatileValues() != b.Mappings[i].VolatileValues()
	}
	if from.renderer.system != to.renderer.system || a.SystemName.Value != b.SystemName.Value {
		for _, path := range []string{from.renderer.system, to.renderer.system} {
			if path != "" {
				x.forced = append(x.forced, path, relpath.Join(relpath.Parent(path), resource.File))
			}
		}
	}
	return x
}

// same reports whether two directories have the same files with the same bytes.
func (x *differ) same(from, to *node) bool {
	if !from.same(*to) || slices.ContainsFunc(x.forced, func(path string) bool { return relpath.Below(path, to.path) }) {
		return false
	}
	return !slices.ContainsFunc(to.layers, func(l layer) bool {
		if x.stale[l.mapping] {
			return true
		}
		if !x.commit || !x.to.overlay.rules.Mappings[l.mapping].Template {
			return false
		}
		volatile, err := x.to.renderer.volatileTree(l.tree, to.depth, &x.volatile)
		return volatile || err != nil // the walk reports the error
	})
}

// uncertain reports whether the files of a directory must be compared by their records: if a file or one beside it is
// rendered, git's ids do not tell whether it differs, because a resource.json contains a signature over the files beside it.
func (x *differ) uncertain(path string, lists ...[]child) bool {
	if !x.to.renders {
		return false
	}
	if slices.ContainsFunc(x.forced, func(f string) bool { return relpath.Parent(f) == path }) {
		return true
	}
	for _, list := range lists {
		if slices.ContainsFunc(list, func(c child) bool {
			return !c.isDir && (x.to.overlay.rules.Mappings[c.origin].Renders() || relpath.Join(path, c.name) == x.to.renderer.system)
		}) {
			return true
		}
	}
	return false
}

// compareDirs compares two directories of one path; nil is a missing one. It returns false if the walk must end.
func (x *differ) compareDirs(from, to *node) bool {
	if from != nil && to != nil && x.same(from, to) {
		return true
	}
	before, err := listOf(from, x.from.overlay.list, &x.before, &x.from.overlay.rules.Limits)
	if err != nil {
		x.yield(Delta{}, errors.Join(ErrPrevious, err))
		return false
	}
	after, err := listOf(to, x.to.list, &x.after, &x.to.overlay.rules.Limits)
	if err != nil {
		x.yield(Delta{}, err)
		return false
	}
	uncertain := to != nil && x.uncertain(to.path, before, after)
	for len(before) > 0 || len(after) > 0 {
		var b, a *child
		switch c := compareHeads(before, after); {
		case c < 0:
			b, before = &before[0], before[1:]
		case c > 0:
			a, after = &after[0], after[1:]
		default:
			b, before = &before[0], before[1:]
			a, after = &after[0], after[1:]
		}
		if !x.compareChildren(from, b, to, a, uncertain) {
			return false
		}
	}
	return true
}

// compareChildren compares two children of one name that are both files or both directories; nil is a missing one.
func (x *differ) compareChildren(from *node, b *child, to *node, a *child, uncertain bool) bool {
	if b != nil && b.isDir || a != nil && a.isDir {
		var before, after *node
		if b != nil {
			n := b.dir(*from)
			before = &n
		}
		if a != nil {
			n := a.dir(*to)
			after = &n
		}
		return x.compareDirs(before, after)
	}
	if a != nil && b != nil && a.id == b.id && a.exec == b.exec && a.origin == b.origin && !uncertain {
		return true
	}
	if a == nil {
		return x.yield(Delta{Path: relpath.Join(from.path, b.name)}, nil)
	}
	f := a.file(relpath.Join(to.path, a.name))
	return x.yield(Delta{Path: f.Path, After: &f, Uncertain: uncertain}, nil)
}

// listOf lists a directory of one tree and counts its children. A nil node has none.
func listOf(n *node, list func(node) ([]child, error), count *counter, limits *plan.Limits) ([]child, error) {
	if n == nil {
		return nil, nil
	}
	if err := count.addDir(limits); err != nil {
		return nil, err
	}
	children, err := list(*n)
	for i := 0; err == nil && i < len(children); i++ {
		if !children[i].isDir {
			err = count.addFile(limits)
		}
	}
	return children, err
}

// compareHeads compares the first names of two lists. An empty list comes last.
func compareHeads(a, b []child) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compareNames(a[0].name, a[0].isDir, b[0].name, b[0].isDir)
}

// Bounds of a Cache: the entries of its maps, and the bytes of the results that it keeps. A full map is emptied.
const (
	maxKinds   = 200_000
	maxResults = 50_000
	maxMatches = 1024
	maxBytes   = 8 << 20
)

// Cache remembers rendering results across plans. A key covers everything that went into a result, so entries never go
// stale. The size is bounded, and losing entries only costs work. A Cache must not be used by several goroutines at
// once.
type Cache struct {
	kinds   map[plan.ID]kind          // of blobs and trees; a tree is volatile if any blob in it is
	results map[[32]byte]plan.ID      // recipe key → id of its result
	matches map[string]string         // pattern of a patch → a file that matched it
	bytes   map[plan.ID]*list.Element // the elements of recent by id
	recent  *list.List                // of rendered, most recently used first
	size    int                       // bytes in recent
}

type rendered struct {
	id      plan.ID
	content []byte
}

// NewCache returns an empty Cache.
func NewCache() *Cache {
	return &Cache{
		kinds: make(map[plan.ID]kind), results: make(map[[32]byte]plan.ID), matches: make(map[string]string),
		bytes: make(map[plan.ID]*list.Element), recent: list.New(),
	}
}

// put sets m[key], after emptying a map that has reached limit.
func put[K comparable, V any](m map[K]V, key K, value V, limit int) {
	if len(m) >= limit {
		clear(m)
	}
	m[key] = value
}

// keep remembers the id of a result, and its bytes if they are not too many.
func (c *Cache) keep(key [sha256.Size]byte, id plan.ID, content []byte) {
	put(c.results, key, id, maxResults)
	if len(content) > maxBytes/4 || c.bytes[id] != nil {
		return
	}
	c.bytes[id] = c.recent.PushFront(rendered{id, content})
	for c.size += len(content); c.size > maxBytes; {
		oldest := c.recent.Remove(c.recent.Back()).(rendered) //nolint:forcetypeassert // nothing else is in it
		delete(c.bytes, oldest.id)
		c.size -= len(oldest.content)
	}
}

func (c *Cache) content(id plan.ID) ([]byte, bool) {
	e, ok := c.bytes[id]
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(e)
	r, ok := e.Value.(rendered)
	return r.content, ok
}

// Source says where git has a file of the data directory, or would have a new one.
type Source struct {
	Path    plan.Path // in the commit
	Mapping int       // index in the rules
	ID      plan.ID   // of git's blob; zero for a file that git does not have
	Exec    bool      // of git's file
	recipe  *recipe
}

// Rendered reports whether the file on the disk has other bytes than git: a template, a patch or the gateway's name changes them.
func (s *Source) Rendered() bool { return s.recipe != nil }

// Source returns where git has a desired file, or would have a new one: with its nearest sibling, or else by the mapping with the longest
// destination. It returns false if no mapping brings files there.
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

// mappingFor returns the mapping of a new file, or -1: that of its nearest sibling or, further up, of the nearest sibling of a parent.
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
// patched places. A template cannot be inverted. The caller must check that the result renders to wanted.
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

// Resign signs raw, a resource.json that a gateway signed, for the files that inGit writes. It returns raw if it is unsigned, or if its
// signature does not match the files that onDisk writes.
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
