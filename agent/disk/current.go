package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

// openedFiles describes the directories and the lock file that a Dir opened. They stay open, so that their inodes are not reused.
type openedFiles struct {
	top, own, lock fs.FileInfo // nil if not open, which is possible only under ReadOnly
}

// recordOpened sets d.opened.
func recordOpened(d *Dir) error {
	var err error
	if d.opened.top, err = d.top.Stat("."); err != nil {
		return fmt.Errorf("stat the data directory: %w", err)
	}
	if d.own != nil {
		if d.opened.own, err = d.own.Stat(); err != nil {
			return fmt.Errorf("stat %s: %w", safe.OwnDir, err)
		}
	}
	if d.lock != nil {
		if d.opened.lock, err = d.lock.File.Stat(); err != nil {
			return fmt.Errorf("stat %s/%s: %w", safe.OwnDir, lock.FileName, err)
		}
	}
	return nil
}

// Current checks that the path of the Dir still leads to the files that it opened. It returns ErrMoved if the data directory
// or .stoker was replaced or removed, or if a backup was copied over the open manifest. Then writes fail with ErrMoved, too,
// and the caller has to close the Dir and open it again. Current costs four stats.
func (d *Dir) Current() error {
	if err := d.checkMoved(); err != nil {
		return err
	}
	return checkManifest(d)
}

// exclusive calls do, which writes in .stoker, while no other method writes. Without calling do, it returns ErrReadOnly or ErrMoved.
func (d *Dir) exclusive(do func() error) error {
	d.work.Lock()
	defer d.work.Unlock()
	if d.o.ReadOnly {
		return ErrReadOnly
	}
	if err := d.checkMoved(); err != nil {
		return err
	}
	return do()
}

// checkMoved is Current without the check of the manifest.
func (d *Dir) checkMoved() error {
	fi, err := os.Stat(d.path)
	if err := checkSame(d.opened.top, fi, err, "%s is another directory now", d.path); err != nil {
		return err
	}
	if d.opened.own != nil {
		fi, err := d.top.Lstat(safe.OwnDir)
		if err := checkSame(d.opened.own, fi, err, "%s was removed or replaced", safe.OwnDir); err != nil {
			return err
		}
	}
	if d.opened.lock != nil {
		fi, err := d.top.Lstat(safe.OwnDir + "/" + lock.FileName)
		return checkSame(d.opened.lock, fi, err, "%s/%s was removed or replaced", safe.OwnDir, lock.FileName)
	}
	return nil
}

// checkManifest returns ErrMoved if the file at the manifest's path is not the open one, or if a block of it could not be read. A
// read-only Dir keeps the manifest that it opened, whatever the agent writes.
func checkManifest(d *Dir) error {
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
	if err := checkSame(m.Info, fi, err, "%s/%s was removed or replaced", safe.OwnDir, manifestFile); err != nil {
		return err
	}
	if m.Info.Size() != fi.Size() || !m.Info.ModTime().Equal(fi.ModTime()) {
		return fmt.Errorf("%w: %s/%s was overwritten", ErrMoved, safe.OwnDir, manifestFile)
	}
	return nil
}

// checkSame returns ErrMoved with the formatted text if a path no longer leads to the file that was opened. now and err are the
// result of a stat of the path.
func checkSame(opened, now fs.FileInfo, err error, format string, args ...any) error {
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check that the data directory still exists: %w", err)
	case err != nil || !os.SameFile(opened, now):
		return fmt.Errorf("%w: %s", ErrMoved, fmt.Sprintf(format, args...))
	}
	return nil
}
