package desired

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// node is a directory of the merged tree: the git trees laid over each other there, and the destinations below it.
// Under the same rules, two nodes of one path with the same layers and no destinations below hold the same files.
type node struct {
	path   string // "" for the root
	depth  int
	layers []layer      // in the order of the mappings
	below  *destination // nil if no destination lies below
	floor  int          // a file of a later mapping hides the mappings with a lower index
}

// layer is a tree of the commit that a mapping contributes.
type layer struct {
	mapping uint16
	tree    plan.ID
}

// same reports, without reading them, whether two nodes are known to hold the same files.
func (n node) same(o node) bool {
	return n.below == nil && o.below == nil && slices.Equal(n.layers, o.layers)
}

// child is an entry of a merged directory.
type child struct {
	name   string
	isDir  bool
	exec   bool
	origin uint16
	id     plan.ID // of a file
	recipe *recipe // of a file whose bytes are not git's
	layers []layer
	below  *destination
	floor  int
}

func (c *child) file(path string) File {
	return File{Path: path, ID: c.id, Exec: c.exec, Origin: c.origin}
}

func (c *child) dir(of node) node {
	return node{path: relpath.Join(of.path, c.name), depth: of.depth + 1, layers: c.layers, below: c.below, floor: c.floor}
}

func (o *overlay) top() node {
	n := node{below: o.destinations}
	for _, m := range o.destinations.sources {
		n.layers = append(n.layers, layer{mapping: uint16(m.mapping), tree: m.entry.ID})
	}
	return n
}

// list returns the children of a directory in git's order, without excluded and never-touch paths and mounts. All files have git's ids. It
// refuses unsafe paths.
func (o *overlay) list(n node) ([]child, error) {
	if err := o.rules.Limits.CheckDepth(n.path, n.depth); err != nil {
		return nil, err
	}
	l := lister{overlay: o, dir: n}
	for _, layer := range n.layers {
		if err := l.addTree(layer); err != nil {
			return nil, err
		}
	}
	if len(n.layers) > 1 || n.below != nil {
		if err := l.merge(); err != nil {
			return nil, err
		}
	}
	return l.children, l.checkSiblings()
}

// find returns a directory. It returns false if the tree does not have the directory.
func (o *overlay) find(dir string) (node, bool, error) {
	n := o.top()
	if dir == "" {
		return n, true, nil
	}
	for name := range strings.SplitSeq(dir, "/") {
		children, err := o.list(n)
		if err != nil {
			return node{}, false, err
		}
		i := slices.IndexFunc(children, func(c child) bool { return c.isDir && c.name == name })
		if i < 0 {
			return node{}, false, nil
		}
		n = children[i].dir(n)
	}
	return n, true, nil
}

// children lists a directory with list. It returns nil if the tree does not have the directory.
func (o *overlay) children(dir string, list func(node) ([]child, error)) ([]child, error) {
	n, found, err := o.find(dir)
	if err != nil || !found {
		return nil, err
	}
	return list(n)
}

// lister collects the children of one directory. A single layer yields them sorted. Otherwise they are candidates, possibly
// several per name, until merge decides.
type lister struct {
	overlay  *overlay
	dir      node
	children []child
}

func (l *lister) addTree(from layer) error {
	entries, err := l.overlay.objects.Tree(from.tree)
	if err != nil {
		return fmt.Errorf("read %s of the commit: %w", orRoot(l.dir.path), err)
	}
	l.children = slices.Grow(l.children, len(entries))
	for i, e := range entries {
		if i > 0 && compareNames(entries[i-1].Name, entries[i-1].Mode == plan.Directory, e.Name, e.Mode == plan.Directory) >= 0 {
			return failure.New(v1alpha1.ReasonUnsupportedRepository,
				"tree %s of the commit is damaged: %q is out of order", from.tree.Short(), e.Name)
		}
		if err := l.addEntry(e, from.mapping); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) addEntry(e plan.Entry, mapping uint16) error {
	path := relpath.Join(l.dir.path, e.Name)
	if l.skips(path, e.Mode == plan.Directory) {
		return nil
	}
	if err := l.overlay.rules.Limits.CheckPath(path, e.Name); err != nil && e.Mode == plan.Submodule {
		l.overlay.warnings.add("submodule %s is skipped", failure.Quote(path))
		return nil
	} else if err != nil {
		return err
	}
	switch e.Mode {
	case plan.Directory:
		l.children = append(l.children, child{
			name: e.Name, isDir: true, origin: mapping, layers: []layer{{mapping: mapping, tree: e.ID}},
		})
	case plan.Regular, plan.Executable:
		l.children = append(l.children, child{name: e.Name, exec: e.Mode == plan.Executable, origin: mapping, id: e.ID})
	case plan.Symlink:
		return l.overlay.symlinkError(path, e.ID)
	case plan.Submodule:
		l.overlay.warnings.add("submodule %s is skipped", path)
	default:
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s has an unknown git file mode", path)
	}
	return nil
}

// skips reports whether a path is excluded, never touched, or a mount of the gateway. The lister does not enter such a
// directory.
func (l *lister) skips(path string, isDir bool) bool {
	if resource.NeverTouch(path) {
		return true
	}
	x := &l.overlay.rules.Excludes
	if isDir && x.MatchDir(path) || !isDir && x.MatchFile(path) {
		return true
	}
	if mount := l.overlay.rules.Mounts.At(path); mount != "" {
		l.overlay.skipMount(mount)
		return true
	}
	if isDir && x.MatchFile(path) {
		l.overlay.warnings.add("an exclude pattern matches the directory %s but not its files; end the pattern with a slash", path)
	}
	return false
}

// merge decides between the candidates of each name: the last mapping wins, also between a file and a directory.
func (l *lister) merge() error {
	if err := l.addDestinations(); err != nil {
		return err
	}
	slices.SortStableFunc(l.children, func(a, b child) int {
		if a.name != b.name {
			return compareNames(a.name, false, b.name, false)
		}
		return int(a.origin) - int(b.origin)
	})
	merged := l.children[:0:0]
	for rest := l.children; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].name == rest[0].name {
			if rest[n].origin == rest[n-1].origin {
				return l.collision(rest[n].name, rest[n-1].name)
			}
			n++
		}
		c, ok, err := l.decide(rest[:n])
		if err != nil {
			return err
		}
		if ok {
			merged = append(merged, c)
		}
		rest = rest[n:]
	}
	slices.SortFunc(merged, func(a, b child) int { return compareNames(a.name, a.isDir, b.name, b.isDir) })
	l.children = merged
	return nil
}

