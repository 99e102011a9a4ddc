package records

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	// NotePrefix begins the name of the file of a note in .stoker.
	NotePrefix = "note-"
	// MaxNote bounds a note, in bytes.
	MaxNote = 1 << 20
)

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// DamagedNote replaces a note that could not be read. Callers must not treat it as a missing note: the lost
// note may have said that something is still to be done.
const DamagedNote = "damaged"

// Note returns the note of that name, or nil if it does not exist. A note is a small file in .stoker in which another
// package remembers something across restarts. If it cannot be read, Note returns DamagedNote.
func (r *Records) Note(name string) ([]byte, error) {
	if !noteName.MatchString(name) {
		return nil, fmt.Errorf("invalid note name %q", name)
	}
	name = NotePrefix + name
	b, err := r.own.Read(name, MaxNote)
	switch {
	case !errors.Is(err, safe.ErrDamaged):
		return b, err
	case r.own.ReadOnly:
		return []byte(DamagedNote), nil
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	if err := r.own.Vol.SetAside(r.own.Folder, name, err); err != nil {
		return nil, err
	}
	// Remember, also across restarts, that there was a note.
	return []byte(DamagedNote), r.own.WriteBytes(name, []byte(DamagedNote))
}

// SetNote writes a note of at most 1 MiB in .stoker, durably; nil removes it.
func (r *Records) SetNote(name string, b []byte) error {
	return r.exclusive(func() error {
		switch {
		case !noteName.MatchString(name):
			return fmt.Errorf("invalid note name %q", name)
		case len(b) > MaxNote:
			return fmt.Errorf("note %s has %d bytes; the limit is %d", name, len(b), MaxNote)
		case b != nil:
			return r.own.WriteBytes(NotePrefix+name, b)
		}
		if _, err := r.own.Lstat(NotePrefix + name); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return r.own.Drop(NotePrefix + name)
	})
}
