// Package kustomize builds kustomizations of a commit, in memory and without anything but that commit.
//
// Kustomize fetches resources over HTTP, clones bases with git, and has generators and transformers that start programs. So every
// kustomization that a build can reach is read first, strictly, and anything but files of the commit and what is built in is refused by
// its file and field. Kustomize then gets what was read, written again under names that this package makes: no path, no YAML and no
// anchor of the repository reaches it.
//
// Bounded are the files, their bytes, how deep bases are nested, how often they are built, the objects, the text that patches can add, and
// the time. What kustomize makes of it in memory is only bounded by those, so a run that may be hostile needs a memory limit of its own.
package kustomize

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	maxKustomizations = 200
	maxFiles          = 5000
	maxPaths          = 20_000 // that kustomizations name, each as often as one does
	maxDepth          = 16
	maxSpec           = 256 << 10 // bytes of one kustomization
)

// Kind is what a commit has at a path.
type Kind int

// The kinds.
const (
	Nothing Kind = iota
	File
	Folder
)

// Tree is the commit that kustomizations are read from. Paths are relative to its root, and clean.
type Tree interface {
	// Stat fails for anything that leads elsewhere, such as a symbolic link.
	Stat(path string) (Kind, error)
	// Fetch returns the contents of files.
	Fetch(ctx context.Context, paths []string) (map[string][]byte, error)
}

// names are the names of a kustomization.
var names = []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}

// IsKustomization reports whether a file has the name of a kustomization.
func IsKustomization(name string) bool { return slices.Contains(names, name) }

// Sources is a kustomization with all that a build of it can reach.
type Sources struct {
	root  string
	specs map[string]*spec // by folder
	files map[string][]byte
}

// spec is one kustomization.
type spec struct {
	types.Kustomization
	file, dir string
	// resources are the entries of resources, then those of components; others are the files that the build reads as data.
	resources []reference
	others    []reference
	// configurations are the contents of these files as JSON.
	configurations [][]byte
}

// reference is a path that a kustomization names.
type reference struct {
	field, path string
	folder      bool
}

// Read reads the kustomization of a folder and all that it can reach. It fails if any of it leads out of the commit.
func Read(ctx context.Context, tree Tree, dir string) (*Sources, error) {
	tree = &counted{Tree: tree}
	r := &reader{tree: tree, Sources: &Sources{root: dir, specs: map[string]*spec{}}}
	// Those that are found together are fetched together.
	for next := []string{dir}; len(next) > 0; {
		var err error
		if next, err = r.read(ctx, next); err != nil {
			return nil, err
		}
	}
	if s := r.specs[dir]; s.Kind == types.ComponentKind {
		return nil, s.bad("kind", "a Component is not built by itself: name it in components of a Kustomization, and set the path of the ConfigSync to that one")
	}
	if err := r.nesting(dir, nil, map[string]int{}); err != nil {
		return nil, err
	}
	var files []string
	for _, s := range r.specs {
		for _, ref := range slices.Concat(s.resources, s.others) {
			if !ref.folder {
				files = append(files, ref.path)
			}
		}
	}
	slices.Sort(files)
	if files = slices.Compact(files); len(files) > maxFiles {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s: the kustomizations name more than %d files", failure.Quote(r.specs[dir].file), maxFiles)
	}
	var err error
	if r.files, err = tree.Fetch(ctx, files); err != nil {
		return nil, err
	}
	for _, s := range r.specs {
		if err := s.settle(r.files); err != nil {
			return nil, err
		}
	}
	return r.Sources, nil
}

// File is the path of the kustomization that is built.
func (s *Sources) File() string { return s.specs[s.root].file }

// counted bounds how often a commit is searched for a path.
type counted struct {
	Tree
	n int
}

// Stat is that of the tree.
func (c *counted) Stat(path string) (Kind, error) {
	if c.n++; c.n > maxPaths {
		return Nothing, failure.New(v1alpha1.ReasonLimitExceeded, "the kustomizations of a build name more than %d paths", maxPaths)
	}
	return c.Tree.Stat(path)
}

type reader struct {
	*Sources
	tree Tree
}

