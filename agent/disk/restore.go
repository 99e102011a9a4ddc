package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
)

// LostAndFound lists the entries, oldest first.
func (d *Dir) LostAndFound() ([]Lost, error) { return d.lost.list() }

// LostAndFoundBytes returns the size of lost+found.
func (d *Dir) LostAndFoundBytes() (int64, error) { return d.lost.bytes() }

// OpenLost opens the file of an entry. Only regular files can be read; a saved symbolic link is not followed.
func (d *Dir) OpenLost(l Lost) (io.ReadCloser, error) {
	f, _, err := d.lost.open(l)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ErrUnsaved means that a restore would destroy a file that git does not have.
var ErrUnsaved = errors.New("what lies there is not in git and would be lost")

const restoreName = "restore.new"

// Restore puts an entry of lost+found back to its old path. It acts like a user on the gateway and works beside a
// running agent, also under ReadOnly: the next comparison finds a file that was changed on the gateway.
//
// It replaces an existing file only if git has it according to the manifest; otherwise it returns ErrUnsaved and
// changes nothing. The entry stays in lost+found.
func (d *Dir) Restore(l Lost) error {
	if err := checkPath(l.Path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if resource.NeverTouch(l.Path) {
		return fmt.Errorf("restore %s: a path that is never touched", l.Path)
	}
	from, saved, err := d.lost.open(l)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // opened for reading
	r := &run{d: d, journal: journal{areas: []string{""}}}
	r.cur.top = d.top
	defer r.cur.reset()
	dir, name := split(l.Path)
	n, err := d.makeParents(&r.cur, dir)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	own, done, err := r.onMount(n)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	defer done()
	if err := d.vol.vacate(own, restoreName); err != nil {
		return writing(err, "restore %s", l.Path)
	}
	defer func() { _ = d.vol.remove(own, restoreName) }() // fails if it was moved into place
	if err := d.fillRestore(own, n, from, saved.Mode()); err != nil {
		return writing(err, "restore %s", l.Path)
	}
	if err := d.putBack(own, n, name, l.Path); err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	return d.vol.syncDir(n)
}

// onMount opens our own folder on the mount of the directory n, at which r.cur stands, because a rename cannot cross
// mounts. done closes it, and removes it if it was created for this.
func (r *run) onMount(n *node) (own *node, done func(), err error) {
	area, err := r.areaOf(n)
	if err != nil {
		return nil, nil, err
	}
	if area == 0 {
		return r.d.own.node, func() {}, nil
	}
	top := r.cur.chain[slices.IndexFunc(r.cur.chain, func(n *node) bool { return n.path == r.areas[area] })]
	if own, err = r.d.vol.ownFolder(top); err != nil {
		return nil, nil, err
	}
	return own, func() {
		own.close()
		_ = r.d.vol.rmdir(top, ownDir) // fails if a sync uses it
	}, nil
}

// makeParents opens a directory and makes its missing parts, with the owner of the existing ones.
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
			above, _ := split(path)
			if n = cur.chain[len(cur.chain)-1]; n.path != above { // it was removed a moment ago
				return nil, err
			}
			like, serr := n.stat()
			if serr != nil {
				return nil, serr
			}
			if err := d.vol.mkdir(n, part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
			if next, err = cur.at(path); err == nil {
				err = d.vol.ownDir(next, like, 0o755)
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

// fillRestore writes the saved bytes to our own folder, with the owner of the target directory and the saved mode, so
// that private files stay private.
func (d *Dir) fillRestore(own, n *node, from io.Reader, mode fs.FileMode) error {
	like, err := n.stat()
	if err != nil {
		return err
	}
	f, err := d.vol.create(own, restoreName, 0o600)
	if err != nil {
		return err
	}
	path := own.join(restoreName)
	err = d.vol.fill(path, func() error {
		_, err := io.Copy(f, from)
		return err
	})
	if err == nil {
		_, err = d.vol.give(f, path, attrsOf(like), mode)
	}
	if err == nil {
		err = d.vol.sync(f, path)
	}
	return errors.Join(err, f.Close())
}

// putBack moves the restored file to a free name, or replaces a file that git has.
func (d *Dir) putBack(own, n *node, name, path string) error {
	err := d.vol.renameNew(own, restoreName, n, name)
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
		id, err := at.id(context.Background(), name, make([]byte, 64<<10), d.o.MaxBlob)
		if err == nil && (id.IsZero() || id != rec.Have && id != rec.Want) {
			err = ErrUnsaved
		}
		return err
	}
	if err := known(n, name); err != nil {
		return err
	}
	if err := d.vol.exchange(own, restoreName, n, name); err != nil {
		if errors.Is(err, errNoFlag) {
			return d.vol.rename(own, restoreName, n, name)
		}
		return err
	}
	if err := known(own, restoreName); err != nil { // the gateway wrote at this moment
		return errors.Join(err, d.vol.exchange(own, restoreName, n, name))
	}
	return nil
}
