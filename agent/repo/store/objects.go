package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
)

// Objects reads the objects of a git repository on this machine: packs and loose objects, also those of its alternates. Its
// memory is bounded like that of a Store. One goroutine at a time may use it.
type Objects struct {
	limits  Limits
	dirs    []*objectDir
	missing []string // alternates that do not exist
	inflate *inflater
	scratch *scratch
	hasher  *objectHasher
	file    *os.File // of the last loose object that was found
}

// objectDir is one directory of objects.
type objectDir struct {
	root     *os.Root
	packs    []*pack
	vanished bool // a pack was removed while the directory was opened
}

const (
	maxAlternates     = 64       // directories of objects of one repository
	maxAlternatesFile = 64 << 10 // bytes
)

// OpenObjects opens a directory of objects, such as .git/objects. After ctx has ended, reads may fail. Large bases of deltas go
// to a file that scratch creates. If scratch is nil, reads of objects that need such a file fail.
func OpenObjects(ctx context.Context, dir string, limits Limits, scratch func() (*os.File, error)) (*Objects, error) {
	o := newObjects(ctx, limits, scratch)
	seen := map[string]bool{}
	for pending := []string{dir}; len(pending) > 0; pending = pending[1:] {
		next := filepath.Clean(pending[0])
		if seen[next] {
			continue
		}
		if seen[next] = true; len(seen) > maxAlternates {
			o.Close()
			return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "it has more than %d alternates", maxAlternates)
		}
		alternates, err := o.openDir(next)
		if errors.Is(err, fs.ErrNotExist) && next != filepath.Clean(dir) {
			o.missing = append(o.missing, next) // git ignores it, too
			continue
		}
		if err != nil {
			o.Close()
			return nil, err
		}
		pending = append(pending, alternates...)
	}
	return o, nil
}

// OpenReadOnly opens the objects of the store in dir, which another process may have open. It takes no lock, and writes and repairs nothing.
// A store that does not exist has no objects.
func OpenReadOnly(ctx context.Context, dir string, limits Limits) (*Objects, error) {
	for left := 3; ; left-- {
		o, err := OpenObjects(ctx, filepath.Join(dir, bareDir, "objects"), limits, nil)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return newObjects(ctx, limits, nil), nil
		case err != nil || left == 0 || !o.dirs[0].vanished:
			return o, err
		}
		o.Close() // a new pack has replaced the others: list it, too
	}
}

func newObjects(ctx context.Context, limits Limits, scratch func() (*os.File, error)) *Objects {
	if scratch == nil {
		scratch = func() (*os.File, error) { return nil, OverLimit("an object is too large to read") }
	}
	limits = limits.withDefaults()
	o := &Objects{limits: limits, inflate: newInflater(), scratch: newScratch(scratch, defaultScratch(limits)), hasher: newObjectHasher()}
	o.inflate.foreign = true
	o.scratch.stop = ctx.Err // a chain of deltas may be long, and its results large
	return o
}

// Close closes all files.
func (o *Objects) Close() {
	o.closeFile()
	o.scratch.close()
	for _, d := range o.dirs {
		releaseAll(d.packs)
		_ = d.root.Close()
	}
}

func (o *Objects) closeFile() {
	if o.file != nil {
		_ = o.file.Close()
		o.file = nil
	}
}

// openDir opens one directory and returns its alternates.
func (o *Objects) openDir(dir string) (alternates []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &objectDir{root: root}
	o.dirs = append(o.dirs, d)
	if err := d.openPacks(filepath.Join(dir, "pack")); err != nil {
		return nil, err
	}
	return readAlternates(dir)
}

func (d *objectDir) openPacks(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(list) > maxNames {
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s has more than %d files: run git repack -a -d", dir, maxNames)
	}
	for _, f := range list {
		name, isIndex := strings.CutSuffix(f.Name(), indexExt)
		if !isIndex || !f.Type().IsRegular() && f.Type() != fs.ModeSymlink || strings.HasPrefix(name, tempPrefix) { // a transfer writes it
			continue
		}
		p, err := openPack(root, name)
		switch s, ours := errors.AsType[*DiskError](err); {
		case errors.Is(err, fs.ErrNotExist): // the repository was repacked
			d.vanished = true
			continue
		case errors.Is(err, errIndexVersion):
			return failure.New(v1alpha1.ReasonUnsupportedRepository, "%s: %w: run git repack -a -d -f there", filepath.Join(dir, f.Name()), err)
		case ours:
			return s.err
		case err != nil:
			return err
		}
		d.packs = append(d.packs, p)
	}
	return nil
}

