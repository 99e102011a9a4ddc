package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// ErrOwned means that a file is git's, so that only a sync changes it.
var ErrOwned = errors.New("the file belongs to git")

// Edit changes a file of the gateway that git does not have, atomically: edit gets its content, nil if it does not exist, and returns the new
// content, or nil to leave it as it is. Missing directories are made below one that exists. What is replaced goes to lost+found if reason is not
// empty. If the file is in the manifest and would change, Edit returns ErrOwned. It follows no link.
func (d *Dir) Edit(path string, limit int64, reason string, edit func(old []byte) ([]byte, error)) (changed bool, err error) {
	if err := safe.CheckPath(path); err != nil {
		return false, err
	}
	err = d.exclusive(func() error {
		changed, err = d.edit(path, limit, reason, edit)
		return err
	})
	return changed, err
}

// checkNotOwned returns ErrOwned for a file of the manifest.
func (d *Dir) checkNotOwned(path string) error {
	_, owned, err := d.manifest().Get(path)
	if err == nil && owned {
		err = fmt.Errorf("%s: %w", path, ErrOwned)
	}
	return err
}

func (d *Dir) edit(path string, limit int64, reason string, edit func(old []byte) ([]byte, error)) (changed bool, err error) {
	cur := safe.Cursor{Top: d.top}
	defer cur.Reset()
	dir, name := safe.Split(path)
	old, err := readExisting(&cur, dir, name, limit)
	if err != nil {
		return false, err
	}
	next, err := edit(old)
	if err != nil || next == nil || old != nil && bytes.Equal(old, next) {
		return false, err
	}
	if err := d.checkNotOwned(path); err != nil {
		return false, err
	}
	n, err := makeParents(d.vol, &cur, dir)
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	own, done, err := onMount(d.own, &cur, n)
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	defer done()
	if err := d.vol.Vacate(own, restoreName); err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	defer func() { _ = d.vol.Remove(own, restoreName) }() // does nothing if it was moved into place
	mode := fs.FileMode(0o644)
	if fi, err := n.Root.Lstat(name); err == nil {
		mode = fi.Mode()
	}
	err = writeRestored(d.vol, own, n, bytes.NewReader(next), mode)
	switch {
	case err != nil:
	case old == nil:
		err = d.vol.RenameNew(own, restoreName, n, name)
	default:
		err = d.replace(own, n, name, path, reason, old, limit)
	}
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	return true, safe.WriteError(d.vol.SyncDir(n), "write %s", path)
}

// readExisting returns the content of a file, or nil if it or its directory does not exist.
func readExisting(cur *safe.Cursor, dir, name string, limit int64) ([]byte, error) {
	n, err := cur.At(dir)
	if err == nil {
		var b []byte
		if b, err = n.ReadFile(name, limit); err == nil {
			return b, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// replace exchanges the file restoreName in own with the one in n, which must still be old.
func (d *Dir) replace(own, n *safe.Folder, name, path, reason string, old []byte, limit int64) error {
	if reason != "" {
		saver := d.lost.NewSaver(d.lost.NewName(plan.ID{}), plan.ID{})
		if err := saver.Save(n, name, path, reason); err != nil {
			return err
		}
		if err := saver.Sync(); err != nil {
			return err
		}
	}
	err := d.vol.Exchange(own, restoreName, n, name)
	if errors.Is(err, safe.ErrNoExchange) {
		return d.vol.Rename(own, restoreName, n, name)
	}
	if err != nil {
		return err
	}
	if now, err := own.ReadFile(restoreName, limit); err != nil || !bytes.Equal(now, old) {
		return errors.Join(errors.New("the gateway wrote it at the same time; the agent tries again"), err, d.vol.Exchange(own, restoreName, n, name))
	}
	return nil
}

// RemoveOwn removes a file that Edit made, and the directory that it leaves empty. A missing file is not an error.
func (d *Dir) RemoveOwn(path string) error {
	return d.exclusive(func() error {
		if err := d.checkNotOwned(path); err != nil {
			return err
		}
		cur := safe.Cursor{Top: d.top}
		defer cur.Reset()
		dir, name := safe.Split(path)
		n, err := cur.At(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := d.vol.Remove(n, name); err != nil {
			return safe.WriteError(err, "remove %s", path)
		}
		above, last := safe.Split(dir)
		parent, err := cur.At(above)
		if err != nil {
			return err
		}
		if err := d.vol.Rmdir(parent, last); err != nil && !safe.IsNotEmpty(err) && !errors.Is(err, fs.ErrNotExist) {
			return safe.WriteError(err, "remove %s", dir)
		}
		return nil
	})
}

// Folders returns the names of the directories in a directory of the gateway, at most limit of them. A missing directory has none.
func (d *Dir) Folders(path string, limit int) ([]string, error) {
	cur := safe.Cursor{Top: d.top}
	defer cur.Reset()
	n, err := cur.At(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := n.Entries()
	var names []string
	for _, e := range list {
		if e.IsDir() && len(names) < limit {
			names = append(names, e.Name())
		}
	}
	return names, err
}
