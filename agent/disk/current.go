package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/safe"
)

// identity has the file infos of what a Dir opened. The files stay open, so that their inodes are not reused.
type identity struct {
	top, own, lock fs.FileInfo // nil if not open, which is possible only under ReadOnly
}

// identify records what is open.
func identify(d *Dir) error {
	var err error
	if d.is.top, err = d.top.Stat("."); err != nil {
		return fmt.Errorf("stat the data directory: %w", err)
	}
	if d.own != nil {
		if d.is.own, err = d.own.Stat(); err != nil {
			return fmt.Errorf("stat %s: %w", safe.OwnDir, err)
		}
	}
	if d.lock.f != nil {
		if d.is.lock, err = d.lock.f.Stat(); err != nil {
			return fmt.Errorf("stat %s/%s: %w", safe.OwnDir, lockFile, err)
		}
	}
	return nil
}

// Current returns ErrMoved if what is open is no longer what its path leads to: another directory was put there,
// .stoker was removed and with it the lock, or a backup was copied over the open manifest. Writes then fail with
// ErrMoved, too; Close and Open again. Current costs four stats.
func (d *Dir) Current() error {
	if err := d.there(); err != nil {
		return err
	}
	return sameManifest(d)
}

// there is Current without the manifest.
func (d *Dir) there() error {
	fi, err := os.Stat(d.path)
	if err := same(d.is.top, fi, err, "another directory is at %s", d.path); err != nil {
		return err
	}
	if d.is.own != nil {
		fi, err := d.top.Lstat(safe.OwnDir)
		if err := same(d.is.own, fi, err, "%s was removed or replaced", safe.OwnDir); err != nil {
			return err
		}
	}
	if d.is.lock != nil {
		fi, err := d.top.Lstat(safe.OwnDir + "/" + lockFile)
		return same(d.is.lock, fi, err, "%s/%s was removed or replaced", safe.OwnDir, lockFile)
	}
	return nil
}

// sameManifest returns ErrMoved if the open manifest is not the file at its path, or turned out to be damaged. A
// read-only Dir keeps its own manifest whatever the agent writes.
func sameManifest(d *Dir) error {
	if d.o.ReadOnly {
		return nil
	}
	m := d.manifest()
	if m.Damaged() {
		return fmt.Errorf("%w: %s/%s was damaged", ErrMoved, safe.OwnDir, manifestFile)
	}
	fi, err := d.top.Lstat(safe.OwnDir + "/" + manifestFile)
	if m.Info == nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := same(m.Info, fi, err, "%s/%s was removed or replaced", safe.OwnDir, manifestFile); err != nil {
		return err
	}
	if m.Info.Size() != fi.Size() || !m.Info.ModTime().Equal(fi.ModTime()) {
		return fmt.Errorf("%w: %s/%s was overwritten", ErrMoved, safe.OwnDir, manifestFile)
	}
	return nil
}

// same compares what was opened with what a path leads to now.
func same(was, is fs.FileInfo, err error, format string, args ...any) error {
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check that the data directory still exists: %w", err)
	case err != nil || !os.SameFile(was, is):
		return fmt.Errorf("%w: %s", ErrMoved, fmt.Sprintf(format, args...))
	}
	return nil
}
