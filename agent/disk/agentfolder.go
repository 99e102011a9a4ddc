package disk

import (
	"errors"
	"fmt"
	"io/fs"
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

// loadManifest reads the manifest. It sets a damaged one aside: the next plan compares every file and adopts the equal
// ones.
func (d *Dir) loadManifest() error {
	f, _, err := d.own.OpenFile(manifestFile)
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
	b, err := d.own.Read(name, maxNote)
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
	return []byte(DamagedNote), d.own.WriteBytes(name, []byte(DamagedNote))
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
		return d.own.Drop(notePrefix + name)
	}
	return d.own.WriteBytes(notePrefix+name, b)
}
