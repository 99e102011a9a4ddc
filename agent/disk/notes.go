package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	notePrefix = "note-"
	maxNote    = 1 << 20
	// scratchFile is the name of a scratch file until it is open.
	scratchFile = "scratch"
)

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// DamagedNote replaces a note that could not be read. Callers must not treat it as a missing note: the lost
// note may have said that something is still to be done.
const DamagedNote = "damaged"

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

// SetNote writes a note of at most 1 MiB in .stoker, durably; nil removes it.
func (d *Dir) SetNote(name string, b []byte) error {
	return d.exclusive(func() error {
		switch {
		case !noteName.MatchString(name):
			return fmt.Errorf("invalid note name %q", name)
		case len(b) > maxNote:
			return fmt.Errorf("note %s has %d bytes; the limit is %d", name, len(b), maxNote)
		case b != nil:
			return d.own.WriteBytes(notePrefix+name, b)
		}
		if _, err := d.own.Root.Lstat(notePrefix + name); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return d.own.Drop(notePrefix + name)
	})
}

// Scratch returns a new file on the data volume. The file has no name, so it vanishes when it is closed, or with the process.
func (d *Dir) Scratch() (f *os.File, err error) {
	err = d.exclusive(func() error {
		if err := d.vol.Vacate(d.own.Folder, scratchFile); err != nil {
			return safe.WriteError(err, "make a scratch file")
		}
		f, err = d.vol.Create(d.own.Folder, scratchFile, 0o600)
		if err == nil {
			if err = d.vol.Remove(d.own.Folder, scratchFile); err != nil {
				err = errors.Join(err, f.Close())
			}
		}
		return safe.WriteError(err, "make a scratch file")
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}
