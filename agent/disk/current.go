package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

// openedFile is a directory or file that a Dir keeps open, so that its inode is not reused.
type openedFile struct {
	name string
	fs.FileInfo
	stat func() (fs.FileInfo, error) // of what its path leads to now
}

// recordOpened sets d.opened to what d has opened.
func recordOpened(d *Dir) error {
	record := func(name string, opened, stat func() (fs.FileInfo, error)) error {
		fi, err := opened()
		if err != nil {
			return fmt.Errorf("stat %s: %w", name, err)
		}
		d.opened = append(d.opened, openedFile{name, fi, stat})
		return nil
	}
	lstat := func(path string) func() (fs.FileInfo, error) {
		return func() (fs.FileInfo, error) { return d.top.Lstat(path) }
	}
	err := record(d.path, func() (fs.FileInfo, error) { return d.top.Stat(".") }, func() (fs.FileInfo, error) { return os.Stat(d.path) })
	if err == nil && d.own != nil {
		err = record(safe.OwnDir, d.own.Stat, lstat(safe.OwnDir))
	}
	if err == nil && d.lock != nil {
		const path = safe.OwnDir + "/" + lock.FileName
		err = record(path, d.lock.File.Stat, lstat(path))
	}
	return err
}

// Current checks that the path of the Dir still leads to the files that it opened. It returns ErrMoved if the data directory
// or .stoker was replaced or removed, or if a backup was copied over the open manifest. Then writes fail with ErrMoved, too,
// and the caller has to close the Dir and open it again. Current costs four stats.
func (d *Dir) Current() error {
	if err := d.checkMoved(); err != nil {
		return err
	}
	return d.checkManifest()
}

// exclusive calls do, which writes in .stoker, while no other method writes. If the Dir is read-only or moved, exclusive does not
// call do, and returns ErrReadOnly or ErrMoved.
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
	for _, f := range d.opened {
		fi, err := f.stat()
		if err := checkSame(f.name, f.FileInfo, fi, err); err != nil {
			return err
		}
	}
	return nil
}

// checkManifest returns ErrMoved if the file at the manifest's path is not the open one, or if a block of it could not be read. A
// read-only Dir keeps the manifest that it opened, whatever the agent writes.
func (d *Dir) checkManifest() error {
	if d.o.ReadOnly {
		return nil
	}
	const path = safe.OwnDir + "/" + manifestFile
	m := d.manifest()
	if m.Damaged() {
		return fmt.Errorf("%w: %s was damaged", ErrMoved, path)
	}
	fi, err := d.top.Lstat(path)
	if m.Info == nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := checkSame(path, m.Info, fi, err); err != nil {
		return err
	}
	if m.Info.Size() != fi.Size() || !m.Info.ModTime().Equal(fi.ModTime()) {
		return fmt.Errorf("%w: %s was overwritten", ErrMoved, path)
	}
	return nil
}

// checkSame returns ErrMoved if the path of an opened file no longer leads to it. now and err are the result of a stat of the
// path.
func checkSame(name string, opened, now fs.FileInfo, err error) error {
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("check that the data directory still exists: %w", err)
	case err != nil || !os.SameFile(opened, now):
		return fmt.Errorf("%w: %s was removed or replaced", ErrMoved, name)
	}
	return nil
}
