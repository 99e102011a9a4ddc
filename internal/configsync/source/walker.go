package source

import (
	"context"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/chart"
	"stoker.io/stoker/internal/configsync/jsonnet"
	"stoker.io/stoker/internal/configsync/kustomize"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// walker walks the trees of a commit. It reads each of them once, because a build may look up many paths.
type walker struct {
	ctx            context.Context
	commit         *Commit
	root           plan.ID
	trees          map[plan.ID]*tree
	entries        int  // in trees
	build          bool // whether kustomizations are allowed
	excludes       []string
	files, folders int   // counts
	remaining      int64 // bytes
}

// walker returns a walker that fails when ctx is done.
func (c *Commit) walker(ctx context.Context, excludes []string, build bool) (*walker, error) {
	root, err := c.store.RootTree(c.ID)
	return &walker{ctx: ctx, commit: c, root: root, trees: map[plan.ID]*tree{}, build: build, excludes: excludes, remaining: manifest.MaxBytes}, err
}

// tree is a folder of a commit.
type tree struct {
	entries []plan.Entry
	index   map[string]int // by name; nil until the first lookup
}

func (w *walker) tree(id plan.ID) (*tree, error) {
	if w.ctx.Err() != nil {
		return nil, context.Cause(w.ctx)
	}
	if t := w.trees[id]; t != nil {
		return t, nil
	}
	entries, err := w.commit.store.Tree(id)
	if err != nil {
		return nil, err
	}
	if w.entries += len(entries); w.entries > maxEntries {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the folders that lead to the manifests, and those with them, have more than %d entries: use smaller folders", maxEntries)
	}
	w.trees[id] = &tree{entries: entries}
	return w.trees[id], nil
}

// find returns the entry of a name.
func (t *tree) find(name string) (plan.Entry, bool) {
	if t.index == nil {
		t.index = make(map[string]int, len(t.entries))
		for i, e := range t.entries {
			t.index[e.Name] = i
		}
	}
	i, found := t.index[name]
	if !found {
		return plan.Entry{}, false
	}
	return t.entries[i], true
}

// Stat implements builder.Tree.
func (w *walker) Stat(p string) (builder.Kind, error) {
	switch e, err := w.find(p); {
	case failure.Is(err, v1alpha1.ReasonSourceMissing):
		return builder.Nothing, nil
	case err != nil:
		return builder.Nothing, err
	case e.Mode == plan.Directory:
		return builder.Folder, nil
	}
	return builder.File, nil
}

// List implements chart.Tree.
func (w *walker) List(folder string) ([]string, error) {
	e, err := w.find(folder)
	if err != nil {
		return nil, err
	}
	var list []string
	return list, w.list(folder, e.ID, 0, &list)
}

// list adds all files below a folder.
func (w *walker) list(dir string, tree plan.ID, depth int, list *[]string) error {
	entries, err := w.enter(dir, tree, depth)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name)
		switch err := checkMode(p, e); {
		case err != nil:
			return err
		case e.Mode == plan.Directory:
			if err := w.list(p, e.ID, depth+1, list); err != nil {
				return err
			}
		default:
			if err := w.countFile(dir); err != nil {
				return err
			}
			*list = append(*list, p)
		}
	}
	return nil
}