// addDestinations adds a candidate for each destination in this directory, and a directory without layers for each name below
// which other destinations lie.
func (l *lister) addDestinations() error {
	if l.dir.below == nil {
		return nil
	}
	for _, name := range l.dir.below.names {
		d := l.dir.below.below[name]
		for _, m := range d.sources {
			if m.mapping < l.dir.floor {
				continue
			}
			e := m.entry
			e.Name = name
			if err := l.addEntry(e, uint16(m.mapping)); err != nil {
				return err
			}
		}
		path := relpath.Join(l.dir.path, name)
		if d.last >= l.dir.floor && d.below != nil && !l.skips(path, true) {
			if err := l.overlay.rules.Limits.CheckPath(path, name); err != nil {
				return err
			}
			l.children = append(l.children, child{name: name, isDir: true, origin: uint16(d.last), below: d})
		}
	}
	return nil
}

// decide merges the candidates of one name, in the order of the mappings. A directory that is empty after the excludes
// hides no file.
func (l *lister) decide(candidates []child) (child, bool, error) {
	var file *child
	dir := child{name: candidates[0].name, isDir: true, floor: l.dir.floor}
	for i := range candidates {
		if c := &candidates[i]; !c.isDir {
			file, dir.floor = c, int(c.origin)+1
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if !c.isDir || int(c.origin) < dir.floor {
			continue
		}
		dir.layers = append(dir.layers, c.layers...)
		if c.below != nil {
			dir.below = c.below
		}
	}
	isDir := len(dir.layers) > 0 || dir.below != nil
	if isDir && file != nil {
		var err error
		if isDir, err = l.overlay.hasFile(dir.dir(l.dir)); err != nil {
			return child{}, false, err
		}
	}
	switch {
	case isDir:
		return dir, true, nil
	case file != nil:
		return *file, true, nil
	}
	return child{}, false, nil
}

// hasFile reports whether a directory has any file, at any depth. It remembers the answer, because every file of a
// mapping may compete with a directory of another.
func (o *overlay) hasFile(n node) (bool, error) {
	if holds, ok := o.hasFiles[n.path]; ok {
		return holds, nil
	}
	holds, err := o.findFile(n)
	if err == nil {
		o.hasFiles[n.path] = holds
	}
	return holds, err
}

func (o *overlay) findFile(n node) (bool, error) {
	if err := o.filesSearched.addDir(&o.rules.Limits); err != nil {
		return false, err
	}
	children, err := o.list(n)
	if err != nil {
		return false, err
	}
	for i := range children {
		if !children[i].isDir {
			return true, nil
		}
	}
	for i := range children {
		if holds, err := o.findFile(children[i].dir(n)); holds || err != nil {
			return holds, err
		}
	}
	return false, nil
}

// checkSiblings refuses names that are the same on some file systems.
func (l *lister) checkSiblings() error {
	f := foldedNames{seen: make(map[string]string, len(l.children))}
	for i := range l.children {
		if other, collides := f.add(l.children[i].name); collides {
			return l.collision(other, l.children[i].name)
		}
	}
	return nil
}

func (l *lister) collision(a, b string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "%q and %q are the same path on a file system that ignores case or "+
		"normalizes Unicode, or a file and a directory with the same name; rename one of them",
		relpath.Join(l.dir.path, a), relpath.Join(l.dir.path, b))
}

func orRoot(path string) string {
	if path == "" {
		return "the root"
	}
	return path
}

// foldedNames finds names of one directory that are the same name on file systems that ignore case or normalize Unicode. Two
// paths collide only if their elements do, so comparing siblings finds every collision of a tree while holding only one
// directory.
type foldedNames struct {
	seen map[string]string // folded name → name
}

// add returns the sibling that collides with name, if any.
func (f *foldedNames) add(name string) (other string, collides bool) {
	key := relpath.Fold(name)
	if other, collides = f.seen[key]; !collides {
		f.seen[key] = name
	}
	return other, collides
}

// compareNames orders the names of one directory so that a depth-first walk is sorted bytewise by path: a directory
// sorts as if its name ended in a slash. This is git's order.
func compareNames(a string, aDir bool, b string, bDir bool) int {
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	return cmp.Compare(nextByte(a, n, aDir), nextByte(b, n, bDir))
}

func nextByte(s string, i int, dir bool) int {
	switch {
	case i < len(s):
		return int(s[i])
	case dir:
		return '/'
	}
	return -1
}
