// Package source reads what a ConfigSync names from git: a ref becomes a commit, and of that commit only the objects below the path are
// fetched. There is no work tree and no other program. Links and submodules are refused by their path. Of kustomizations, package kustomize decides
// what may be read.
package source

import (
	"bytes"
	"context"
	"errors"
	"path"
	"path/filepath"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/kustomize"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/render"
	"stoker.io/stoker/internal/failure"
)

const (
	maxFiles   = 5000 // below one path
	maxFolders = 5000
	maxDepth   = 32
)

// Commit is a commit that is fetched as far as it is needed.
type Commit struct {
	// Ref is the ref as it was requested, and ID what it was resolved to.
	Ref string
	ID  plan.ID

	remote  *repo.Remote
	store   *repo.Store
	release func(keep bool) error // of the store's directory
	full    string                // name of the ref
}

// Wanted says which commit to open.
type Wanted struct {
	// Ref is a branch, a tag, a commit or HEAD.
	Ref string
	// Within is a branch whose history must have the commit; "" for any.
	Within string
	// Commit is the commit that a SyncTarget says for Ref. Git has to bear it out, as for the gateways of that GatewaySync, whose git
	// settings Spec has.
	Commit plan.ID
	Spec   *v1alpha1.GitSpec
	// Allowed are the patterns of refs that a request may name, if Ref is requested.
	Allowed []string
	// Check refuses a commit that Ref may not stand at; nil refuses none.
	Check func(commit string) error
	// Verifier decides whether the signature of the commit suffices; nil if none is needed.
	Verifier *repo.Verifier
}

