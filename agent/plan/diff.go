package plan

import (
	"errors"
	"iter"
)

// delta is a path that two desired trees do not have in common. after is nil where the newer tree does not have it.
type delta struct {
	path  string
	after *Want
}

// errPrevious marks an error that came from the older of two trees, which is there to save work and can be done without.
var errPrevious = errors.New("the previous tree cannot be read")

// diff yields what differs between two trees that were made with the same rules, bytewise sorted by path. Directories
// that are made of the same trees are not read, so that its cost is that of the changed directories.
func diff(from, to *Desired) iter.Seq2[delta, error] {
	return func(yield func(delta, error) bool) {
		x := differ{from: from, to: to, yield: yield}
		if from.root != to.root {
			before, after := from.top(), to.top()
			x.dirs(&before, &after)
		}
	}
}

type differ struct {
	from, to *Desired
	yield    func(delta, error) bool
}

// dirs compares two directories of one path; nil is one that is not there. It returns false when the walk must end.
func (x *differ) dirs(from, to *node) bool {
	if from != nil && to != nil && from.same(*to) {
		return true
	}
	before, err := listOf(x.from, from)
	if err != nil {
		x.yield(delta{}, errors.Join(errPrevious, err))
		return false
	}
	after, err := listOf(x.to, to)
	if err != nil {
		x.yield(delta{}, err)
		return false
	}
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
		if !x.child(from, b, to, a) {
			return false
		}
	}
	return true
}

// child compares two children of one name that are both files or both directories; nil is one that is not there.
func (x *differ) child(from *node, b *child, to *node, a *child) bool {
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
		return x.dirs(before, after)
	}
	if a != nil && b != nil && a.id == b.id && a.exec == b.exec && a.origin == b.origin {
		return true
	}
	if a == nil {
		return x.yield(delta{path: join(from.path, b.name)}, nil)
	}
	w := a.want(join(to.path, a.name))
	return x.yield(delta{path: w.Path, after: &w}, nil)
}

func listOf(d *Desired, n *node) ([]child, error) {
	if n == nil {
		return nil, nil
	}
	return d.list(*n)
}

func compareHeads(a, b []child) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return compareNames(a[0].name, a[0].isDir, b[0].name, b[0].isDir)
}
