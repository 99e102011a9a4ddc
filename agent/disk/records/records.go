// Package records keeps small files in .stoker: the audit record and the diffs of the last syncs, which users read, and notes,
// which the agent reads after a restart.
package records

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Records are the records of a data directory.
type Records struct {
	own       *safe.AgentFolder // nil if .stoker does not exist
	writing   sync.Locker
	exclusive func(do func() error) error
}

// New returns the records in own, or none if own is nil. Every method that writes in own holds writing. exclusive calls do while it
// holds writing, or returns an error if nothing may be written.
func New(own *safe.AgentFolder, writing sync.Locker, exclusive func(do func() error) error) Records {
	return Records{own, writing, exclusive}
}

// Close makes r empty. The caller must hold writing, and closes the folder.
func (r *Records) Close() { r.own = nil }

// readOwn reads the first limit bytes of a file in .stoker. It returns nil if there is no such file.
func readOwn(dataDir, name string, limit int64) (_ []byte, err error) {
	root, err := os.OpenRoot(dataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	c := safe.Cursor{Top: root}
	defer c.Reset()
	folder, name, err := c.Parent(path.Join(safe.OwnDir, name))
	var f *os.File
	if err == nil {
		f, _, err = folder.File(name, os.O_RDONLY)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, limit))
}

const (
	// AuditFile is the name of the audit record in .stoker.
	AuditFile = "audit.jsonl"
	// MaxAudit bounds the audit record, in bytes.
	MaxAudit = 1 << 20
	// MaxAuditLine bounds one line of it, in bytes.
	MaxAuditLine = 8 << 10
)

// AddAudit adds a line to audit.jsonl, by rewriting the file durably. If the file then exceeds 1 MiB, AddAudit removes the oldest
// lines. It sets a damaged file aside and starts a new one. Only users read the file: no sync depends on it.
func (r *Records) AddAudit(line []byte) error {
	if len(line) > MaxAuditLine || bytes.ContainsRune(line, '\n') {
		return fmt.Errorf("cannot record a line of %d bytes: it must have at most %d bytes and no line break", len(line), MaxAuditLine)
	}
	return r.exclusive(func() error {
		all, err := r.own.Read(AuditFile, MaxAudit)
		if errors.Is(err, safe.ErrDamaged) {
			err = r.own.Vol.SetAside(r.own.Folder, AuditFile, err)
		}
		if err != nil {
			return err
		}
		if len(all) > 0 && all[len(all)-1] != '\n' {
			all = append(all, '\n')
		}
		all = append(append(all, line...), '\n')
		for len(all) > MaxAudit {
			all = all[bytes.IndexByte(all, '\n')+1:]
		}
		return r.own.WriteBytes(AuditFile, all)
	})
}

// ReadAudit returns the content of audit.jsonl in a data directory, one line for each recorded sync, oldest first, or nil if there is no
// such file. It may run while an agent writes. The gateway can write to its data directory, so the caller must not trust the
// content.
func ReadAudit(dataDir string) ([]byte, error) { return readOwn(dataDir, AuditFile, MaxAudit) }

const (
	// HistoryDir is the folder of the diffs in .stoker.
	HistoryDir = "history"
	// keptDiffs is how many diffs are kept, whichever gateway they name.
	keptDiffs = 10
	// MaxDiff bounds a diff, in bytes.
	MaxDiff = 1 << 20
)

var diffName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-diff-([0-9]{8}-[0-9]{6})\.json$`)

// diffTime returns the time in the name of a diff, or zero for another name.
func diffTime(name string) time.Time {
	m := diffName.FindStringSubmatch(name)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.Parse(syntax.StampFormat, m[1]) // zero if there is no such day
	return t
}

// AddDiff saves the diff of a sync, durably, and returns the name of its file. Only users read it: no sync depends on it. AddDiff
// removes the oldest diffs beyond keptDiffs. If only that fails, it returns the name and an error.
func (r *Records) AddDiff(gateway string, at time.Time, b []byte) (id string, err error) {
	err = r.exclusive(func() error {
		id, err = addDiff(r.own, gateway, at.UTC().Truncate(time.Second), b)
		return err
	})
	return id, err
}

func addDiff(own *safe.AgentFolder, gateway string, at time.Time, b []byte) (id string, err error) {
	history, err := own.OpenOrMake(HistoryDir)
	if err != nil {
		return "", err
	}
	defer history.Close()
	list, err := history.Entries()
	if err != nil {
		return "", err
	}
	var names []string
	farFuture := at.AddDate(1, 0, 0) // a later diff is from another program or a wrong clock, and the next name need not sort behind it
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".json.new") { // an agent was killed while it wrote the file
			if err := own.Vol.Vacate(history, e.Name()); err != nil {
				return "", err
			}
		}
		if t := diffTime(e.Name()); !t.IsZero() && t.Before(farFuture) {
			names = append(names, e.Name())
			if !at.After(t) { // the new name sorts last, even if the clock was set back by less than a year
				at = t.Add(time.Second)
			}
		}
	}
	id = gateway[:min(len(gateway), syntax.MaxGatewayName)] + "-diff-" + at.Format(syntax.StampFormat) + ".json"
	if len(b) > MaxDiff || !diffName.MatchString(id) {
		return "", fmt.Errorf("cannot save the diff %.300q of %d bytes", id, len(b))
	}
	if _, err := own.Vol.WriteFile(history, id, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}); err != nil {
		return "", err
	}
	slices.SortFunc(names, func(a, b string) int { return diffTime(a).Compare(diffTime(b)) })
	for _, name := range names[:max(0, len(names)-keptDiffs+1)] {
		err = errors.Join(err, own.Vol.Vacate(history, name))
	}
	return id, err
}

// ReadDiff returns a diff that AddDiff saved in a data directory, or nil if there is none. Like ReadAudit, it may run while an
// agent writes, and the caller must not trust the result.
func ReadDiff(dataDir, id string) ([]byte, error) {
	if !diffName.MatchString(id) {
		return nil, nil
	}
	return readOwn(dataDir, path.Join(HistoryDir, id), MaxDiff)
}

const (
	// NotePrefix begins the name of the file of a note in .stoker.
	NotePrefix = "note-"
	// MaxNote bounds a note, in bytes.
	MaxNote = 1 << 20
)

var noteName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// DamagedNote replaces a note whose file was damaged. Callers must not treat it as a missing note: the lost
// note may have said that something is still to be done.
const DamagedNote = "damaged"

// Note returns the note of that name, or nil if it does not exist. A note is a small file in .stoker in which another
// package remembers something across restarts. If the file is damaged, Note sets it aside and returns DamagedNote, also from then on.
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