// Open resolves a ref, and fetches the trees of its commit into a slot of the cache. The caller closes the commit. remote is closed with
// it, and also if Open fails.
func Open(ctx context.Context, remote *repo.Remote, w Wanted, slot Slot) (_ *Commit, err error) {
	c := &Commit{Ref: w.Ref, remote: remote}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	dir, release, err := slot.take()
	if err != nil {
		return nil, err
	}
	c.release = release
	if c.store, err = repo.Open(filepath.Join(dir, "objects"), repo.StoreOptions{}); err != nil {
		return nil, err
	}
	if err := c.resolve(ctx, w); err != nil {
		return nil, err
	}
	if _, err := c.store.FetchTrees(ctx, remote, c.ID, c.full); err != nil {
		return nil, err
	}
	if w.Verifier != nil {
		if err := c.store.Verify(ctx, w.Verifier, remote, c.ID, w.Ref); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// resolve finds the commit.
func (c *Commit) resolve(ctx context.Context, w Wanted) (err error) {
	if w.Spec != nil && !w.Commit.IsZero() {
		c.ID = w.Commit
		c.full, err = c.store.Admit(ctx, c.remote, w.Spec, w.Ref, w.Commit)
		return err
	}
	ref, err := repo.ParseRef(w.Ref)
	if err != nil {
		return err
	}
	at, err := c.remote.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	c.ID, c.full = at.Commit, at.Ref
	if w.Allowed != nil {
		all, err := c.remote.Refs(ctx)
		if err != nil {
			return err
		}
		if err := all.CheckAllowed(ctx, c.store, c.remote, w.Allowed, at); err != nil {
			return err
		}
	}
	if w.Check != nil {
		if err := w.Check(c.ID.String()); err != nil {
			return err
		}
	}
	if at.Ref == "" && w.Within != "" {
		c.full = "refs/heads/" + w.Within
		return c.within(ctx, w.Within)
	}
	return nil
}

// within refuses a commit that is not part of a branch: git hosts also serve commits of forks.
func (c *Commit) within(ctx context.Context, branch string) error {
	all, err := c.remote.Refs(ctx)
	if err != nil {
		return err
	}
	found, err := c.store.Reaches(ctx, c.remote, all, []string{"refs/heads/" + branch}, c.ID)
	if err != nil || found {
		return err
	}
	return failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s is not part of branch %s: correct spec.source.git.revision or branch", c.ID, failure.Quote(branch))
}

// Close releases all resources.
func (c *Commit) Close() error {
	errs := []error{c.remote.Close()}
	keep := false
	if c.store != nil {
		keep = !c.store.Damaged()
		errs = append(errs, c.store.Close())
	}
	if c.release != nil {
		errs = append(errs, c.release(keep))
	}
	return errors.Join(errs...)
}

// place is a file of the commit, or a folder with a kustomization.
type place struct {
	path  string
	id    plan.ID
	build bool
}

// Read returns the manifests at and below each path, in the order of their names, and the contents of single files. All of them are
// fetched at once. A folder with a kustomization is read as package kustomize reads it, or refused if build is false.
func (c *Commit) Read(ctx context.Context, paths, files []string, build bool) (layers [][]render.File, contents map[string][]byte, err error) {
	w := &tour{commit: c, build: build, left: manifest.MaxBytes}
	var found [][]place
	for _, p := range paths {
		list, err := w.below(p)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, list)
	}
	var single []place
	for _, f := range files {
		entry, err := w.entry(f)
		if err != nil {
			return nil, nil, err
		}
		if entry.Mode == plan.Directory {
			return nil, nil, failure.New(v1alpha1.ReasonSourceMissing, "%s is a folder: fromFiles names files", failure.Quote(f))
		}
		single = append(single, place{path: f, id: entry.ID})
	}
	var ids []plan.ID
	for _, list := range append(found, single) {
		for _, f := range list {
			if !f.build {
				ids = append(ids, f.id)
			}
		}
	}
	if _, err := c.store.FetchBlobs(ctx, ids); err != nil {
		return nil, nil, err
	}
	for _, list := range found {
		layer := make([]render.File, 0, len(list))
		for _, f := range list {
			file := render.File{Path: f.path}
			if f.build {
				file.Kustomization, err = kustomize.Read(ctx, w, f.path)
			} else {
				file.Content, err = w.content(f)
			}
			if err != nil {
				return nil, nil, err
			}
			layer = append(layer, file)
		}
		layers = append(layers, layer)
	}
	contents = make(map[string][]byte, len(single))
	for _, f := range single {
		if contents[f.path], err = w.content(f); err != nil {
			return nil, nil, err
		}
	}
	return layers, contents, nil
}

// Stat says what the commit has at a path, for package kustomize.
func (w *tour) Stat(p string) (kustomize.Kind, error) {
	switch e, err := w.entry(p); {
	case failure.Is(err, v1alpha1.ReasonSourceMissing):
		return kustomize.Nothing, nil
	case err != nil:
		return kustomize.Nothing, err
	case e.Mode == plan.Directory:
		return kustomize.Folder, nil
	}
	return kustomize.File, nil
}

// Fetch fetches files, for package kustomize.
func (w *tour) Fetch(ctx context.Context, paths []string) (map[string][]byte, error) {
	var list []place
	var ids []plan.ID
	for _, p := range paths {
		e, err := w.entry(p)
		if err != nil {
			return nil, err
		}
		list, ids = append(list, place{path: p, id: e.ID}), append(ids, e.ID)
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

// lfs starts a file whose content git does not have.
var lfs = []byte("version https://git-lfs.github.com/spec/v1\n")

// content reads a file, and takes its size from what is left.
func (w *tour) content(f place) ([]byte, error) {
	b := &bounded{left: w.left}
	if _, err := w.commit.store.WriteBlob(b, f.id); err != nil {
		if b.left < 0 {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the files have more than %d bytes, with %s; split them over several ConfigSyncs", manifest.MaxBytes, failure.Quote(f.path))
		}
		return nil, err
	}
	w.left = b.left
	if bytes.HasPrefix(b.Bytes(), lfs) {
		return nil, failure.New(v1alpha1.ReasonLFSPointer, "%s is a Git LFS pointer: store the file in git itself", failure.Quote(f.path))
	}
	return b.Bytes(), nil
}

// bounded is a buffer that fails when it is full.
type bounded struct {
	bytes.Buffer
	left int64
}

var errFull = errors.New("the buffer is full")

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errFull
	}
	return b.Buffer.Write(p)
}

// tour walks the trees of a commit.
type tour struct {
	commit         *Commit
	build          bool // kustomizations
	files, folders int
	left           int64 // bytes
}

// entry finds a path.
func (w *tour) entry(p string) (plan.Entry, error) {
	root, err := w.commit.store.RootTree(w.commit.ID)
	if err != nil {
		return plan.Entry{}, err
	}
	at := plan.Entry{Mode: plan.Directory, ID: root}
	if p == "." {
		return at, nil
	}
	seen := ""
	for name := range strings.SplitSeq(p, "/") {
		if at.Mode != plan.Directory {
			return at, w.missing(p)
		}
		entries, err := w.commit.store.Tree(at.ID)
		if err != nil {
			return at, err
		}
		there := false
		for _, e := range entries {
			if e.Name == name {
				at, there = e, true
				break
			}
		}
		if !there {
			return at, w.missing(p)
		}
		seen = path.Join(seen, name)
		if err := plain(seen, at); err != nil {
			return at, err
		}
	}
	return at, nil
}

func (w *tour) missing(p string) error {
	return failure.New(v1alpha1.ReasonSourceMissing, "commit %s has no %s: correct the path in the spec, or add it to the commit", w.commit.ID.Short(), failure.Quote(p))
}

// plain refuses entries that lead elsewhere.
func plain(p string, e plan.Entry) error {
	switch e.Mode {
	case plan.Symlink:
		return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link, which is not followed: replace it with a copy of the file", failure.Quote(p))
	case plan.Submodule:
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is a submodule, which is not fetched: move the path of the ConfigSync below it", failure.Quote(p))
	}
	return nil
}

// below returns the manifests at and below a path. A path without any is an error: a mistyped one must not prune everything.
func (w *tour) below(p string) ([]place, error) {
	e, err := w.entry(p)
	if err != nil {
		return nil, err
	}
	if e.Mode != plan.Directory {
		if kustomize.IsKustomization(path.Base(p)) {
			return nil, failure.New(v1alpha1.ReasonManifestInvalid, "%s is a kustomization: set the path of the ConfigSync to its folder", failure.Quote(p))
		}
		return []place{{path: p, id: e.ID}}, nil
	}
	var list []place
	if err := w.walk(p, e.ID, 0, &list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, failure.New(v1alpha1.ReasonSourceMissing, "commit %s has no .yaml, .yml or .json file below %s: correct the path in the spec", w.commit.ID.Short(), failure.Quote(p))
	}
	return list, nil
}

func (w *tour) walk(dir string, tree plan.ID, depth int, list *[]place) error {
	if w.folders++; depth > maxDepth || w.folders > maxFolders {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s: folders are nested deeper than %d, or are more than %d", failure.Quote(dir), maxDepth, maxFolders)
	}
	entries, err := w.commit.store.Tree(tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if kustomize.IsKustomization(e.Name) && e.Mode != plan.Directory {
			if !w.build {
				return failure.New(v1alpha1.ReasonManifestInvalid,
					"%s: spec.render.kustomize is Never: commit what 'kustomize build' prints, or remove the field", failure.Quote(path.Join(dir, e.Name)))
			}
			*list = append(*list, place{path: dir, build: true})
			return nil
		}
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name)
		switch err := plain(p, e); {
		case err != nil:
			return err
		case e.Mode == plan.Directory:
			if err := w.walk(p, e.ID, depth+1, list); err != nil {
				return err
			}
		case isManifest(e.Name):
			if w.files++; w.files > maxFiles {
				return failure.New(v1alpha1.ReasonLimitExceeded, "%s: there are more than %d manifests", failure.Quote(dir), maxFiles)
			}
			*list = append(*list, place{path: p, id: e.ID})
		}
	}
	return nil
}

func isManifest(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
