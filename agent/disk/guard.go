package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

// writeGuard decides who may write: one method at a time, and only while the paths of the data directory lead to what is open.
type writeGuard struct {
	readOnly bool
	writing  sync.Mutex // held while writing
	opened   []openedFile
}

// openedFile is a directory or file that a Dir keeps open, so that its inode is not reused.
type openedFile struct {
	name string
	fs.FileInfo
	stat func() (fs.FileInfo, error) // of what its path leads to now
}

// add adds what is open to the guarded files. stat describes what the path leads to now.
func (g *writeGuard) add(name string, opened, stat func() (fs.FileInfo, error)) error {
	fi, err := opened()
	if err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	g.opened = append(g.opened, openedFile{name, fi, stat})
	return nil
}

// exclusive calls do, which writes in .stoker, while no other method writes. If the Dir is read-only or moved, exclusive does not
// call do, and returns ErrReadOnly or ErrMoved.
func (g *writeGuard) exclusive(do func() error) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	if g.readOnly {
		return ErrReadOnly
	}
	if err := g.checkMoved(); err != nil {
		return err
	}
	return do()
}

// checkMoved returns ErrMoved if a path no longer leads to what is open.
func (g *writeGuard) checkMoved() error {
	for _, f := range g.opened {
		fi, err := f.stat()
		if err := checkSame(f.name, f.FileInfo, fi, err); err != nil {
			return err
		}
	}
	return nil
}

// guardOpenFiles adds what d has opened to the guarded files.
func guardOpenFiles(d *Dir) error {
	lstat := func(path string) func() (fs.FileInfo, error) {
		return func() (fs.FileInfo, error) { return d.top.Lstat(path) }
	}
	g := &d.writeGuard
	err := g.add(d.path, func() (fs.FileInfo, error) { return d.top.Stat(".") }, func() (fs.FileInfo, error) { return os.Stat(d.path) })
	if err == nil && d.own != nil {
		err = g.add(safe.OwnDir, d.own.Stat, lstat(safe.OwnDir))
	}
	if err == nil && d.lock != nil {
		const path = safe.OwnDir + "/" + lock.FileName
		err = g.add(path, d.lock.File.Stat, lstat(path))
	}
	return err
}

// CheckOpen checks that the path of the Dir still leads to the files that it opened. It returns ErrMoved if the data directory,
// .stoker or its lock was replaced or removed, or if a backup was copied over the open manifest. Then Stage, Apply and Drift fail
// with ErrMoved, too, and the caller has to close the Dir and open it again. CheckOpen costs four stats.
func (d *Dir) CheckOpen() error {
	if err := d.checkMoved(); err != nil {
		return err
	}
	if d.o.ReadOnly { // d keeps the manifest that it opened, whatever the agent writes
		return nil
	}
	return checkManifest(d.manifest(), d.top)
}

// checkManifest returns ErrMoved if the file at the manifest's path is not the open one or was overwritten, or if a block of it
// could not be read.
func checkManifest(m *format.Manifest, top *os.Root) error {
	const path = safe.OwnDir + "/" + manifestFile
	if m.Damaged() {
		return fmt.Errorf("%w: %s was damaged", ErrMoved, path)
	}
	fi, err := top.Lstat(path)
	if m.Info == nil {
		switch {
		case err == nil:
			return fmt.Errorf("%w: %s was created by another program", ErrMoved, path)
		case errors.Is(err, fs.ErrNotExist):
			return nil
		}
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
	case err != nil || !safe.SameFile(opened, now):
		return fmt.Errorf("%w: %s was removed or replaced", ErrMoved, name)
	}
	return nil
}
