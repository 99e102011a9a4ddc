package create

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// Bounds of what is read of a repository, which is not trusted.
const (
	maxEntries = 1_000_000 // of all trees together
	maxBlobs   = 10_000    // files that are read
	maxJSON    = 256 << 10 // bytes of a project.json and its like
)

// dir is a directory of the commit.
type dir struct {
	path   string // "" for the root
	name   string
	parent *dir
	dirs   []*dir // sorted by name
	files  []plan.Entry
	// links and submodules are in no other list.
	links, submodules []plan.Entry
	// hidden has the names that begin with a dot, of directories with a slash. The directories among them are not read: none of them is Ignition's.
	hidden []string
}

// read lists the tree of a commit, or of a folder in it unless that is "".
func read(source Source, folder string) (*dir, error) {
	r := &reader{objects: source}
	top, id, depth := &dir{path: folder, name: path.Base(folder)}, source.Root(), 0
	for name := range strings.SplitSeq(folder, "/") {
		if folder == "" {
			break
		}
		entries, err := source.Tree(id)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name && e.Mode == plan.Directory })
		if i < 0 {
			return nil, fmt.Errorf("the commit has no folder %s: commit it first", shown(folder))
		}
		id, depth = entries[i].ID, depth+1
	}
	return top, r.fill(top, id, depth)
}

// reader reads trees, and counts their entries.
type reader struct {
	objects plan.Objects
	entries int
}

func (r *reader) fill(d *dir, id plan.ID, depth int) error {
	if depth >= plan.DefaultLimits.Depth { // an agent refuses such a path
		return nil
	}
	entries, err := r.objects.Tree(id)
	if err != nil {
		return fmt.Errorf("read %s of the commit: %w", shown(d.path), err)
	}
	if r.entries += len(entries); r.entries > maxEntries {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the commit has more than %d files and folders: name a folder of a clone with --dir", maxEntries)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name, "."):
			name := e.Name
			if e.Mode == plan.Directory {
				name += "/"
			}
			d.hidden = append(d.hidden, name)
			if e.Mode == plan.Regular && e.Name == attributesFile {
				d.files = append(d.files, e)
			}
		case e.Mode == plan.Directory:
			sub := &dir{path: path.Join(d.path, e.Name), name: e.Name, parent: d}
			if err := r.fill(sub, e.ID, depth+1); err != nil {
				return err
			}
			d.dirs = append(d.dirs, sub)
		case e.Mode == plan.Symlink:
			d.links = append(d.links, e)
		case e.Mode == plan.Submodule:
			d.submodules = append(d.submodules, e)
		default:
			d.files = append(d.files, e)
		}
	}
	slices.SortFunc(d.dirs, func(a, b *dir) int { return strings.Compare(a.name, b.name) })
	return nil
}

// names lists what is directly in the directory: directories with a slash, then files.
func (d *dir) names() []string {
	var names []string
	for _, sub := range d.dirs {
		names = append(names, sub.name+"/")
	}
	for _, f := range d.files {
		names = append(names, f.Name)
	}
	return names
}

// file returns the file of a name, if the directory has one.
func (d *dir) file(name string) (plan.Entry, bool) {
	i := slices.IndexFunc(d.files, func(e plan.Entry) bool { return e.Name == name })
	if i < 0 {
		return plan.Entry{}, false
	}
	return d.files[i], true
}

// child returns the directory at a relative path, or nil.
func (d *dir) child(rel string) *dir {
	if rel == "" || rel == "." {
		return d
	}
	for name := range strings.SplitSeq(rel, "/") {
		i, ok := slices.BinarySearchFunc(d.dirs, name, func(s *dir, name string) int { return strings.Compare(s.name, name) })
		if !ok {
			return nil
		}
		d = d.dirs[i]
	}
	return d
}

// walk calls f for the directory and for those below it. If f returns false for a directory, it skips those below that one.
func (d *dir) walk(f func(*dir) bool) {
	if !f(d) {
		return
	}
	for _, sub := range d.dirs {
		sub.walk(f)
	}
}

// below reports whether the directory is at or below another.
func (d *dir) below(other *dir) bool {
	return other.path == "" || d.path == other.path || strings.HasPrefix(d.path, other.path+"/")
}

// readJSON decodes a small JSON file into v. It returns an error only if the object cannot be read; ok is false if the file is too
// large or is not such a JSON document.
func readJSON(source Source, id plan.ID, v any) (ok bool, err error) {
	b := bound.NewBuffer(maxJSON, func() error { return bound.ErrTooLarge })
	if _, err := source.WriteBlob(b, id); errors.Is(err, bound.ErrTooLarge) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return json.Unmarshal(b.Bytes(), v) == nil, nil
}

// shown returns a path for a message or a comment.
func shown(p string) string {
	if p == "" {
		return "the root"
	}
	return plan.Enumerate([]string{p}, 1)
}

// printable reports whether a path can stand in YAML and in a comment as it is.
func printable(p string) bool {
	return utf8.ValidString(p) && !strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) })
}
