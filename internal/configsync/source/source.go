// Package source reads the files of a ConfigSync from git: it resolves the ref to a commit, fetches the trees of the commit, and then only
// the files that the ConfigSync needs. There is no work tree, and git is not run. Symbolic links and submodules are errors. Packages
// kustomize, chart and jsonnet decide which files their tools need.
package source

import (
	"cmp"
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/configsync/chart"
	"stoker.io/stoker/internal/configsync/jsonnet"
	"stoker.io/stoker/internal/configsync/kustomize"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/failure"
)

const (
	maxFiles   = 5000    // manifests and files of charts, of a run
	maxFolders = 5000    // of a run
	maxDepth   = 32      // of folders below a path
	maxEntries = 250_000 // of all folders that a run reads
)

// Commit is an open commit, of which the trees are fetched. Read fetches files.
type Commit struct {
	// Ref is the ref as it was requested, and ID the commit that it points to.
	Ref string
	ID  plan.ID

	remote  *repo.Remote
	store   *repo.Store
	release func(keep bool) error // releases the directory of store
	refName string                // name of the ref
}

// CommitSpec selects the commit to open.
type CommitSpec struct {
	// Ref is a branch, a tag, a commit or HEAD.
	Ref string
	// Within is a branch whose history must contain the commit if Ref is a commit; "" allows any commit.
	Within string
	// Commit is the commit of a SyncTarget. Open verifies with git that Ref may point to it, by the git settings of the GatewaySync in
	// Spec, as the gateways do.
	Commit plan.ID
	Spec   *v1alpha1.GitSpec
	// Allowed are the patterns of refs that a request may name; nil if Ref is not requested.
	Allowed []string
	// Check returns an error if the commit of Ref must not be used; nil allows every commit.
	Check func(commit string) error
	// Verifier verifies the signature of the commit; nil if none is required.
	Verifier *repo.Verifier
}

// Open resolves a ref, and fetches the trees of its commit into a slot of the cache. The caller must close the commit, which also closes
// remote. If Open fails, it closes remote itself.
func Open(ctx context.Context, remote *repo.Remote, w CommitSpec, slot Slot) (_ *Commit, err error) {
	c := &Commit{Ref: w.Ref, remote: remote}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	dir, release, err := slot.acquire()
	if err != nil {
		return nil, err
	}
	c.release = release
	if c.store, err = repo.Open(filepath.Join(dir, "objects"), repo.StoreOptions{Limits: slot.limits()}); err != nil {
		return nil, err
	}
	if err := c.resolve(ctx, w); err != nil {
		return nil, err
	}
	if _, err := c.store.FetchTrees(ctx, remote, c.ID, c.refName); err != nil {
		return nil, err
	}
	if w.Verifier != nil {
		if err := c.store.Verify(ctx, w.Verifier, remote, c.ID, w.Ref); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// resolve sets the ID and the ref name of the commit.
func (c *Commit) resolve(ctx context.Context, w CommitSpec) (err error) {
	if w.Spec != nil && !w.Commit.IsZero() {
		c.ID = w.Commit
		c.refName, err = c.store.Admit(ctx, c.remote, w.Spec, w.Ref, w.Commit)
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
	c.ID, c.refName = at.Commit, at.Ref
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
		c.refName = "refs/heads/" + w.Within
		return c.checkOnBranch(ctx, w.Within)
	}
	return nil
}

// checkOnBranch returns an error if the commit is not part of a branch, because git hosts also serve commits of forks.
func (c *Commit) checkOnBranch(ctx context.Context, branch string) error {
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

// Subject returns the first line of the message and the author of the commit; see v1alpha1.CommitRecord.
func (c *Commit) Subject() string { return c.store.Subject(c.ID) }

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

// sourceFile is a file of the commit, or a file or a folder that a tool builds.
type sourceFile struct {
	path string
	id   plan.ID
	tool tool // none for a file that is read as it is
}

// tool makes objects of files.
type tool int

const (
	none tool = iota
	kustomizeTool
	helmTool
	jsonnetTool
)

// Read returns a layer for each path, with the manifests at and below it in the order of their names, and the contents of the given files.
// It fetches all of them at once. Packages kustomize, chart and jsonnet read what their tools need; if build is false, a
// kustomization is an error. Paths that match a pattern of excludes are skipped.
func (c *Commit) Read(ctx context.Context, paths, files, excludes []string, build bool) (layers [][]render.File, contents map[string][]byte, err error) {
	w, err := c.walker(ctx, excludes, build)
	if err != nil {
		return nil, nil, err
	}
	var found [][]sourceFile
	for _, p := range paths {
		list, err := w.manifests(p)
		if err != nil {
			return nil, nil, err
		}
		found = append(found, list)
	}
	var single []sourceFile
	for _, f := range files {
		entry, err := w.find(f)
		if err != nil {
			return nil, nil, err
		}
		if entry.Mode == plan.Directory {
			return nil, nil, failure.New(v1alpha1.ReasonSourceMissing, "%s is a folder: fromFiles and valuesFiles name files", failure.Quote(f))
		}
		single = append(single, sourceFile{path: f, id: entry.ID})
	}
	var ids []plan.ID
	for _, list := range append(found, single) {
		for _, f := range list {
			if f.tool == none {
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
			switch f.tool {
			case kustomizeTool:
				file.Kustomization, err = kustomize.Read(ctx, w, f.path)
			case helmTool:
				file.Chart, err = chart.Read(ctx, w, f.path)
			case jsonnetTool:
				file.Jsonnet, err = jsonnet.Read(ctx, w, f.path)
			default:
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

// content returns the content of a fetched file, and subtracts its size from w.remaining.
func (w *walker) content(f sourceFile) ([]byte, error) {
	b := bound.NewBuffer(w.remaining, func() error {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the files have more than %d bytes, with %s; split them over several ConfigSyncs", manifest.MaxBytes, failure.Quote(f.path))
	})
	if _, err := w.commit.store.WriteBlob(b, f.id); err != nil {
		return nil, cmp.Or(b.Err(), err)
	}
	w.remaining = b.Left()
	if resource.IsPointer(b.Bytes()) {
		return nil, failure.New(v1alpha1.ReasonLFSPointer, "%s is a Git LFS pointer: store the file in git itself", failure.Quote(f.path))
	}
	return b.Bytes(), nil
}

// builtinExcludes are the patterns of files that are not manifests, in addition to those of the spec.
var builtinExcludes = []string{"**/.*", "**/values.yaml", "**/values.schema.json", "**/package.json", "**/package-lock.json", "**/tsconfig.json",
	"**/{docker-,}compose.{yaml,yml}"}

// Excludes returns the patterns of paths that are not read.
func Excludes(s *v1alpha1.ConfigSource) []string {
	switch {
	case s.Git != nil:
		return slices.Concat(builtinExcludes, s.Git.Excludes)
	case s.GatewaySync != nil:
		return slices.Concat(builtinExcludes, s.GatewaySync.Excludes)
	}
	return builtinExcludes
}

// excluded reports whether a path matches a pattern. What is below an excluded folder is never reached.
func (w *walker) excluded(p string) bool {
	return slices.ContainsFunc(w.excludes, func(pattern string) bool {
		matches, err := doublestar.Match(strings.TrimSuffix(pattern, "/"), p)
		return err == nil && matches
	})
}

func isManifest(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json", jsonnet.Extension:
		return true
	}
	return false
}
