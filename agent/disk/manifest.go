package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Manifest returns the current manifest, which is empty if there is no file.
func (d *Dir) Manifest() plan.Manifest { return d.manifest() }

func (d *Dir) manifest() *format.Manifest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.man
}

func (d *Dir) setManifest(m *format.Manifest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.man = m // the old file closes with its last reader
}

// loadManifest reads the manifest. It sets a damaged one aside: the next plan compares every file and adopts the equal
// ones.
func (d *Dir) loadManifest() error {
	m, err := d.openManifest()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = m.Check(); err == nil {
			d.setManifest(m)
			return nil
		}
		err = errors.Join(err, m.Close())
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

func (d *Dir) openManifest() (*format.Manifest, error) {
	f, _, err := d.own.OpenFile(manifestFile)
	if err != nil {
		return nil, err
	}
	m, err := format.OpenManifest(f, d.o.MaxFiles)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

// writeManifest replaces the manifest by old with edits. renamed reports whether the new one is in place; then an error means that it may not
// be durable, or cannot be read.
func (d *Dir) writeManifest(h plan.Header, old *format.Manifest, edits format.Edits) (renamed bool, err error) {
	renamed, err = d.own.Write(manifestFile, func(w io.Writer) error { return format.Merge(w, h, old, edits) })
	if !renamed {
		return false, err
	}
	m, openErr := d.openManifest()
	if openErr != nil {
		return true, errors.Join(err, fmt.Errorf("read the new manifest: %w", openErr))
	}
	d.setManifest(m)
	return true, err
}
