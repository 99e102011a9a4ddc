package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

const (
	manifestFile = "manifest"
	journalFile  = "journal"
	undoFile     = "undo"  // the journal while an apply is undone
	areasFile    = "areas" // lists the directories with staging folders of their own
	modesFile    = "modes" // created for a moment to check its mode bits
	notePrefix   = "note-"
	maxNote      = 1 << 20
)

// agentFolder is .stoker, with the agent's own files.
type agentFolder struct {
	*safe.Folder
	vol      *safe.Volume
	log      *slog.Logger
	readOnly bool
}

// write replaces one of our files in .stoker; see Volume.WriteFile.
func (a *agentFolder) write(name string, content func(io.Writer) error) (renamed bool, err error) {
	return a.vol.WriteFile(a.Folder, name, content)
}

// openFile opens one of our files for reading. If it is not a regular file, the error is ErrDamaged.
func (a *agentFolder) openFile(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := a.File(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) && !a.readOnly { // its permission bits may have been changed: restore them and try again
		cerr := a.vol.Effect(safe.Effect{Op: "chmod", Path: a.Join(name)}, func() error { return a.Root.Chmod(name, 0o600) })
		if cerr == nil {
			f, fi, err = a.File(name, os.O_RDONLY)
		}
	}
	if _, irregular := errors.AsType[*safe.IrregularError](err); irregular {
		return nil, nil, safe.Damaged("%w", err)
	}
	return f, fi, err
}

// read returns the content of one of our files, or nil if it does not exist.
func (a *agentFolder) read(name string, limit int64) ([]byte, error) {
	if a == nil {
		return nil, nil
	}
	f, fi, err := a.openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > limit {
		return nil, safe.Damaged("%s has %d bytes; the limit is %d", a.Join(name), fi.Size(), limit)
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	return b, nil
}

// create makes one of the agent's folders and opens it. err is the error of an attempt to open it. If something else
// is in its place, create sets that aside first. If err says anything but that the folder is missing or blocked,
// create returns err.
func (a *agentFolder) create(name string, err error) (*safe.Folder, error) {
	if _, blocked := errors.AsType[*safe.BlockedError](err); blocked {
		if err = a.vol.SetAside(a.Folder, name, err); err == nil {
			err = fs.ErrNotExist
		}
	}
	if !safe.NotThere(err) {
		return nil, err
	}
	if err := a.vol.Mkdir(a.Folder, name, 0o700); err != nil {
		return nil, err
	}
	return a.Open(name)
}

// drop removes one of the agent's files, or sets aside what else has its name, and makes that durable.
func (a *agentFolder) drop(name string) error {
	if err := a.vol.Vacate(a.Folder, name); err != nil {
		return safe.WriteError(err, "remove %s", a.Join(name))
	}
	return safe.WriteError(a.vol.SyncDir(a.Folder), "remove %s", a.Join(name))
}

// loadManifest reads the manifest. It sets a damaged one aside: the next plan compares every file and adopts the equal
// ones.
func (d *Dir) loadManifest() error {
	f, _, err := d.own.openFile(manifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		m, merr := format.OpenManifest(f, d.o.MaxFiles)
		if merr == nil {
			merr = m.Check()
		}
		if merr == nil {
			d.setManifest(m)
			return nil
		}
		err = errors.Join(merr, f.Close())
	}
	if !errors.Is(err, safe.ErrDamaged) {
		return fmt.Errorf("read the manifest: %w", err)
	}
	d.log.Warn("manifest damaged; next sync compares every file", "error", err)
	if d.o.ReadOnly {
		return nil
	}
	return d.vol.SetAside(d.own.Folder, manifestFile, err)
}

func (d *Dir) setManifest(m *format.Manifest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.man = m // the old file closes with its last reader
}

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Note returns the note of that name, or nil if there is none. A note is a small file in .stoker in which another
// package remembers something across restarts. If it cannot be read, Note returns DamagedNote.
func (d *Dir) Note(name string) ([]byte, error) {
	if !noteName.MatchString(name) {
		return nil, fmt.Errorf("invalid note name %q", name)
	}
	name = notePrefix + name
	b, err := d.own.read(name, maxNote)
	switch {
	case !errors.Is(err, safe.ErrDamaged):
		return b, err
	case d.o.ReadOnly:
		return []byte(DamagedNote), nil
	}
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.vol.SetAside(d.own.Folder, name, err); err != nil {
		return nil, err
	}
	// Remember, also across restarts, that there was a note.
	_, err = d.own.write(name, func(w io.Writer) error {
		_, err := io.WriteString(w, DamagedNote)
		return err
	})
	return []byte(DamagedNote), err
}

// DamagedNote replaces a note that could not be read. Callers must not treat it as a missing note: the note that was
// lost may have said that something is still to be done.
const DamagedNote = "damaged"

// SetNote writes a note of at most 1 MiB in .stoker, durably; nil removes it.
func (d *Dir) SetNote(name string, b []byte) error {
	d.work.Lock()
	defer d.work.Unlock()
	switch {
	case d.o.ReadOnly:
		return ErrReadOnly
	case !noteName.MatchString(name):
		return fmt.Errorf("invalid note name %q", name)
	case len(b) > maxNote:
		return fmt.Errorf("note %s has %d bytes; the limit is %d", name, len(b), maxNote)
	}
	if err := d.checkMoved(); err != nil {
		return err
	}
	if b == nil {
		if _, err := d.own.Root.Lstat(notePrefix + name); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return d.own.drop(notePrefix + name)
	}
	_, err := d.own.write(notePrefix+name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	return err
}
