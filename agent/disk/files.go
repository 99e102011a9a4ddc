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
	undoFile     = "undo"  // the journal, while it is taken back
	areasFile    = "areas" // directories with a staging folder beside the first, one a line
	modesFile    = "modes" // made for a moment, to see what bits it gets
	notePrefix   = "note-"
	maxNote      = 1 << 20
)

// write puts a file of our own into .stoker; see writeIn.
func (d *Dir) write(name string, content func(io.Writer) error) (renamed bool, err error) {
	return d.writeIn(d.own, name, content)
}

// writeIn puts a file of our own in place: written beside, durable, renamed. renamed says that it is there, even where
// the error says that it may not be durable.
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

// ownFile opens a file of our own for reading. What lies there and is no file is ErrDamaged.
func (d *Dir) ownFile(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := d.own.file(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) && !d.o.ReadOnly { // it may still be ours, with its mode taken away
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

// asideSuffix is added to the name of what is set aside.
const asideSuffix = ".damaged"

// setAside moves what lies at a name of ours, and is not what we keep there, to another name beside it: it may be all that
// somebody has of it. It is neither read nor opened, so that nothing it is can stop that.
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

// vacate makes a name of ours free: a file goes, all else is set aside.
func (d *Dir) vacate(n *node, name string) error {
	if fi, err := n.root.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return d.setAside(n, name, &irregularError{n.join(name), kindOf(fi)})
	}
	return d.remove(n, name)
}

// read returns a file of our own, nil where it is not there.
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

// drop removes a file of our own for good.
func (d *Dir) drop(name string) error {
	if err := d.vacate(d.own, name); err != nil {
		return writing(err, "remove %s", d.own.join(name))
	}
	return writing(d.syncDir(d.own), "remove %s", d.own.join(name))
}

// loadManifest reads the manifest. A damaged one is set aside and counts as lost: the next plan compares every file and
// takes those that are equal as its own again.
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
	d.man = m // the old one's file closes when its last reader lets go of it
}

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Note returns a small file that SetNote wrote, nil where there is none.
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
	// That there was one is known still, after a restart too.
	_, err = d.write(name, func(w io.Writer) error {
		_, err := io.WriteString(w, DamagedNote)
		return err
	})
	return []byte(DamagedNote), err
}

// DamagedNote is what Note returns in place of a note that could not be read. No note says that, and nobody may take it
// for one that is not there: the note may have said that something is still to be done.
const DamagedNote = "damaged"

// SetNote keeps a small file (at most 1 MiB) in .stoker, durable when it returns; nil removes it.
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
