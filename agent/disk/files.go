package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
)

const (
	manifestFile = "manifest"
	journalFile  = "journal"
	undoFile     = "undo"  // the journal during a rollback
	areasFile    = "areas" // directories with further staging folders, one a line
	modesFile    = "modes" // created for a moment to check its mode bits
	notePrefix   = "note-"
	maxNote      = 1 << 20
)

// write writes one of our files in .stoker; see writeIn.
func (d *Dir) write(name string, content func(io.Writer) error) (renamed bool, err error) {
	return d.writeIn(d.own, name, content)
}

// writeIn replaces one of our files atomically: write beside it, sync, rename. renamed reports whether the file is in
// place, even if the error means that it may not be durable.
func (d *Dir) writeIn(n *node, name string, content func(io.Writer) error) (renamed bool, err error) {
	tmp := name + ".new"
	path := n.join(name)
	if err := d.vacate(n, tmp); err != nil {
		return false, writing(err, "clear %s", path)
	}
	f, err := d.create(n, tmp, 0o600)
	if err != nil {
		return false, writing(err, "write %s", path)
	}
	err = d.fill(n.join(tmp), func() error { return content(f) })
	if err == nil {
		err = d.sync(f, n.join(tmp))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(writing(err, "write %s", path), d.remove(n, tmp))
	}
	if fi, lerr := n.root.Lstat(name); lerr == nil && !fi.Mode().IsRegular() {
		err = d.setAside(n, name, &irregularError{path, kindOf(fi)})
	}
	if err == nil {
		err = d.rename(n, tmp, n, name)
	}
	if err != nil {
		return false, errors.Join(writing(err, "write %s", path), d.remove(n, tmp))
	}
	return true, writing(d.syncDir(n), "write %s", path)
}

// ownFile opens one of our files for reading. If it is not a regular file, the error is ErrDamaged.
func (d *Dir) ownFile(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := d.own.file(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) && !d.o.ReadOnly { // it may be our file with its mode taken away
		cerr := d.effect(effect{op: "chmod", path: d.own.join(name)}, func() error { return d.own.root.Chmod(name, 0o600) })
		if cerr == nil {
			f, fi, err = d.own.file(name, os.O_RDONLY)
		}
	}
	if _, irregular := errors.AsType[*irregularError](err); irregular {
		return nil, nil, damaged("%w", err)
	}
	return f, fi, err
}

// asideSuffix is appended to the name of a file that is set aside.
const asideSuffix = ".damaged"

// setAside renames something unexpected at one of our names, because it may be a user's only copy. It neither reads nor
// opens it, so that this works for anything.
func (d *Dir) setAside(n *node, name string, why error) error {
	to := name + asideSuffix
	err := d.renameNew(n, name, n, to)
	for i := 0; errors.Is(err, fs.ErrExist) && i < 100; i++ {
		to = fmt.Sprintf("%s%s-%d", name, asideSuffix, d.o.Now().UnixNano()+int64(i))
		err = d.renameNew(n, name, n, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return writing(err, "set %s aside", n.join(name))
	}
	d.log.Warn("set aside what is not the agent's", "path", n.join(name), "as", n.join(to), "error", why)
	return writing(d.syncDir(n), "set %s aside", n.join(name))
}

// vacate frees one of our names: it removes a regular file and sets anything else aside.
func (d *Dir) vacate(n *node, name string) error {
	if fi, err := n.root.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return d.setAside(n, name, &irregularError{n.join(name), kindOf(fi)})
	}
	return d.remove(n, name)
}

// read returns the content of one of our files, or nil if it does not exist.
func (d *Dir) read(name string, limit int64) ([]byte, error) {
	if d.own == nil {
		return nil, nil
	}
	f, fi, err := d.ownFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d.own.join(name), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > limit {
		return nil, damaged("%s has %d bytes, more than the %d it may have", d.own.join(name), fi.Size(), limit)
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("read %s: %w", d.own.join(name), err)
	}
	return b, nil
}

// drop removes one of our files durably.
func (d *Dir) drop(name string) error {
	if err := d.vacate(d.own, name); err != nil {
		return writing(err, "remove %s", d.own.join(name))
	}
	return writing(d.syncDir(d.own), "remove %s", d.own.join(name))
}

// loadManifest reads the manifest. It sets a damaged one aside: the next plan compares every file and adopts the equal
// ones.
func (d *Dir) loadManifest() error {
	f, _, err := d.ownFile(manifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		m, merr := openManifest(f, d.o.MaxFiles)
		if merr == nil {
			merr = m.check()
		}
		if merr == nil {
			d.setManifest(m)
			return nil
		}
		err = errors.Join(merr, f.Close())
	}
	if !errors.Is(err, ErrDamaged) {
		return fmt.Errorf("read the manifest: %w", err)
	}
	d.log.Warn("the manifest cannot be read and counts as lost; the next sync compares every file, adopts what is equal and deletes nothing", "error", err)
	if d.o.ReadOnly {
		return nil
	}
	return d.setAside(d.own, manifestFile, err)
}

func (d *Dir) setManifest(m *manifest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.man = m // the old file closes with its last reader
}

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Note returns a note that SetNote wrote, or nil if there is none.
func (d *Dir) Note(name string) ([]byte, error) {
	if !noteName.MatchString(name) {
		return nil, fmt.Errorf("%q is no name of a note", name)
	}
	name = notePrefix + name
	b, err := d.read(name, maxNote)
	switch {
	case !errors.Is(err, ErrDamaged):
		return b, err
	case d.o.ReadOnly:
		return []byte(DamagedNote), nil
	}
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.setAside(d.own, name, err); err != nil {
		return nil, err
	}
	// Remember, also across restarts, that there was a note.
	_, err = d.write(name, func(w io.Writer) error {
		_, err := io.WriteString(w, DamagedNote)
		return err
	})
	return []byte(DamagedNote), err
}

// DamagedNote replaces a note that could not be read. Callers must not treat it as a missing note, which may have said
// that something is still to be done.
const DamagedNote = "damaged"

// SetNote writes a note of at most 1 MiB in .stoker, durably; nil removes it.
func (d *Dir) SetNote(name string, b []byte) error {
	d.work.Lock()
	defer d.work.Unlock()
	switch {
	case d.o.ReadOnly:
		return ErrReadOnly
	case !noteName.MatchString(name):
		return fmt.Errorf("%q is no name of a note", name)
	case len(b) > maxNote:
		return fmt.Errorf("the note %s has %d bytes, more than %d", name, len(b), maxNote)
	}
	if err := d.there(); err != nil {
		return err
	}
	if b == nil {
		if _, err := d.own.root.Lstat(notePrefix + name); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return d.drop(notePrefix + name)
	}
	_, err := d.write(notePrefix+name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	return err
}