// read reads the kustomizations of folders, and returns the folders that they name and that are not read yet.
func (r *reader) read(ctx context.Context, dirs []string) (next []string, err error) {
	var files []string
	for _, dir := range dirs {
		file, err := r.find(dir)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	contents, err := r.tree.Fetch(ctx, files)
	if err != nil {
		return nil, err
	}
	for i, dir := range dirs {
		s := &spec{file: files[i], dir: dir}
		if err := s.decode(contents[files[i]]); err != nil {
			return nil, err
		}
		if err := s.check(r.tree); err != nil {
			return nil, err
		}
		if r.specs[dir] = s; len(r.specs) > maxKustomizations {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s: more than %d kustomizations belong to one build", failure.Quote(s.file), maxKustomizations)
		}
		for _, ref := range s.resources {
			if ref.folder && r.specs[ref.path] == nil && !slices.Contains(dirs, ref.path) && !slices.Contains(next, ref.path) {
				next = append(next, ref.path)
			}
		}
	}
	return next, nil
}

// find returns the path of the kustomization of a folder.
func (r *reader) find(dir string) (string, error) {
	var found []string
	for _, name := range names {
		p := path.Join(dir, name)
		kind, err := r.tree.Stat(p)
		if err != nil {
			return "", err
		}
		if kind == File {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return "", failure.New(v1alpha1.ReasonSourceMissing, "%s: a kustomization names this folder, and it has no kustomization.yaml", failure.Quote(dir))
	case 1:
		return found[0], nil
	}
	return "", failure.New(v1alpha1.ReasonManifestInvalid, "%s: the folder has both %s and %s: keep one of them", failure.Quote(dir), path.Base(found[0]), path.Base(found[1]))
}

// nesting refuses bases that contain themselves, or that are nested too deep. deepest has the depth at which each folder was last visited:
// a base of many overlays is visited again only if it is deeper there.
func (r *reader) nesting(dir string, open []string, deepest map[string]int) error {
	s := r.specs[dir]
	if open = append(open, dir); len(open) > maxDepth {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: bases are nested deeper than %d", failure.Quote(s.file), maxDepth)
	}
	deepest[dir] = len(open)
	for _, ref := range s.resources {
		if !ref.folder {
			continue
		}
		if slices.Contains(open, ref.path) {
			return s.bad(ref.field, "%s needs this kustomization itself: a base cannot contain what is built on it", failure.Quote(ref.path))
		}
		if deepest[ref.path] > len(open) {
			continue
		}
		if err := r.nesting(ref.path, open, deepest); err != nil {
			return err
		}
	}
	return nil
}

// bad is an error about a field of a kustomization.
func (s *spec) bad(field, format string, args ...any) error {
	return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s: %w", failure.Quote(s.file), field, fmt.Errorf(format, args...))
}

// elsewhere reports whether a path can mean another place than this repository to kustomize, or to a reader.
func elsewhere(p string) bool {
	return strings.ContainsAny(p, ":?") || strings.Contains(p, "//") || strings.HasPrefix(strings.ToLower(p), "github.com/")
}

// locate checks a path that a kustomization names.
func (s *spec) locate(tree Tree, field, p string) (reference, error) {
	full := path.Join(s.dir, p)
	switch {
	case p == "":
		return reference{}, s.bad(field, "the path is empty")
	case elsewhere(p):
		return reference{}, s.bad(field, "%s is not a path of this repository, and nothing is fetched from elsewhere: copy what it names into the repository", failure.Quote(p))
	case strings.HasPrefix(p, "/"), strings.Contains(p, `\`), strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return reference{}, s.unsafe(field, p, "use a relative path with / between folders")
	case full == "..", strings.HasPrefix(full, "../"):
		return reference{}, s.unsafe(field, p, "it leads out of the repository")
	}
	kind, err := tree.Stat(full)
	if err != nil {
		return reference{}, failure.New(failure.Reason(err, v1alpha1.ReasonSourceMissing), "%s: %s: %w", failure.Quote(s.file), field, err)
	}
	if kind == Nothing {
		return reference{}, failure.New(v1alpha1.ReasonSourceMissing, "%s: %s: the commit has no %s", failure.Quote(s.file), field, failure.Quote(full))
	}
	return reference{field, full, kind == Folder}, nil
}

func (s *spec) unsafe(field, p, why string) error {
	return failure.New(v1alpha1.ReasonUnsafePath, "%s: %s: %s: %s", failure.Quote(s.file), field, failure.Quote(p), why)
}

// locateFile checks a path that must be a file in or below the folder of the kustomization, which kustomize demands, too.
func (s *spec) locateFile(tree Tree, field, p string) (reference, error) {
	ref, err := s.locate(tree, field, p)
	switch {
	case err != nil:
		return ref, err
	case ref.folder:
		return ref, s.bad(field, "%s is a folder: name a file", failure.Quote(ref.path))
	case s.dir != "." && !strings.HasPrefix(ref.path, s.dir+"/"):
		return ref, s.unsafe(field, p, "files must be in or below the folder of their kustomization; only bases and components can lie beside it")
	case IsKustomization(path.Base(ref.path)):
		return ref, s.bad(field, "%s is a kustomization: name its folder", failure.Quote(ref.path))
	}
	return ref, nil
}
