package repo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// local is a repository in a directory of this machine: bare, with a work tree, or a linked work tree. It reads refs with
// go-git's storage and objects with store.Objects. It does not write there, and starts no program.
type local struct {
	url  URL
	opts wire.Options
}

const maxPointer = 4 << 10 // bytes of a .git or commondir file

// Close implements source.
func (l *local) Close() error { return nil }

// openRepository opens the repository, and returns its common directory, which has the objects. The caller must close st.
func (l *local) openRepository() (common string, st *filesystem.Storage, err error) {
	dir, err := gitDir(l.url.Path())
	if err != nil {
		return "", nil, l.unusable(err)
	}
	common, err = readPointer(filepath.Join(dir, "commondir"), "", dir)
	if errors.Is(err, os.ErrNotExist) {
		common, err = dir, nil
	}
	if err != nil {
		return "", nil, l.unusable(err)
	}
	if err := isRepository(common); err != nil {
		return "", nil, l.unusable(err)
	}
	st = filesystem.NewStorage(dotgit.NewRepositoryFilesystem(osfs.New(dir), osfs.New(common)), cache.NewObjectLRUDefault())
	if err := l.supported(st); err != nil {
		_ = st.Close()
		return "", nil, err
	}
	return common, st, nil
}

// Origin returns the address of the remote origin of a directory of this machine, as its configuration has it, or "". It
// may have credentials.
func (r *Remote) Origin() (string, error) {
	l, ok := r.source.(*local)
	if !ok {
		return "", nil
	}
	_, st, err := l.openRepository()
	if err != nil {
		return "", err
	}
	defer func() { _ = st.Close() }() // only read
	conf, err := st.Config()
	if err != nil {
		return "", l.unusable(err)
	}
	if origin := conf.Remotes["origin"]; origin != nil && len(origin.URLs) > 0 {
		return origin.URLs[0], nil
	}
	return "", nil
}

// unusable adds a reason to the error of a directory that is not a repository. GitUnreachable allows a retry if the cause may go
// away, such as a volume that is not mounted (no directory, or an empty one) or a permission.
func (l *local) unusable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failure.New(v1alpha1.ReasonGitUnreachable, "there is no repository at %s: check git.repo, and that the volume is mounted: %w", l.url, err)
	case errors.Is(err, fs.ErrPermission), isErrno(err):
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s cannot be read: %w", l.url, err)
	}
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s cannot be read as a git repository: %w", l.url, err)
}

func isErrno(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// supported returns an error for a repository that go-git cannot read.
func (l *local) supported(st *filesystem.Storage) error {
	conf, err := st.Config()
	if err != nil {
		return l.unusable(err)
	}
	extensions := conf.Raw.Section("extensions")
	if format := extensions.Option("objectformat"); format != "" && !strings.EqualFold(format, "sha1") {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s is a repository of object format %s; only sha1 is supported", l.url, failure.Quote(format))
	}
	if refs := extensions.Option("refstorage"); refs != "" && !strings.EqualFold(refs, "files") {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s stores its refs as %s; only files are supported", l.url, failure.Quote(refs))
	}
	return nil
}

// gitDir returns the directory that has HEAD: path, path/.git, or the target of the file path/.git.
func gitDir(path string) (string, error) {
	dot := filepath.Join(path, ".git")
	st, err := os.Stat(dot)
	switch {
	case errors.Is(err, os.ErrNotExist):
		_, err := os.Stat(path)
		return path, err
	case err != nil:
		return "", err
	case st.IsDir():
		return dot, nil
	}
	return readPointer(dot, "gitdir: ", path)
}

// readPointer reads a file with one line: prefix, and a directory. A relative directory starts at base.
func readPointer(name, prefix, base string) (string, error) {
	b, err := file.ReadRegular(name, maxPointer)
	if err != nil {
		return "", err
	}
	dir, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), prefix)
	if !ok || dir == "" || strings.ContainsAny(dir, "\x00\n") {
		return "", errors.New("the file " + name + " names no directory")
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(base, dir)
	}
	return filepath.Clean(dir), nil
}

// isRepository returns an error if dir has no objects or no refs.
func isRepository(dir string) error {
	for _, name := range []string{"objects", "refs"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return errors.New(filepath.Join(dir, name) + " is not a directory")
		}
	}
	return nil
}

// unreadable adds a reason to the error of store.OpenObjects.
func (l *local) unreadable(err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return failure.New(f.Reason, "%s cannot be read: %w", l.url, err)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s cannot be read: %w; run git fsck on it", l.url, err)
}

// explain adds a reason to the error of a read. GitUnreachable allows a retry, because another process may be repacking the
// repository.
func (l *local) explain(ctx context.Context, err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if s, ok := errors.AsType[*store.DiskError](err); ok {
		return s
	}
	if ctx.Err() != nil {
		return wire.Explain(ctx, l.url, err, nil)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable,
		"%s cannot be read: %w; trying again; if that does not help, run git fsck on it", l.url, wire.Foreign(err, nil))
}

// Refs implements source.
func (l *local) Refs(ctx context.Context) (*wire.Refs, error) {
	common, st, err := l.openRepository()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	all, err := l.readRefs(ctx, st)
	if err == nil {
		err = l.peel(ctx, common, all)
	}
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return all, nil
}

