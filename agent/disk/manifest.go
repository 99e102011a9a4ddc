package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// manifestStore has the current manifest of a data directory, and replaces it. manifest and Manifest may be called
// concurrently with the other methods.
type manifestStore struct {
	own      *safe.AgentFolder // nil if there is no .stoker
	maxFiles int

	mu      sync.Mutex // guards the field below
	current *format.Manifest
}

// Manifest returns the current manifest, which is empty if there is no file.
func (f *manifestStore) Manifest() plan.Manifest { return f.manifest() }

func (f *manifestStore) manifest() *format.Manifest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

func (f *manifestStore) setManifest(m *format.Manifest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = m // do not close the old file: it may have readers; it closes when it is garbage-collected
}

// loadManifest reads the manifest. It sets a damaged one aside: the next plan compares every file and adopts the equal ones.
func (f *manifestStore) loadManifest() error {
	m, err := f.openManifest()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = m.Check(); err == nil {
			f.setManifest(m)
			return nil
		}
		err = errors.Join(err, m.Close())
	}
	if !errors.Is(err, safe.ErrDamaged) {
		return fmt.Errorf("read the manifest: %w", err)
	}
	f.own.Vol.Log.Warn("manifest damaged; next sync compares every file", "error", err)
	if f.own.ReadOnly {
		return nil
	}
	return f.own.Vol.SetAside(f.own.Folder, manifestFile, err)
}

func (f *manifestStore) openManifest() (*format.Manifest, error) {
	file, _, err := f.own.OpenFile(manifestFile)
	if err != nil {
		return nil, err
	}
	m, err := format.OpenManifest(file, f.maxFiles)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return m, nil
}

// writeManifest replaces the manifest by old with edits. renamed reports whether the new one is in place; then an error means
// that it may not be durable, or cannot be read.
func (f *manifestStore) writeManifest(h plan.Header, old *format.Manifest, edits format.Edits) (renamed bool, err error) {
	if live := f.manifest(); !live.Missing() { // old is that of a snapshot if the run restores one
		h.Earlier = live.Header().Before(h)
	}
	renamed, err = f.own.Write(manifestFile, func(w io.Writer) error { return format.Merge(w, h, old, edits) })
	if !renamed {
		return false, err
	}
	m, openErr := f.openManifest()
	if openErr != nil {
		return true, errors.Join(err, fmt.Errorf("read the new manifest: %w", openErr))
	}
	f.setManifest(m)
	return true, err
}

// CorrectCommit makes the manifest name a commit without claiming that its files are on the disk, so that the next plan compares every
// file. The records stay.
func (d *Dir) CorrectCommit(ref string, commit plan.ID) error {
	return d.exclusive(func() error {
		m := d.manifest()
		h := m.Header()
		d.log.Warn("manifest wrong; next sync compares every file", "manifest", h.Commit.String(), "recorded", commit.String())
		h.Ref, h.Commit, h.Rules, h.Complete = ref, commit, "", false
		_, err := d.writeManifest(h, m, format.NoEdits)
		return err
	})
}