// Fetch implements builder.Tree and chart.Tree.
func (w *walker) Fetch(ctx context.Context, paths []string) (map[string][]byte, error) {
	var list []sourceFile
	var ids []plan.ID
	for _, p := range paths {
		e, err := w.find(p)
		if err != nil {
			return nil, err
		}
		list, ids = append(list, sourceFile{path: p, id: e.ID}), append(ids, e.ID)
	}
	if _, err := w.commit.store.FetchBlobs(ctx, ids); err != nil {
		return nil, err
	}
	contents := make(map[string][]byte, len(list))
	for _, f := range list {
		var err error
		if contents[f.path], err = w.content(f); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

// find returns the tree entry of a path. The reason of the error is SourceMissing if the commit does not have the path.
func (w *walker) find(p string) (plan.Entry, error) {
	at := plan.Entry{Mode: plan.Directory, ID: w.root}
	if p == "." {
		return at, nil
	}
	seen := ""
	for name := range strings.SplitSeq(p, "/") {
		if at.Mode != plan.Directory {
			return at, w.missing(p)
		}
		t, err := w.tree(at.ID)
		if err != nil {
			return at, err
		}
		entry, found := t.find(name)
		if !found {
			return at, w.missing(p)
		}
		at = entry
		seen = path.Join(seen, name)
		if err := checkMode(seen, at); err != nil {
			return at, err
		}
	}
	return at, nil
}

func (w *walker) missing(p string) error {
	return failure.New(v1alpha1.ReasonSourceMissing, "commit %s has no %s: correct the path in the spec, or add it to the commit", w.commit.ID.Short(), failure.Quote(p))
}

// checkMode returns an error for symbolic links and submodules.
func checkMode(p string, e plan.Entry) error {
	switch e.Mode {
	case plan.Symlink:
		return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link, which is not followed: replace it with a copy of the file", failure.Quote(p))
	case plan.Submodule:
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is a submodule, which is not fetched: commit its files, or give its repository a ConfigSync", failure.Quote(p))
	}
	return nil
}

// manifests returns the manifests at and below a path. A path without manifests is an error, because a mistyped path must not prune all
// objects.
func (w *walker) manifests(p string) ([]sourceFile, error) {
	e, err := w.find(p)
	if err != nil {
		return nil, err
	}
	if e.Mode != plan.Directory {
		if base := path.Base(p); kustomize.IsKustomization(base) || base == chart.FileName {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is read with its folder: set the path of the ConfigSync to its folder", failure.Quote(p))
		}
		return []sourceFile{{path: p, id: e.ID, tool: toolOf(p)}}, nil
	}
	var list []sourceFile
	if err := w.walk(p, e.ID, 0, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, failure.New(v1alpha1.ReasonSourceMissing, "commit %s has no .yaml, .yml, .json or .jsonnet file below %s: correct the path in the spec", w.commit.ID.Short(), failure.Quote(p))
	}
	return list, nil
}

// enter returns the entries of a folder, and counts it.
func (w *walker) enter(dir string, id plan.ID, depth int) ([]plan.Entry, error) {
	if w.folders++; depth > maxDepth || w.folders > maxFolders {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s: folders are nested deeper than %d, or are more than %d", failure.Quote(dir), maxDepth, maxFolders)
	}
	t, err := w.tree(id)
	if err != nil {
		return nil, err
	}
	return t.entries, nil
}

// countFile counts a file of a folder.
func (w *walker) countFile(dir string) error {
	if w.files++; w.files > maxFiles {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: there are more than %d files", failure.Quote(dir), maxFiles)
	}
	return nil
}

// walk adds the manifests below a folder. It adds a folder with a kustomization or a chart as a whole.
func (w *walker) walk(dir string, tree plan.ID, depth int, list *[]sourceFile) error {
	entries, err := w.enter(dir, tree, depth)
	if err != nil {
		return err
	}
	has := func(e plan.Entry) bool { return e.Mode != plan.Directory && !w.excluded(path.Join(dir, e.Name)) }
	for _, e := range entries {
		if kustomize.IsKustomization(e.Name) && has(e) {
			if !w.build {
				return failure.New(v1alpha1.ReasonManifestInvalid,
					"%s: spec.render.kustomize is Never: commit what 'kustomize build' prints, or remove the field", failure.Quote(path.Join(dir, e.Name)))
			}
			*list = append(*list, sourceFile{path: dir, tool: kustomizeTool})
			return nil
		}
	}
	if slices.ContainsFunc(entries, func(e plan.Entry) bool { return e.Name == chart.FileName && has(e) }) {
		*list = append(*list, sourceFile{path: dir, tool: helmTool})
		return nil
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name)
		if w.excluded(p) {
			continue
		}
		switch err := checkMode(p, e); {
		case err != nil:
			return err
		case e.Mode == plan.Directory:
			if err := w.walk(p, e.ID, depth+1, list); err != nil {
				return err
			}
		case isManifest(e.Name):
			if err := w.countFile(dir); err != nil {
				return err
			}
			*list = append(*list, sourceFile{path: p, id: e.ID, tool: toolOf(p)})
		}
	}
	return nil
}

// toolOf returns the tool for a manifest.
func toolOf(p string) tool {
	if strings.EqualFold(path.Ext(p), jsonnet.Extension) {
		return jsonnetTool
	}
	return none
}
