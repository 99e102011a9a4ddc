// Package desired lists the files that the data directory of a gateway should have: those of a commit, placed by the mappings of
// the rules, with templates and patches applied. Excluded and never-touch paths and the gateway's mounts are left out.
package desired

import (
	"io"
	"iter"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// File is one desired file.
type File struct {
	Path string
	ID   plan.ID // of the content as the gateway gets it: rendered, or git's
	Exec bool
	// Origin is the index of the mapping in the rules.
	Origin uint16
}

// Tree is the tree that a commit and the rules ask for. It is lazy: a walk reads the trees of the commit, and renders the files of the
// directories that it visits. Its methods must not be called from several goroutines at once.
type Tree struct {
	overlay  *overlay
	renderer *renderer
	renders  bool // some files may have other bytes than git's
	rendered bool // the renderer has rendered all files
}

// NewTree looks up the sources of the mappings in the tree root. Later calls read most of what is below them, and report the errors
// there.
func NewTree(objects plan.Objects, root plan.ID, rules plan.Rules) (*Tree, error) {
	return NewCache().NewTree(objects, root, rules)
}

// NewTree is like the function NewTree, but reuses the results of earlier trees.
func (c *Cache) NewTree(objects plan.Objects, root plan.ID, rules plan.Rules) (*Tree, error) {
	o, err := newOverlay(objects, root, &rules)
	if err != nil {
		return nil, err
	}
	system, err := o.systemFile()
	if err != nil {
		return nil, err
	}
	return &Tree{overlay: o, renderer: newRenderer(o, system, c), renders: rules.Renders()}, nil
}

// Rules returns the rules of the tree.
func (t *Tree) Rules() plan.Rules { return *t.overlay.rules }

// Root returns the id of the commit's tree.
func (t *Tree) Root() plan.ID { return t.overlay.root }

// Warnings returns the warnings found so far, such as skipped submodules and missing sources. The list is bounded.
func (t *Tree) Warnings() []string { return t.overlay.warnings.all() }

// Missing returns the mappings whose sources are not in the commit.
func (t *Tree) Missing() []plan.Mapping { return t.overlay.missing }

// Mounted returns the mounts of the gateway at which the commit has files, sorted.
func (t *Tree) Mounted() []string { return slices.Sorted(slices.Values(t.overlay.mounted)) }

// ReadLocally makes the tree read blobs that the store does not have with read. read returns false if it does not have the blob either.
func (t *Tree) ReadLocally(read func(path string, id plan.ID) ([]byte, bool)) {
	t.renderer.readLocal = read
}

// NoSourceError returns the error for a commit that has the source of no mapping. The caller must have found that Missing has all of
// them, and that there are any.
func (t *Tree) NoSourceError() error { return t.overlay.noSourceError() }

// Has reports whether WriteBlob can write the content of an id.
func (t *Tree) Has(id plan.ID) bool { return t.renderer.has(id) }

// WriteBlob writes the content of a wanted id: rendered, or git's. It knows only what was rendered in the directories
// walked so far.
func (t *Tree) WriteBlob(w io.Writer, id plan.ID) (int64, error) { return t.renderer.writeBlob(w, id) }

// Walk yields all desired files, sorted bytewise by path. It ends after the first error.
func (t *Tree) Walk() iter.Seq2[File, error] { return t.Below("") }

// Below yields the desired files below dir at any depth, sorted. "" is the root.
func (t *Tree) Below(dir string) iter.Seq2[File, error] { return t.walk(dir, t.list) }

// Paths yields the paths of the desired files below dir, sorted. It renders nothing.
func (t *Tree) Paths(dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for f, err := range t.walk(dir, t.overlay.list) {
			if !yield(f.Path, err) {
				return
			}
		}
	}
}

// walk yields the files below dir, as list returns them.
func (t *Tree) walk(dir string, list func(node) ([]child, error)) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		w := walker{list: list, limits: &t.overlay.rules.Limits, yield: yield}
		n, found, err := t.overlay.find(dir)
		if err != nil {
			yield(File{}, err)
			return
		}
		if found {
			w.walk(n)
		}
	}
}

// Lookup returns the desired file at path, if any.
func (t *Tree) Lookup(path string) (File, bool, error) {
	siblings, err := t.List(relpath.Parent(path))
	if err != nil {
		return File{}, false, err
	}
	f, ok := siblings.File(relpath.Base(path))
	return f, ok, nil
}

// Listing has the children of one directory of the desired tree.
type Listing struct {
	tree     *Tree
	path     string
	children []child
}

