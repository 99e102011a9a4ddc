// Package kustomize builds kustomizations of a commit in memory, from nothing but that commit.
//
// Kustomize itself can fetch resources over HTTP, clone bases with git, and start generators and transformers as programs. So this package
// first parses every kustomization that a build can reach, and rejects everything except files of the commit and built-in features. It then
// writes the parsed kustomizations for kustomize under generated names: no path, YAML or anchor of the repository reaches kustomize.
//
// The package bounds the files and their bytes, the depth of bases and how often they are built, the objects, and the text that patches can
// add. These bounds limit the time and the memory of kustomize only indirectly. Package builder bounds both for its process.
package kustomize

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/failure"
)

const (
	maxKustomizations     = 200
	maxFiles              = 5000
	maxPaths              = 20_000 // lookups of paths that kustomizations name
	maxDepth              = 16
	maxKustomizationBytes = 256 << 10 // bytes of one kustomization
)

// fileNames are the names of files that kustomize reads as a kustomization.
var fileNames = []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}

// IsKustomization reports whether name is one of fileNames.
func IsKustomization(name string) bool { return slices.Contains(fileNames, name) }

// Sources is a kustomization with all kustomizations and files that a build of it reads.
type Sources struct {
	root  string
	specs map[string]*spec // by folder
	files map[string][]byte
}

// spec is one kustomization.
type spec struct {
	types.Kustomization
	file, dir string
	// resources are the entries of resources, then those of components. dataFiles are the files that the build reads as data.
	resources []reference
	dataFiles []reference
	// configurations are the contents of the files of the field configurations, as JSON.
	configurations [][]byte
}

// reference is a path that a kustomization names.
type reference struct {
	field, path string
	folder      bool
}

// Read reads the kustomization of a folder, and all kustomizations and files that it needs. It fails if one of them is not in the commit.
func Read(ctx context.Context, tree builder.Tree, dir string) (*Sources, error) {
	tree = &countingTree{Tree: tree}
	r := &reader{tree: tree, Sources: &Sources{root: dir, specs: map[string]*spec{}}}
	for next := []string{dir}; len(next) > 0; { // one fetch for each level of bases
		var err error
		if next, err = r.read(ctx, next); err != nil {
			return nil, err
		}
	}
	if s := r.specs[dir]; s.Kind == types.ComponentKind {
		return nil, s.invalid("kind", "a Component is not built by itself: name it in components of a Kustomization, and set the path of the ConfigSync to that Kustomization")
	}
	if err := r.checkNesting(dir, nil, map[string]int{}); err != nil {
		return nil, err
	}
	var files []string
	for _, s := range r.specs {
		for _, ref := range slices.Concat(s.resources, s.dataFiles) {
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
		if err := s.inlineFiles(r.files); err != nil {
			return nil, err
		}
	}
	return r.Sources, nil
}

// File returns the path of the kustomization that is built.
func (s *Sources) File() string { return s.specs[s.root].file }

// countingTree is a Tree that bounds the calls of Stat.
type countingTree struct {
	builder.Tree
	lookups int
}

// Stat implements Tree. It fails after maxPaths calls.
func (c *countingTree) Stat(path string) (builder.Kind, error) {
	if c.lookups++; c.lookups > maxPaths {
		return builder.Nothing, failure.New(v1alpha1.ReasonLimitExceeded, "the kustomizations of a build name more than %d paths", maxPaths)
	}
	return c.Tree.Stat(path)
}

// reader reads the kustomizations of a build.
type reader struct {
	*Sources
	tree builder.Tree
}

// read reads the kustomizations of folders, and returns the folders that they name and that still have to be read.
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
	for _, name := range fileNames {
		p := path.Join(dir, name)
		kind, err := r.tree.Stat(p)
		if err != nil {
			return "", err
		}
		if kind == builder.File {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return "", failure.New(v1alpha1.ReasonSourceMissing, "%s: a kustomization names this folder, which has no kustomization.yaml", failure.Quote(dir))
	case 1:
		return found[0], nil
	}
	return "", failure.New(v1alpha1.ReasonManifestInvalid, "%s: the folder has both %s and %s: keep one of them", failure.Quote(dir), path.Base(found[0]), path.Base(found[1]))
}

// checkNesting returns an error if a base contains itself, or if bases are nested too deep. open has the folders from the root to dir.
// deepest has the greatest depth at which each folder was visited: a base of many overlays is visited again only at a greater depth.
func (r *reader) checkNesting(dir string, open []string, deepest map[string]int) error {
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
			return s.invalid(ref.field, "%s needs this kustomization itself: a base cannot contain what is built on it", failure.Quote(ref.path))
		}
		if deepest[ref.path] > len(open) {
			continue
		}
		if err := r.checkNesting(ref.path, open, deepest); err != nil {
			return err
		}
	}
	return nil
}

// invalid returns an error about a field of the kustomization.
func (s *spec) invalid(field, format string, args ...any) error {
	return failure.New(v1alpha1.ReasonManifestInvalid, "%s: %s: %w", failure.Quote(s.file), field, fmt.Errorf(format, args...))
}

// isRemote reports whether kustomize, or a user who reads the kustomization, could take a path for a URL.
func isRemote(p string) bool {
	return strings.ContainsAny(p, ":?") || strings.Contains(p, "//") || strings.HasPrefix(strings.ToLower(p), "github.com/")
}

// resolve checks a path that the kustomization names, and returns the path in the repository.
func (s *spec) resolve(tree builder.Tree, field, p string) (reference, error) {
	full := path.Join(s.dir, p)
	switch {
	case p == "":
		return reference{}, s.invalid(field, "the path is empty")
	case isRemote(p):
		return reference{}, s.invalid(field, "%s is not a path of this repository, and nothing is fetched from elsewhere: copy what it names into the repository", failure.Quote(p))
	case strings.HasPrefix(p, "/"), strings.Contains(p, `\`), strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return reference{}, s.unsafePath(field, p, "use a relative path with / between folders")
	case full == "..", strings.HasPrefix(full, "../"):
		return reference{}, s.unsafePath(field, p, "it leads out of the repository")
	}
	kind, err := tree.Stat(full)
	if err != nil {
		return reference{}, failure.New(failure.Reason(err, v1alpha1.ReasonSourceMissing), "%s: %s: %w", failure.Quote(s.file), field, err)
	}
	if kind == builder.Nothing {
		return reference{}, failure.New(v1alpha1.ReasonSourceMissing, "%s: %s: the commit has no %s", failure.Quote(s.file), field, failure.Quote(full))
	}
	return reference{field, full, kind == builder.Folder}, nil
}

func (s *spec) unsafePath(field, p, why string) error {
	return failure.New(v1alpha1.ReasonUnsafePath, "%s: %s: %s: %s", failure.Quote(s.file), field, failure.Quote(p), why)
}

// resolveFile is like resolve for a path that must be a file in or below the folder of the kustomization. Kustomize has the same rule.
func (s *spec) resolveFile(tree builder.Tree, field, p string) (reference, error) {
	ref, err := s.resolve(tree, field, p)
	switch {
	case err != nil:
		return ref, err
	case ref.folder:
		return ref, s.invalid(field, "%s is a folder: name a file", failure.Quote(ref.path))
	case s.dir != "." && !strings.HasPrefix(ref.path, s.dir+"/"):
		return ref, s.unsafePath(field, p, "files must be in or below the folder of their kustomization; only bases and components can be elsewhere")
	case IsKustomization(path.Base(ref.path)):
		return ref, s.invalid(field, "%s is a kustomization: name its folder", failure.Quote(ref.path))
	}
	return ref, nil
}
