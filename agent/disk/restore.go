package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
)

// OpenLost opens what lies at an entry of lost+found. Only files can be read: a symbolic link that was saved is shown by
// its entry, and is not followed.
func (d *Dir) OpenLost(l Lost) (io.ReadCloser, error) {
	if err := checkPath(l.File); err != nil {
		return nil, damaged("an entry of lost+found: %w", err)
	}
	if d.own == nil {
		return nil, fmt.Errorf("%s: %w", l.File, fs.ErrNotExist)
	}
	at, err := d.own.open(lostDir)
	if err != nil {
		return nil, fmt.Errorf("open lost+found: %w", err)
	}
	defer func() { at.close() }()
	dir, name := split(l.File)
	for part := range strings.SplitSeq(dir, "/") {
		next, err := at.open(part)
		if err != nil {
			return nil, fmt.Errorf("%s in lost+found: %w", l.File, err)
		}
		at.close()
		at = next
	}
	f, _, err := at.file(name, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("%s in lost+found: %w", l.File, err)
	}
	return f, nil
}

// ErrUnsaved means that what lies at the place of a restore would be lost: git does not have it.
var ErrUnsaved = errors.New("what lies there is not in git and would be lost")

const restoreName = "restore.new"

// Restore puts an entry of lost+found back to where it came from. It is what a person on the gateway does, and works
// beside a running agent, also under ReadOnly: the next look finds a file that was changed on the gateway.
//
// What lies there now goes only where the manifest says that it is what git wanted; else the error is ErrUnsaved and
// nothing is changed. The entry stays in lost+found.
func (d *Dir) Restore(l Lost) error {
	if err := checkPath(l.Path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if resource.NeverTouch(l.Path) {
		return fmt.Errorf("restore %s: a path that is never touched", l.Path)
	}
	from, err := d.OpenLost(l)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // opened for reading
	cur := cursor{top: d.top}
	defer cur.reset()
	dir, name := split(l.Path)
	n, err := d.makeParents(&cur, dir)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	if err := d.remove(d.own, restoreName); err != nil {
		return writing(err, "restore %s", l.Path)
	}
	defer func() { _ = d.remove(d.own, restoreName) }() // gone already where it went in place
	if err := d.fillRestore(n, from); err != nil {
		return writing(err, "restore %s", l.Path)
	}
	if err := d.putBack(n, name, l.Path); err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	return d.syncDir(n)
}

// makeParents opens a directory and makes what is missing of it, with the owner of what is there.
func (d *Dir) makeParents(cur *cursor, dir string) (*node, error) {
	n, err := cur.at("")
	if dir == "" || err != nil {
		return n, err
	}
	path := ""
	for part := range strings.SplitSeq(dir, "/") {
		path = strings.TrimPrefix(path+"/"+part, "/")
		next, err := cur.at(path)
		if errors.Is(err, fs.ErrNotExist) {
			like, serr := n.stat()
			if serr != nil {
				return nil, serr
			}
			if err := d.mkdir(n, part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
			if next, err = cur.at(path); err == nil {
				err = d.ownDir(next, like, 0o755)
			}
			if err != nil {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		}
		n = next
	}
	return n, nil
}

// fillRestore writes the saved bytes beside, with the owner of the directory that they go to.
func (d *Dir) fillRestore(n *node, from io.Reader) error {
	like, err := n.stat()
	if err != nil {
		return err
	}
	f, err := d.create(d.own, restoreName, 0o644)
	if err != nil {
		return err
	}
	path := d.own.join(restoreName)
	err = d.fill(path, func() error {
		_, err := io.Copy(f, from)
		return err
	})
	if err == nil {
		_, err = d.give(f, path, attrsOf(like), 0o644)
	}
	if err == nil {
		err = d.sync(f, path)
	}
	return errors.Join(err, f.Close())
}

// putBack moves the restored file in place of nothing, or of what git has.
func (d *Dir) putBack(n *node, name, path string) error {
	err := d.renameNew(d.own, restoreName, n, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	rec, owned, err := d.manifest().Get(path)
	if err != nil {
		return err
	}
	known := func(at *node, name string) error {
		if !owned {
			return ErrUnsaved
		}
		id, err := at.id(name, make([]byte, 64<<10))
		if err == nil && id != rec.Have && id != rec.Want {
			err = ErrUnsaved
		}
		return err
	}
	if err := known(n, name); err != nil {
		return err
	}
	if err := d.exchange(d.own, restoreName, n, name); err != nil {
		if errors.Is(err, errNoFlag) {
			return d.rename(d.own, restoreName, n, name)
		}
		return err
	}
	if err := known(d.own, restoreName); err != nil { // the gateway wrote in this instant
		return errors.Join(err, d.exchange(d.own, restoreName, n, name))
	}
	return nil
}
