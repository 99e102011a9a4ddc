// Package desired lists the files that the data directory of a gateway should have: those of a commit, placed by the mappings of
// the rules, without excluded files, and with templates and patches applied.
package desired

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Want is one desired file.
type File struct {
	Path string
	ID   plan.ID
	Exec bool
	// Origin is the index of the mapping in the rules.
	Origin uint16
}

// Desired is the tree that a commit and the rules ask for. It is lazy: a walk reads the trees of the commit. Its
// methods must not be called from several goroutines at once.
//
// If mappings overlap, the later one wins, file by file. A file of a later mapping hides a directory of the same name
// from earlier mappings, and a directory of a later mapping hides their file.
type Tree struct {
	rules    plan.Rules
	objects  plan.Objects
	root     plan.ID
	graft    *graft
	warnings []string
	overfull bool // there were more warnings than maxWarnings

	cache   *Cache
	renders bool                // some files may have other bytes than git's
	factsID string              // fingerprint of the facts
	single  []bool              // by mapping: its source is a file
	system  string              // path of the file that gets the gateway's name, or ""
	recipes map[plan.ID]*recipe // by id of the result: what has been rendered so far
	walked  bool                // recipes is complete
	steps   int                 // template steps so far
	held    map[string]bool     // directory that would hide a file → whether it has any file
	holding counter             // of all directories read for held
	missing []plan.Mapping      // mappings whose source is not in the commit
	mounted []string            // mounts at which the commit has content
	// local finds the content of a blob of the commit on the disk. It may be nil.
	local func(path string, id plan.ID) ([]byte, bool)
}

// graft is a trie of the destinations: the mappings at one path, and the destinations below it.
type graft struct {
	mounts []mount // in the order of the mappings
	names  []string
	below  map[string]*graft
	last   int // highest mapping that begins strictly below
	// renders reports whether a mapping that begins here or below renders.
	renders bool
}

func (g *graft) empty() bool { return len(g.mounts) == 0 && len(g.below) == 0 }

// mount is a mapping whose source is in the commit.
type mount struct {
	mapping int
	entry   plan.Entry
}

// maxWarnings bounds the warnings of a plan.
const maxWarnings = 20

// Desire looks up the sources of the mappings in the tree root. Walk and Compute read what is below them later, and
// report the errors there.
func NewTree(objects plan.Objects, root plan.ID, rules plan.Rules) (*Tree, error) {
	return desire(objects, root, rules, NewCache())
}

func desire(objects plan.Objects, root plan.ID, rules plan.Rules, cache *Cache) (*Tree, error) {
	d := &Tree{
		rules: rules, objects: objects, root: root, graft: &graft{last: -1}, cache: cache, renders: rules.Renders(),
		factsID: rules.Facts.Fingerprint(), single: make([]bool, len(rules.Mappings)), recipes: make(map[plan.ID]*recipe),
		held: make(map[string]bool),
	}
	for i, m := range rules.Mappings {
		entry, found, err := d.source(m.Source)
		if err != nil {
			return nil, err
		}
		if entry.Mode == plan.Submodule {
			d.warn("submodule %s is skipped", m.Source)
			found = false
		}
		if !found {
			if m.Required {
				return nil, failure.New(v1alpha1.ReasonSourceMissing,
					"mappings[%d]: the commit has no %s, and the mapping is required", i, m.Source)
			}
			d.warn("mappings[%d]: the commit has no %s; skipped", i, m.Source)
			d.missing = append(d.missing, m)
			continue
		}
		if err := checkKind(i, m, entry.Mode); err != nil {
			return nil, err
		}
		if resource.NeverTouch(m.Destination.Rel()) {
			d.warn("mappings[%d]: %s belongs to the gateway; the agent writes nothing there", i, m.Destination)
		}
		d.single[i] = entry.Mode != plan.Directory
		d.mount(m.Destination, mount{mapping: i, entry: entry})
	}
	if rules.AnySource && d.graft.empty() {
		return nil, failure.New(v1alpha1.ReasonSourceMissing,
			"the commit has none of the folders of the service path (%s …): correct the path", rules.Mappings[0].Source)
	}
	if err := d.findMounts(); err != nil {
		return nil, err
	}
	return d, d.findSystem()
}

// Rules returns the rules of the tree.
func (d *Tree) Rules() plan.Rules { return d.rules }

