package single

import (
	"errors"
	"fmt"
	"io/fs"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

const (
	// aside is the name in .stoker of a file until its replacement is in its place.
	aside = "restore.old"
	// AsideFile has the path of the file aside, while that path has no file.
	AsideFile = "restore.path"
)

// exchange exchanges the file Staged in own with the one in folder. On a file system that cannot do this, the old file gets the second name
// aside before Staged is renamed over it. So the caller sees what the gateway writes into the old file. A file that the gateway renames over the
// old one is lost only in the moment between checkSame and the rename of Staged. Without hard links, the name in folder is missing for a moment;
// after a crash, it is missing until PutBack. If a crash leaves the old file in aside, the next exchange sets it aside for good; see SetAside.
func (f *Files) exchange(own, folder *safe.Folder, name string) error {
	err := f.vol.Exchange(own, Staged, folder, name)
	if !errors.Is(err, safe.ErrNoExchange) {
		return err
	}
	if err := f.vol.SetAside(own, aside, errors.New("left by a crash")); err != nil {
		return err
	}
	if f.vol.Link(folder, name, own, aside) == nil {
		err := checkSame(own, folder, name)
		if err == nil {
			err = f.vol.Rename(own, Staged, folder, name)
		}
		if err != nil {
			return errors.Join(err, f.vol.Remove(own, aside))
		}
		return f.vol.Rename(own, aside, own, Staged)
	}
	if err := f.own.WriteBytes(AsideFile, []byte(folder.Join(name))); err != nil {
		return err
	}
	if err := f.vol.Rename(folder, name, own, aside); err != nil {
		return errors.Join(err, f.own.Drop(AsideFile))
	}
	if err := f.vol.RenameNew(own, Staged, folder, name); err != nil { // if the gateway wrote the file again, its new version stays
		back := f.vol.RenameNew(own, aside, folder, name)
		if errors.Is(back, fs.ErrExist) {
			back = f.vol.Remove(own, aside)
		}
		if back == nil {
			back = f.dropAside(folder)
		}
		return errors.Join(err, back)
	}
	if err := f.dropAside(folder); err != nil { // the file stays aside: Staged would be removed
		return err
	}
	return f.vol.Rename(own, aside, own, Staged)
}

// checkSame returns errForeign if the file aside in own is no longer the one in folder.
func checkSame(own, folder *safe.Folder, name string) error {
	old, err := own.Lstat(aside)
	if err != nil {
		return err
	}
	now, err := folder.Lstat(name)
	if err == nil && !safe.SameFile(old, now) {
		err = errForeign
	}
	return err
}

// dropAside makes the names in folder durable, and then removes AsideFile.
func (f *Files) dropAside(folder *safe.Folder) error {
	if err := f.vol.SyncDir(folder); err != nil {
		return err
	}
	return f.own.Drop(AsideFile)
}

// PutBack puts a file that a crash left aside back at its path, unless the path has a file by now. It only logs an error: the next change of a
// single file tries again.
func (f *Files) PutBack() {
	if err := f.alone(func() error { return nil }); err != nil {
		f.vol.Log.Warn("cannot look for a file left by a crash", "error", err)
	}
}

// alone puts back a file that a crash left aside, and then calls do, which changes a single file. Meanwhile it locks .stoker, because other
// processes that change single files use the same names there. If another process has the lock, alone fails at once, because a program of the
// gateway could keep it waiting. Without a lock for any other reason, such as a volume that has no locks, alone goes on.
func (f *Files) alone(do func() error) error {
	dir, err := f.own.Handle()
	if err != nil {
		return err
	}
	held := lock.Lock{File: dir}
	defer func() { _ = held.Release() }() // opened for reading
	if err := lock.Flock(dir); errors.Is(err, lock.ErrBusy) {
		return fmt.Errorf("another process changes a file of the gateway at this moment; try again: %w", err)
	}
	f.putAsideBack()
	return do()
}

// putAsideBack is PutBack for alone.
func (f *Files) putAsideBack() {
	path, err := f.own.Read(AsideFile, safe.MaxPath)
	if err == nil && path != nil {
		err = f.putBack(string(path))
	}
	if errors.Is(err, safe.ErrDamaged) {
		err = f.vol.SetAside(f.own.Folder, AsideFile, err)
	}
	if err != nil {
		f.vol.Log.Warn("cannot put back a file that a crash left in .stoker; move it by hand", "path", string(path), "file", aside, "error", err)
	}
}

func (f *Files) putBack(path string) error {
	if err := safe.CheckPath(path); err != nil {
		return safe.Damaged("%w", err)
	}
	cur := safe.Cursor{Top: f.top}
	defer cur.Reset()
	folder, name, err := cur.Parent(path)
	if err != nil {
		return err
	}
	own, done, err := onMount(f.own, &cur, folder)
	if err != nil {
		return err
	}
	defer done()
	if err := f.vol.RenameNew(own, aside, folder, name); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.dropAside(folder)
}
