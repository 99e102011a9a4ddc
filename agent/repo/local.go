package repo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// local is a repository in a directory of this machine: bare, with a work tree, or a linked work tree. Its refs are read
// with go-git's storage, its objects with the code of a store; nothing is written to it and no program is run.
type local struct {
	url  URL
	opts RemoteOptions
}

const (
	maxPointer   = 4 << 10 // bytes of a .git or commondir file
	maxTagChain  = 64      // tags of tags
	maxTreeDepth = 1 << 10 // directories below each other
)

func (l *local) refs(ctx context.Context) (*refs, error) {
	common, st, err := l.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	all, err := l.read(ctx, st)
	if err == nil {
		err = l.peel(ctx, common, all)
	}
	if err != nil {
		return nil, l.explain(ctx, err)
	}
	return all, nil
}

func (l *local) close() error { return nil }

// open finds the repository and the directory with its objects.
func (l *local) open() (common string, st *filesystem.Storage, err error) {
	dir, err := gitDir(l.url.path)
	if err != nil {
		return "", nil, l.unusable(err)
	}
	common, err = pointer(filepath.Join(dir, "commondir"), "", dir)
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

// objects opens what the repository has.
func (l *local) objects(ctx context.Context, limits Limits, scratch func() (*os.File, error)) (*objects, error) {
	common, st, err := l.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	o, err := openObjects(ctx, filepath.Join(common, "objects"), limits, scratch)
	if err != nil {
		return nil, l.unreadable(err)
	}
	return o, nil
}

// small is a scratch for work that needs no large objects.
func small() (*os.File, error) {
	return nil, overLimit("an object is too large to look into")
}

// unusable gives the reason why a directory cannot be read as a repository. What the system may do better next time (a
// volume that is not mounted leaves nothing, or an empty directory; a permission) is tried again.
func (l *local) unusable(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failure.New(v1alpha1.ReasonGitUnreachable, "there is no repository at %s: check git.repo, and that the volume is mounted: %w", l.url, err)
	case errors.Is(err, fs.ErrPermission), isSystem(err):
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s cannot be read: %w", l.url, err)
	}
	return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s cannot be read as a git repository: %w", l.url, err)
}

func isSystem(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// supported refuses what go-git cannot read.
func (l *local) supported(st *filesystem.Storage) error {
	conf, err := st.Config()
	if err != nil {
		return l.unusable(err)
	}
	extensions := conf.Raw.Section("extensions")
	if format := extensions.Option("objectformat"); format != "" && !strings.EqualFold(format, "sha1") {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s is a repository of object format %s; only sha1 is read", l.url, quoted(format))
	}
	if refs := extensions.Option("refstorage"); refs != "" && !strings.EqualFold(refs, "files") {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s stores its refs as %s; only files are read", l.url, quoted(refs))
	}
	return nil
}

// gitDir returns the directory that holds HEAD: path itself, path/.git, or where a .git file points to.
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
	return pointer(dot, "gitdir: ", path)
}

// pointer reads a file of one line that names a directory, relative to base.
func pointer(file, prefix, base string) (string, error) {
	b, err := readSmall(file, maxPointer)
	if err != nil {
		return "", err
	}
	to, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), prefix)
	if !ok || to == "" || strings.ContainsAny(to, "\x00\n") {
		return "", errors.New("the file " + file + " names no directory")
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(base, to)
	}
	return filepath.Clean(to), nil
}

func isRepository(dir string) error {
	for _, name := range []string{"objects", "refs"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return errors.New(filepath.Join(dir, name) + " is no directory")
		}
	}
	return nil
}

// read lists the refs.
func (l *local) read(ctx context.Context, st *filesystem.Storage) (*refs, error) {
	all := &refs{byName: map[string]plan.ID{}, peeled: map[string]plan.ID{}}
	iter, err := st.IterReferences()
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	err = iter.ForEach(func(r *plumbing.Reference) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(all.byName) >= l.opts.MaxRefs {
			return overLimit("%s has more than %d refs", l.url, l.opts.MaxRefs)
		}
		name := r.Name()
		if r.Type() == plumbing.SymbolicReference {
			if name == plumbing.HEAD {
				all.head = r.Target().String()
			}
			return nil
		}
		all.byName[name.String()] = plan.ID(r.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if id, ok := all.byName[all.head]; ok {
		all.byName[headName] = id
	}
	return all, nil
}

// peel follows the annotated tags.
func (l *local) peel(ctx context.Context, common string, all *refs) error {
	var o *objects
	for name, id := range all.byName {
		if !strings.HasPrefix(name, tagSpace) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if o == nil {
			var err error
			if o, err = openObjects(ctx, filepath.Join(common, "objects"), Limits{}, small); err != nil {
				return l.unreadable(err)
			}
			defer o.close()
		}
		to, err := o.peel(id)
		if err != nil {
			l.opts.Log.Debug("tag cannot be followed", "tag", name, "error", err)
		} else if to != id {
			all.peeled[name] = to
		}
	}
	return nil
}

// peel follows an annotated tag to what it points to in the end.
func (o *objects) peel(id plan.ID) (plan.ID, error) {
	for range maxTagChain {
		s, err := o.find(id)
		if err != nil || s.kind != kindTag {
			return id, err
		}
		b, err := o.read(id, kindTag)
		if err != nil {
			return id, err
		}
		const prefix = "object "
		if len(b) < len(prefix)+40 || string(b[:len(prefix)]) != prefix {
			return id, corrupt("tag %s names no object", id)
		}
		if id, err = plan.ParseID(string(b[len(prefix) : len(prefix)+40])); err != nil {
			return id, corrupt("tag %s names no object", id)
		}
	}
	return id, corrupt("a tag of more than %d tags", maxTagChain)
}

// unreadable gives the reason why the objects cannot be opened.
func (l *local) unreadable(err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return failure.New(f.Reason, "%s cannot be read: %w", l.url, err)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s cannot be read: %w; see what git fsck says of it", l.url, err)
}

// explain gives an error that came up while objects were read its reason. A repository can be damaged; it can also be
// repacked at this moment, so it is read again.
func (l *local) explain(ctx context.Context, err error) error {
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if s, ok := errors.AsType[*storeError](err); ok {
		return s
	}
	if ctx.Err() != nil {
		return explain(ctx, l.url, err, nil)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable,
		"%s cannot be read: %w; trying again, and if that does not help, see what git fsck says of it", l.url, foreign(err, nil))
}