// readRefs reads the refs, without symbolic refs other than HEAD.
func (l *local) readRefs(ctx context.Context, st *filesystem.Storage) (*wire.Refs, error) {
	all := &wire.Refs{ByName: map[string]plan.ID{}, Peeled: map[string]plan.ID{}}
	iter, err := st.IterReferences()
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	err = iter.ForEach(func(r *plumbing.Reference) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(all.ByName) >= l.opts.MaxRefs {
			return store.OverLimit("%s has more than %d refs", l.url, l.opts.MaxRefs)
		}
		name := r.Name()
		if r.Type() == plumbing.SymbolicReference {
			if name == plumbing.HEAD {
				all.Head = r.Target().String()
			}
			return nil
		}
		all.ByName[name.String()] = plan.ID(r.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if id, ok := all.ByName[all.Head]; ok {
		all.ByName[wire.HeadName] = id
	}
	return all, nil
}

// peel sets Peeled. It leaves out refs that it cannot follow. Branches, too, may point to a tag object.
func (l *local) peel(ctx context.Context, common string, all *wire.Refs) error {
	var o *store.Objects
	for name, id := range all.ByName {
		if err := ctx.Err(); err != nil {
			return err
		}
		if o == nil {
			var err error
			if o, err = store.OpenObjects(ctx, filepath.Join(common, "objects"), Limits{}, nil); err != nil {
				return l.unreadable(err)
			}
			defer o.Close()
		}
		target, err := o.Peel(id)
		if err != nil {
			l.opts.Log.Debug("ref cannot be followed", "ref", name, "error", err)
		} else if target != id {
			all.Peeled[name] = target
		}
	}
	return nil
}

// Fetch implements source. If t.Base is set, the pack leaves out trees and blobs that the store has.
func (l *local) Fetch(ctx context.Context, t *store.Transfer, _ string) (*store.Received, error) {
	return l.Blobs(ctx, t, nil)
}

// Blobs copies the blobs with these ids into a new pack. If ids is empty, it copies the commit with its trees and, unless t.TreesOnly is
// set, their blobs.
func (l *local) Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.Total)
	defer cancel()
	from, err := l.openObjects(ctx, t.Limits(), t.Scratch)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	if err := from.CheckObject(t.Commit); err != nil {
		if store.IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			return nil, failure.New(v1alpha1.ReasonRefNotFound, "%s does not have commit %s", l.url, t.Commit)
		}
		return nil, l.explain(ctx, err)
	}
	in, err := t.Copy(ctx, from, ids)
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return in, nil
}

// Reaches implements source. It walks the history that the repository has; a shallow clone has only the newest part. If it visits
// too many commits, it fails with RefNotAllowed.
func (l *local) Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error) {
	objects, err := l.openObjects(ctx, t.Limits(), nil)
	if err != nil {
		return false, err
	}
	defer objects.Close()
	seen := map[plan.ID]bool{}
	pending := slices.Clone(tips)
	for n := 0; len(pending) > 0; n++ {
		if ctx.Err() != nil {
			return false, wire.Explain(ctx, l.url, ctx.Err(), nil)
		}
		if n > wire.HistoryDepths[len(wire.HistoryDepths)-1] {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"commit %s is not among %d commits of the allowed refs of %s: ask for a branch or a tag", t.Commit, n, l.url)
		}
		id := pending[0]
		pending = pending[1:]
		if id, err = objects.Peel(id); err == nil && id == t.Commit {
			return true, nil
		}
		var parents []plan.ID
		if err == nil {
			parents, err = objects.Parents(id)
		}
		if store.IsNotFound(err) && !failure.Is(err, v1alpha1.ReasonGitUnreachable) {
			continue // the end of a shallow clone; GitUnreachable would mean that an alternate is missing
		}
		if err != nil {
			return false, l.explain(ctx, err)
		}
		for _, p := range parents {
			if !seen[p] {
				seen[p] = true
				pending = append(pending, p)
			}
		}
	}
	return false, nil
}

// TagText implements source. Here t.Commit is the id of the tag object. The last parameter, a commit that the store has, is unused.
func (l *local) TagText(ctx context.Context, t *store.Transfer, _ plan.ID) ([]byte, error) {
	from, err := l.openObjects(ctx, t.Limits(), nil)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	text, err := from.Tag(t.Commit)
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return text, nil
}

// openObjects opens the objects of the repository. The caller must close them.
func (l *local) openObjects(ctx context.Context, limits Limits, scratch func() (*os.File, error)) (*store.Objects, error) {
	common, st, err := l.openRepository()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	o, err := store.OpenObjects(ctx, filepath.Join(common, "objects"), limits, scratch)
	if err != nil {
		return nil, l.unreadable(err)
	}
	return o, nil
}

// CommitText implements source.
func (l *local) CommitText(context.Context, *store.Transfer) ([]byte, error) {
	return nil, l.readOnly()
}

// PushRefs implements source.
func (l *local) PushRefs(context.Context) (*wire.Refs, error) { return nil, l.readOnly() }

// Push implements source.
func (l *local) Push(context.Context, string, plan.ID, plan.ID, [][]byte) error { return l.readOnly() }

// APIToken implements source.
func (l *local) APIToken(context.Context) (secret.String, error) {
	return secret.String{}, l.readOnly()
}

// readOnly is the error of requests that a directory does not support.
func (l *local) readOnly() error {
	return failure.New(v1alpha1.ReasonUnsupportedRepository,
		"%s is a directory, and proposals need a git server: use an https:// or ssh:// address in git.repo", l.url)
}
