package references

import (
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
)

// Index has what the files of one commit define and name. It grows with the number of views, queries, tags and config resources.
type Index struct {
	files    map[string]*file
	defined  map[Name]int   // by key
	scopes   map[Name]int   // definitions by kind and scope; Name.Name is ""
	unread   map[string]int // by file.unread: number of files
	projects map[string]*project
	names    int // in all files
	types    int // bytes of UDT types in all files
	// open are the files whose names the next check looks up: those that have changed, and those with a name that the commit does not define.
	// If all is set, a definition is gone or a project has changed, and the next check looks up the names of all files.
	open map[string]bool
	all  bool
}

// Reader returns the content of a desired file, which is valid until the next call. ok is false if the content has more than limit bytes,
// or if neither the store nor the disk has it.
type Reader func(path string, id plan.ID, limit int64) (content []byte, ok bool, err error)

// NewIndex returns the Index of a commit without files.
func NewIndex() *Index {
	return &Index{
		files: map[string]*file{}, defined: map[Name]int{}, scopes: map[Name]int{}, unread: map[string]int{}, projects: map[string]*project{},
		open: map[string]bool{},
	}
}

// Update moves the index to the files of to. from is the tree that the index has now, so that Update reads only the directories that
// differ. If from is nil, because that tree or its rules are unknown, Update visits all files. After an error the index matches no commit.
func (x *Index) Update(from, to *desired.Tree, read Reader) error {
	if from != nil {
		for d, err := range desired.Diff(from, to) {
			switch {
			case err != nil:
				return err
			case d.After == nil:
				x.replace(d.Path, nil)
			default:
				if err := x.put(d.Path, d.After.ID, read); err != nil {
					return err
				}
			}
		}
		return nil
	}
	seen := make(map[string]bool, len(x.files))
	for f, err := range to.Walk() {
		if err != nil {
			return err
		}
		if err := x.put(f.Path, f.ID, read); err != nil {
			return err
		}
		if x.files[f.Path] != nil {
			seen[f.Path] = true
		}
	}
	for path := range x.files {
		if !seen[path] {
			x.replace(path, nil)
		}
	}
	return nil
}

// put records a file, and reads it unless the index has it.
func (x *Index) put(path string, id plan.ID, read Reader) error {
	if old := x.files[path]; old != nil && old.id == id {
		return nil
	}
	extractor := extractorOf(path)
	if extractor == nil {
		return nil
	}
	var content []byte
	known := true
	if extractor.extract != nil {
		var err error
		if content, known, err = read(path, id, maxFile); err != nil {
			return err
		}
	}
	x.replace(path, extractor.read(id, content, known))
	return nil
}

// replace replaces what is known of a file; nil removes it.
func (x *Index) replace(path string, f *file) {
	old := x.files[path]
	var oldProject, newProject *project
	if old != nil {
		x.names -= len(old.names)
		x.types -= old.typesSize
		oldProject = old.project
	}
	if f == nil {
		delete(x.files, path)
		delete(x.open, path)
	} else {
		if room := maxReferences - x.names; len(f.names) > room {
			f.names = slices.Clone(f.names[:room])
		}
		x.names += len(f.names)
		if f.typesSize > maxTypes-x.types {
			f.unread, f.defines, f.typesSize = f.defines[0].Scope, nil, 0
		}
		x.types += f.typesSize
		x.files[path] = f
		x.open[path] = true
		x.count(f, 1)
		newProject = f.project
	}
	if old != nil { // last, so that a definition that stays is never gone
		x.count(old, -1)
	}
	switch {
	case newProject != nil:
		x.all = x.all || oldProject == nil || *oldProject != *newProject
		x.projects[projectOf(path)] = newProject
	case oldProject != nil:
		x.all = true
		delete(x.projects, projectOf(path))
	}
}

// count counts the definitions of a file.
func (x *Index) count(f *file, by int) {
	for _, n := range f.defines {
		x.all = !add(x.defined, n.key(), by) || x.all
		_ = add(x.scopes, Name{Kind: n.Kind, Scope: n.Scope}, by)
	}
	if f.unread != "" {
		x.all = !add(x.unread, f.unread, by) || x.all
	}
}

// add adds to a counter, and removes it at zero. It reports whether the counter is still there.
func add[K comparable](m map[K]int, key K, by int) bool {
	m[key] += by
	if m[key] == 0 {
		delete(m, key)
		return false
	}
	return true
}

// settles reports whether the commit itself defines a name, so that a check need not look it up again.
func (x *Index) settles(n Name) bool {
	for range maxChain {
		if x.defined[n.key()] > 0 {
			return true
		}
		p := x.projects[n.Scope]
		if n.Kind != View && n.Kind != NamedQuery || p == nil || p.parent == "" {
			return false
		}
		n.Scope = p.parent
	}
	return false
}