// Root returns the id of the commit's tree.
func (d *Tree) Root() plan.ID { return d.root }

// Warnings returns the warnings found so far, such as skipped submodules and missing sources. The list is bounded.
func (d *Tree) Warnings() []string {
	if !d.overfull {
		return d.warnings
	}
	return append(slices.Clip(d.warnings), "… and more")
}

// Missing returns the mappings whose sources are not in the commit.
func (d *Tree) Missing() []plan.Mapping { return d.missing }

// Mounted returns the mounts of the gateway at which the commit has files, sorted.
func (d *Tree) Mounted() []string { return slices.Sorted(slices.Values(d.mounted)) }

// ReadLocally makes the tree read blobs that the store does not have with read, which returns false if it cannot read a blob either.
func (d *Tree) ReadLocally(read func(path string, id plan.ID) ([]byte, bool)) { d.local = read }

// Walk yields all desired files, sorted bytewise by path. It ends after the first error.
func (d *Tree) Walk() iter.Seq2[File, error] { return d.Below("") }

// Below yields the desired files below dir at any depth, sorted. "" is the root.
func (d *Tree) Below(dir string) iter.Seq2[File, error] { return d.walk(dir, d.list) }

// Paths yields the paths of the desired files below dir, sorted. It renders nothing.
func (d *Tree) Paths(dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for w, err := range d.walk(dir, d.listGit) {
			if !yield(w.Path, err) {
				return
			}
		}
	}
}

// rendering yields the desired files of all directories in which a file may be rendered.
func (d *Tree) rendering() iter.Seq2[File, error] {
	return d.walk("", func(n node) ([]child, error) {
		if !d.rendersIn(n) {
			return nil, nil
		}
		return d.list(n)
	})
}

func (d *Tree) walk(dir string, list func(node) ([]child, error)) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		w := walker{list: list, limits: &d.rules.Limits, yield: yield}
		n, found, err := d.find(dir)
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
func (d *Tree) Lookup(path string) (File, bool, error) {
	siblings, err := d.List(relpath.Parent(path))
	if err != nil {
		return File{}, false, err
	}
	w, ok := siblings.File(relpath.Base(path))
	return w, ok, nil
}

// Listing has the children of one directory of the desired tree.
type Listing struct {
	d        *Tree
	path     string
	children []child
}

// List lists a directory. The Listing is empty if the tree does not have the directory.
func (d *Tree) List(path string) (Listing, error) {
	children, err := d.children(path, d.list)
	return Listing{d: d, path: path, children: children}, err
}