// readAlternates returns the directories in info/alternates. Relative paths start at dir.
func readAlternates(dir string) ([]string, error) {
	b, err := file.ReadRegular(filepath.Join(dir, "info", "alternates"), maxAlternatesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(string(b)) {
		path := strings.TrimRight(line, "\r\n")
		if path == "" || path[0] == '#' {
			continue
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		list = append(list, path)
	}
	return list, nil
}

// foundObject is the result of Objects.find. The next call of find invalidates it.
type foundObject struct {
	kind  kind
	size  int64
	write func(io.Writer) error // writes exactly size bytes, or fails
}

// CheckObject returns nil if the repository has an object. If it does not, IsNotFound holds for the error.
func (o *Objects) CheckObject(id plan.ID) error {
	_, err := o.find(id)
	return err
}

// find looks for an object. It does not verify that the content has this id.
func (o *Objects) find(id plan.ID) (foundObject, error) {
	for _, d := range o.dirs {
		p, off, err := find(d.packs, id)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return foundObject{}, err
		}
		return o.openPacked(p, off)
	}
	for _, d := range o.dirs {
		found, err := o.openLoose(d, id)
		if !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	if len(o.missing) > 0 {
		return foundObject{}, failure.New(v1alpha1.ReasonGitUnreachable, "%w: its alternate %s does not exist", NotFound(id), failure.Quote(o.missing[0]))
	}
	return foundObject{}, NotFound(id)
}

func (o *Objects) openPacked(p *pack, off int64) (foundObject, error) {
	at, err := p.locate(o.inflate, off, &o.limits)
	if err != nil {
		return foundObject{}, err
	}
	size, err := at.resultSize(o.inflate)
	if err == nil && len(at.deltas) > 0 {
		err = o.limits.checkDeltaSize(at.kind, size)
	}
	return foundObject{at.kind, size, func(w io.Writer) error { return at.writeTo(w, o.inflate, o.scratch, &o.limits) }}, err
}

func (o *Objects) openLoose(d *objectDir, id plan.ID) (foundObject, error) {
	o.closeFile()
	name := id.String()
	name = name[:2] + "/" + name[2:]
	if st, err := d.root.Stat(name); err != nil {
		return foundObject{}, err
	} else if !st.Mode().IsRegular() {
		return foundObject{}, corrupt("the loose object %s is not a file", id)
	}
	f, err := d.root.Open(name)
	if err != nil {
		return foundObject{}, err
	}
	o.file = f
	k, size, err := o.inflate.openLoose(f)
	if err == nil {
		err = o.limits.checkSize(k, size)
	}
	return foundObject{k, size, func(w io.Writer) error { return o.inflate.copyRest(w, size) }}, err
}

// read returns the content of an object of the kind want, and verifies its id.
func (o *Objects) read(id plan.ID, want kind) ([]byte, error) {
	s, err := o.find(id)
	if err != nil {
		return nil, err
	}
	if s.kind != want {
		return nil, corrupt("object %s is a %s, not a %s", id, s.kind, want)
	}
	var b bytes.Buffer
	if err := s.write(io.MultiWriter(&b, o.hasher.start(s.kind, s.size))); err != nil {
		return nil, err
	}
	if got, err := o.hasher.id(); err != nil || got != id {
		return nil, errors.Join(err, corrupt("object %s has the content of %s", id, got))
	}
	return b.Bytes(), nil
}

// Blob returns the content of a blob, and its size. If it has more than limit bytes, it returns only the size.
func (o *Objects) Blob(id plan.ID, limit int64) (content []byte, size int64, err error) {
	s, err := o.find(id)
	if err != nil || s.kind == kindBlob && s.size > limit {
		return nil, s.size, err
	}
	content, err = o.read(id, kindBlob)
	return content, s.size, err
}

const maxTagChain = 64 // tags that point to tags

// Peel returns the object that an annotated tag finally points to. For other objects it returns id.
func (o *Objects) Peel(id plan.ID) (plan.ID, error) {
	for range maxTagChain {
		s, err := o.find(id)
		if err != nil || s.kind != kindTag {
			return id, err
		}
		b, err := o.read(id, kindTag)
		if err != nil {
			return id, err
		}
		if id, err = tagTarget(id, b); err != nil {
			return id, err
		}
	}
	return id, corrupt("a tag of more than %d tags", maxTagChain)
}

// Tag returns the bytes of an annotated tag.
func (o *Objects) Tag(id plan.ID) ([]byte, error) { return o.read(id, kindTag) }

// Parents returns the parents of a commit. An object that is not a commit has none.
func (o *Objects) Parents(commit plan.ID) ([]plan.ID, error) {
	if s, err := o.find(commit); err != nil || s.kind != kindCommit {
		return nil, err
	}
	b, err := o.read(commit, kindCommit)
	if err != nil {
		return nil, err
	}
	return commitParents(commit, b)
}