// List lists a directory. The Listing is empty if the tree does not have the directory.
func (t *Tree) List(path string) (Listing, error) {
	children, err := t.overlay.children(path, t.list)
	return Listing{tree: t, path: path, children: children}, err
}

// Files returns the files in the directory, without those below it.
func (l *Listing) Files() []File {
	var list []File
	for i := range l.children {
		if c := &l.children[i]; !c.isDir {
			list = append(list, c.file(relpath.Join(l.path, c.name)))
		}
	}
	return list
}

// File returns the file of a name, if any.
func (l *Listing) File(name string) (File, bool) {
	c := fileOf(l.children, name)
	if c == nil {
		return File{}, false
	}
	return c.file(relpath.Join(l.path, name)), true
}

// fileOf returns the file of a name, or nil.
func fileOf(children []child, name string) *child {
	i := slices.IndexFunc(children, func(c child) bool { return !c.isDir && c.name == name })
	if i < 0 {
		return nil
	}
	return &children[i]
}

// walker yields a tree depth first.
type walker struct {
	list   func(node) ([]child, error)
	yield  func(File, error) bool
	limits *plan.Limits
	counter
}

func (w *walker) fail(err error) bool {
	w.yield(File{}, err)
	return false
}

func (w *walker) walk(n node) bool {
	if err := w.addDir(w.limits); err != nil {
		return w.fail(err)
	}
	children, err := w.list(n)
	if err != nil {
		return w.fail(err)
	}
	for i := range children {
		c := &children[i]
		if c.isDir {
			if !w.walk(c.dir(n)) {
				return false
			}
			continue
		}
		if err := w.addFile(w.limits); err != nil {
			return w.fail(err)
		}
		if !w.yield(c.file(relpath.Join(n.path, c.name)), nil) {
			return false
		}
	}
	return true
}

// Dirs returns the names of the desired directories in dir, in git's order: a-b before a. It reads only the directories on the way.
func (t *Tree) Dirs(dir string) ([]string, error) {
	children, err := t.overlay.children(dir, t.overlay.list)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range children {
		if children[i].isDir {
			names = append(names, children[i].name)
		}
	}
	return names, nil
}

// list is overlay.list with rendered files.
func (t *Tree) list(n node) ([]child, error) {
	children, err := t.overlay.list(n)
	if err == nil && t.rendersIn(n) {
		err = t.renderer.render(n, children)
	}
	return children, err
}

// rendersIn reports whether anything in a directory or below it may be rendered. A file of a rendering mapping lies in
// one of the layers, or is a destination of its own.
func (t *Tree) rendersIn(n node) bool {
	if !t.renders {
		return false
	}
	if n.below != nil && n.below.renders || relpath.Below(t.renderer.system, n.path) {
		return true
	}
	return slices.ContainsFunc(n.layers, func(l layer) bool { return t.overlay.rules.Mappings[l.mapping].Renders() })
}

// WriteWanted is WriteBlob for an id from a directory that may not have been walked yet. If WriteBlob cannot write the id,
// WriteWanted renders everything once, and returns ErrGone if no file has the id.
func (t *Tree) WriteWanted(w io.Writer, id plan.ID) (int64, error) {
	if !t.Has(id) {
		if err := t.renderAll(); err != nil {
			return 0, err
		}
		if !t.Has(id) {
			return 0, ErrGone
		}
	}
	return t.WriteBlob(w, id)
}

// renderAll renders all files, unless it has done so before.
func (t *Tree) renderAll() error {
	if t.rendered || !t.renders {
		return nil
	}
	rendering := func(n node) ([]child, error) {
		if !t.rendersIn(n) {
			return nil, nil
		}
		return t.list(n)
	}
	for _, err := range t.walk("", rendering) {
		if err != nil {
			return err
		}
	}
	t.rendered = true
	return nil
}

// minDirs is the number of directories that a walk may always enter, however low the limit of files is.
const minDirs = 10_000

// counter counts the directories and files of one walk, and ends the walk at the limits. It counts during the walk, because a small
// repository can have endless paths: 15 nested trees that each list the next one ten times have 10^15.
type counter struct {
	dirs, files int
}

func (c *counter) addDir(l *plan.Limits) error {
	limit := max(l.Files, minDirs)
	if c.dirs++; c.dirs > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the mappings bring more than %d directories: map or exclude less, "+
			"or raise --max-files, which also limits directories", limit)
	}
	return nil
}

func (c *counter) addFile(l *plan.Limits) error {
	c.files++
	return l.CheckFiles(c.files)
}