// Files returns the files in the directory, without those below it.
func (l *Listing) Files() []File {
	var list []File
	for i := range l.children {
		if c := &l.children[i]; !c.isDir {
			list = append(list, c.want(relpath.Join(l.path, c.name)))
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
	return c.want(relpath.Join(l.path, name)), true
}

// children lists a directory with list. It returns nil if the tree does not have the directory.
func (d *Tree) children(dir string, list func(node) ([]child, error)) ([]child, error) {
	n, found, err := d.find(dir)
	if err != nil || !found {
		return nil, err
	}
	return list(n)
}

func fileOf(children []child, name string) *child {
	i := slices.IndexFunc(children, func(c child) bool { return !c.isDir && c.name == name })
	if i < 0 {
		return nil
	}
	return &children[i]
}

// find descends to a directory.
func (d *Tree) find(dir string) (node, bool, error) {
	n := d.top()
	if dir == "" {
		return n, true, nil
	}
	for name := range strings.SplitSeq(dir, "/") {
		children, err := d.listGit(n)
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
	if err := w.dir(w.limits); err != nil {
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
		if err := w.file(w.limits); err != nil {
			return w.fail(err)
		}
		if !w.yield(c.want(relpath.Join(n.path, c.name)), nil) {
			return false
		}
	}
	return true
}

// source returns the commit's entry at a path.
func (d *Tree) source(p plan.Path) (plan.Entry, bool, error) {
	at := plan.Entry{Name: ".", Mode: plan.Directory, ID: d.root}
	if p == plan.Root {
		return at, true, nil
	}
	for name := range strings.SplitSeq(string(p), "/") {
		if at.Mode != plan.Directory {
			return plan.Entry{}, false, nil
		}
		entries, err := d.objects.Tree(at.ID)
		if err != nil {
			return plan.Entry{}, false, fmt.Errorf("look up %s in the commit: %w", p, err)
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return plan.Entry{}, false, nil
		}
		if at = entries[i]; at.Mode == plan.Symlink {
			return plan.Entry{}, false, d.symlink("mapping source "+string(p), at.ID)
		}
	}
	return at, true, nil
}

func checkKind(i int, m plan.Mapping, mode plan.Mode) error {
	isDir := mode == plan.Directory
	switch {
	case isDir && m.Kind == plan.FileSource:
		return failure.New(v1alpha1.ReasonSourceMissing,
			"mappings[%d]: type is file, but %s is a directory in the commit", i, m.Source)
	case !isDir && m.Kind == plan.DirSource:
		return failure.New(v1alpha1.ReasonSourceMissing,
			"mappings[%d]: type is dir, but %s is a file in the commit", i, m.Source)
	case !isDir && m.Destination == plan.Root:
		return failure.New(v1alpha1.ReasonProfilesInvalid,
			"mappings[%d]: %s is a file in the commit; name the file in destination", i, m.Source)
	}
	return nil
}

func (d *Tree) mount(destination plan.Path, m mount) {
	g := d.graft
	renders := d.rules.Mappings[m.mapping].Renders()
	if destination != plan.Root {
		for name := range strings.SplitSeq(string(destination), "/") {
			g.last = m.mapping
			g.renders = g.renders || renders
			if g.below == nil {
				g.below = make(map[string]*graft)
			}
			if g.below[name] == nil {
				g.below[name] = &graft{last: -1}
				g.names = append(g.names, name)
			}
			g = g.below[name]
		}
	}
	g.mounts = append(g.mounts, m)
	g.renders = g.renders || renders
}

func (d *Tree) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if slices.Contains(d.warnings, text) {
		return
	}
	if len(d.warnings) >= maxWarnings {
		d.overfull = true
		return
	}
	d.warnings = append(d.warnings, text)
}

// symlink returns the error for a symbolic link under a mapped path. The message has the link's target, if readable, so
// that a user can find and fix the link.
func (d *Tree) symlink(what string, id plan.ID) error {
	target := &head{max: 200}
	_, _ = d.objects.WriteBlob(target, id)
	return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link (to %q); the agent neither follows nor writes links: "+
		"replace the link with its target, or exclude it", what, target.String())
}

// head keeps the first max bytes that are written to it, and then fails.
type head struct {
	bytes.Buffer
	max int
}

var errHeadFull = errors.New("stop reading")

func (h *head) Write(p []byte) (int, error) {
	if room := h.max - h.Len(); len(p) > room {
		h.Buffer.Write(p[:room])
		return room, errHeadFull
	}
	return h.Buffer.Write(p)
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

// Dirs returns the sorted names of the desired directories in dir. It reads only that directory.
func (d *Tree) Dirs(dir string) ([]string, error) {
	children, err := d.children(dir, d.listGit)
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

// shown is the number of paths in a message.
const shown = 10

// NoSourceError returns the error for a first sync whose mappings match nothing in the commit. That is a typing error, and
// must not look like a synced gateway. The message shows what the commit has instead.
func (d *Tree) NoSourceError() error {
	var want []string
	for _, m := range d.missing {
		want = append(want, string(m.Source))
	}
	have, err := d.near(d.missing[0].Source)
	if err != nil {
		return err
	}
	return failure.New(v1alpha1.ReasonSourceMissing, "no mapping matches the commit: it does not have %s; it has %s: correct spec.sync.profiles",
		plan.Enumerate(want, shown), have)
}

// near lists the deepest directory of the commit on the way to p.
func (d *Tree) near(p plan.Path) (string, error) {
	dir, at := "", d.root
	for name := range strings.SplitSeq(string(p), "/") {
		entries, err := d.objects.Tree(at)
		if err != nil {
			return "", fmt.Errorf("read the commit: %w", err)
		}
		found := false
		for _, e := range entries {
			if e.Name == name && e.Mode == plan.Directory {
				dir, at, found = relpath.Join(dir, name), e.ID, true
			}
		}
		if !found {
			break
		}
	}
	entries, err := d.objects.Tree(at)
	if err != nil {
		return "", fmt.Errorf("read the commit: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	where := "at its top "
	if dir != "" {
		where = "in " + dir + " "
	}
	return where + plan.Enumerate(names, shown), nil
}
