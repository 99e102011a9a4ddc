package repo

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
)

// objects reads the objects of a repository in a directory, and those of its alternates: packs with the code that reads the
// store's own, and loose objects. Memory is bounded as it is for a store. It is for one piece of work of one goroutine.
type objects struct {
	limits  Limits
	dirs    []*objectDir
	missing []string // alternates that are not there
	inflate *inflater
	scratch *scratch
	sum     *namer
	file    *os.File // of the loose object that was found last
}

// objectDir is one directory of objects.
type objectDir struct {
	root  *os.Root
	packs []*pack
}

const (
	maxAlternates     = 64       // directories that one repository reads its objects from
	maxAlternatesFile = 64 << 10 // bytes
)

// openObjects opens a directory of objects, for as long as ctx lasts. Large objects that deltas are made from go to the file
// that scratch makes.
func openObjects(ctx context.Context, dir string, limits Limits, scratch func() (*os.File, error)) (*objects, error) {
	o := &objects{limits: limits.withDefaults(), inflate: newInflater(), scratch: newScratch(scratch, defaultScratch()), sum: newNamer()}
	o.scratch.stop = ctx.Err // a chain of deltas may be long, and what it makes large
	seen := map[string]bool{}
	for todo := []string{dir}; len(todo) > 0; todo = todo[1:] {
		at := filepath.Clean(todo[0])
		if seen[at] {
			continue
		}
		if seen[at] = true; len(seen) > maxAlternates {
			o.close()
			return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "it has more than %d alternates", maxAlternates)
		}
		more, err := o.add(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Clean(dir) {
			o.missing = append(o.missing, at) // git goes on without it, too
			continue
		}
		if err != nil {
			o.close()
			return nil, err
		}
		todo = append(todo, more...)
	}
	return o, nil
}

func (o *objects) close() {
	o.closeFile()
	o.scratch.close()
	for _, d := range o.dirs {
		releaseAll(d.packs)
		_ = d.root.Close()
	}
}

func (o *objects) closeFile() {
	if o.file != nil {
		_ = o.file.Close()
		o.file = nil
	}
}

// add opens one directory and returns its alternates.
func (o *objects) add(dir string) (alternates []string, err error) {
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
		name, is := strings.CutSuffix(f.Name(), indexExt)
		if !is || !f.Type().IsRegular() && f.Type() != fs.ModeSymlink {
			continue
		}
		p, err := openPack(root, name)
		switch s, ours := errors.AsType[*storeError](err); {
		case errors.Is(err, fs.ErrNotExist): // it was repacked meanwhile
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

// readAlternates reads which other directories have objects of a repository. Relative paths start at the objects.
func readAlternates(dir string) ([]string, error) {
	b, err := readSmall(filepath.Join(dir, "info", "alternates"), maxAlternatesFile)
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

// readSmall reads a regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New(path + " is no file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(b)) > limit {
		return nil, errors.New(path + " is too large")
	}
	return b, err
}

// openedObject is an object that was found. It must be written before another one is looked for.
type openedObject struct {
	kind  kind
	size  int64
	write func(io.Writer) error // exactly size bytes, or an error
}

// find looks for an object. What is written of it is not verified yet.
func (o *objects) find(id plan.ID) (openedObject, error) {
	for _, d := range o.dirs {
		p, off, err := find(d.packs, id)
		switch {
		case errors.Is(err, errNotFound):
			continue
		case err != nil:
			return openedObject{}, err
		}
		return o.packed(p, off)
	}
	for _, d := range o.dirs {
		s, err := o.loose(d, id)
		if !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	if len(o.missing) > 0 {
		return openedObject{}, failure.New(v1alpha1.ReasonGitUnreachable, "%w: its alternate %s is not there", notFound(id), quoted(o.missing[0]))
	}
	return openedObject{}, notFound(id)
}

func (o *objects) packed(p *pack, off int64) (openedObject, error) {
	at, err := p.locate(o.inflate, off, &o.limits)
	if err != nil {
		return openedObject{}, err
	}
	size, err := at.resultSize(o.inflate)
	if err == nil && len(at.deltas) > 0 {
		err = o.limits.scratch(at.kind, size)
	}
	return openedObject{at.kind, size, func(w io.Writer) error { return at.writeTo(w, o.inflate, o.scratch, &o.limits) }}, err
}

func (o *objects) loose(d *objectDir, id plan.ID) (openedObject, error) {
	o.closeFile()
	name := id.String()
	name = name[:2] + "/" + name[2:]
	if st, err := d.root.Stat(name); err != nil {
		return openedObject{}, err
	} else if !st.Mode().IsRegular() {
		return openedObject{}, corrupt("the loose object %s is no file", id)
	}
	f, err := d.root.Open(name)
	if err != nil {
		return openedObject{}, err
	}
	o.file = f
	k, size, err := o.inflate.loose(f)
	if err == nil {
		err = o.limits.size(k, size)
	}
	return openedObject{k, size, func(w io.Writer) error { return o.inflate.copyRest(w, size) }}, err
}

// read returns an object that is held in memory, if it is of that kind.
func (o *objects) read(id plan.ID, want kind) ([]byte, error) {
	s, err := o.find(id)
	if err != nil {
		return nil, err
	}
	if s.kind != want {
		return nil, corrupt("object %s is a %s, where a %s belongs", id, s.kind, want)
	}
	var b bytes.Buffer
	if err := s.write(io.MultiWriter(&b, o.sum.start(s.kind, s.size))); err != nil {
		return nil, err
	}
	if got, err := o.sum.id(); err != nil || got != id {
		return nil, errors.Join(err, corrupt("object %s has the content of %s", id, got))
	}
	return b.Bytes(), nil
}
