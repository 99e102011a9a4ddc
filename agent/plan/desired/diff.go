package desired

import (
	"errors"
	"iter"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// Delta is a path at which two desired trees differ. After is nil if the newer tree does not have the path.
type Delta struct {
	Path  string
	After *File
	// Uncertain reports that only the manifest's record tells whether the file differs, because its bytes are not git's.
	Uncertain bool
}

// ErrPrevious marks an error of the older tree. planner.Compute then compares all files instead.
var ErrPrevious = errors.New("the previous tree cannot be read")

// Diff yields the paths at which two trees differ, or may differ (Delta.Uncertain), sorted bytewise. The rules of the trees must have the
// same fingerprint. Diff skips directories made of the same trees, unless something in them renders differently, so its cost is that of
// the changed directories. It renders nothing of the older tree: the manifest has those results.
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
