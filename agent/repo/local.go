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
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"

	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
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
