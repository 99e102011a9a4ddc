package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

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

// rewrite applies edits to old: it writes a new manifest and renames it over the present one.
func (d *Dir) rewrite(h plan.Header, old *format.Manifest, next format.Edits) (renamed bool, err error) {
	renamed, err = d.own.Write(manifestFile, func(w io.Writer) error { return format.Merge(w, h, old, next) })
	if !renamed {
		return false, err
	}
	f, _, ferr := d.own.File(manifestFile, os.O_RDONLY)
	if ferr != nil {
		return true, errors.Join(err, fmt.Errorf("read the new manifest: %w", ferr))
	}
	m, ferr := format.OpenManifest(f, d.o.MaxFiles)
	if ferr != nil {
		return true, errors.Join(err, ferr, f.Close())
	}
	d.setManifest(m)
	return true, err
}
