package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
)

// LostAndFound lists the entries, oldest first.
func (d *Dir) LostAndFound() ([]Lost, error) { return d.lost.List() }

// LostAndFoundBytes returns the size of lost+found.
func (d *Dir) LostAndFoundBytes() (int64, error) { return d.lost.Bytes() }

// LostAndFoundMax returns the size above which its oldest folders are removed.
func (d *Dir) LostAndFoundMax() int64 { return d.o.LostFoundMax }

// OpenLost opens the file of an entry. Only regular files can be read; a saved symbolic link is not followed.
func (d *Dir) OpenLost(l Lost) (io.ReadCloser, error) {
	f, _, err := d.lost.Open(l)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ErrUnsaved means that a restore would destroy a file that git does not have.
var ErrUnsaved = errors.New("the current file is not in git and would be lost")

const restoreName = "restore.new"

// Restore puts an entry of lost+found back at its old path. To the agent this looks like a change made by a user of the
// gateway: the next comparison reports the file as changed on the gateway. Restore takes no lock, so it may run beside
// an agent, and it works on a Dir that was opened with ReadOnly.
//
// Restore replaces an existing file only if git has it according to the manifest; otherwise it returns ErrUnsaved and
// changes nothing. The entry stays in lost+found.
func (d *Dir) RestoreLost(l Lost) error {
	if err := safe.CheckPath(l.Path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if resource.NeverTouch(l.Path) {
		return fmt.Errorf("restore %s: the agent never writes this path", l.Path)
	}
	from, saved, err := d.lost.Open(l)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // opened for reading
	r := &run{d: d, Journal: format.Journal{Areas: []string{""}}}
	r.cur.Top = d.top
	defer r.cur.Reset()
	dir, name := safe.Split(l.Path)
	n, err := makeParents(d.vol, &r.cur, dir)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	own, done, err := r.onMount(n)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	defer done()
	if err := d.vol.Vacate(own, restoreName); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	defer func() { _ = d.vol.Remove(own, restoreName) }() // fails if it was moved into place
	if err := fillRestore(d.vol, own, n, from, saved.Mode()); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	if err := d.putBack(own, n, name, l.Path); err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	return d.vol.SyncDir(n)
}

// onMount opens a .stoker folder on the same mount as the directory n. A restored file is written there and then renamed to
// n, because a rename cannot cross mounts. n must be the directory that r.cur opened last.
//
// An area is the top directory of a mount. Area 0 is the data directory itself, whose .stoker is always open. In any other
// area, onMount opens .stoker or creates it; done closes it, and removes it if it is empty.
func (r *run) onMount(n *safe.Folder) (own *safe.Folder, done func(), err error) {
	area, err := r.areaOf(n)
	if err != nil {
		return nil, nil, err
	}
	if area == 0 {
		return r.d.own.Folder, func() {}, nil
	}
	top := r.cur.Chain[slices.IndexFunc(r.cur.Chain, func(n *safe.Folder) bool { return n.Path == r.Areas[area] })]
	if own, err = r.d.vol.OwnFolder(top); err != nil {
		return nil, nil, err
	}
	return own, func() {
		own.Close()
		_ = r.d.vol.Rmdir(top, safe.OwnDir) // fails if a sync uses it
	}, nil
}

// makeParents opens a directory and makes its missing parts, with the owner of the existing ones.
func makeParents(vol *safe.Volume, cur *safe.Cursor, dir string) (*safe.Folder, error) {
	n, err := cur.At("")
	if dir == "" || err != nil {
		return n, err
	}
	path := ""
	for part := range strings.SplitSeq(dir, "/") {
		path = strings.TrimPrefix(path+"/"+part, "/")
		next, err := cur.At(path)
		if errors.Is(err, fs.ErrNotExist) {
			above, _ := safe.Split(path)
			if n = cur.Chain[len(cur.Chain)-1]; n.Path != above { // it was removed a moment ago
				return nil, err
			}
			like, serr := n.Stat()
			if serr != nil {
				return nil, serr
			}
			if err := vol.Mkdir(n, part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
			if next, err = cur.At(path); err == nil {
				err = vol.SetDirAttrs(next, like, 0o755)
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
func fillRestore(vol *safe.Volume, own, n *safe.Folder, from io.Reader, mode fs.FileMode) error {
	like, err := n.Stat()
	if err != nil {
		return err
	}
	f, err := vol.Create(own, restoreName, 0o600)
	if err != nil {
		return err
	}
	path := own.Join(restoreName)
	err = vol.Fill(path, func() error {
		_, err := io.Copy(f, from)
		return err
	})
	if err == nil {
		_, err = vol.SetAttrs(f, path, safe.AttrsOf(like), mode)
	}
	if err == nil {
		err = vol.Sync(f, path)
	}
	return errors.Join(err, f.Close())
}

// putBack moves the restored file from own to n. It replaces an existing file only if git has it, which is checked twice:
// before the exchange, and again for the file that the exchange moved to own, because the gateway may have written in
// between. If the second check fails, the files are exchanged back.
func (d *Dir) putBack(own, n *safe.Folder, name, path string) error {
	err := d.vol.RenameNew(own, restoreName, n, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	rec, owned, err := d.manifest().Get(path)
	if err != nil {
		return err
	}
	// known returns nil if the file at a name has the content that the manifest recorded for path.
	known := func(at *safe.Folder, name string) error {
		if !owned {
			return ErrUnsaved
		}
		id, err := at.Hash(context.Background(), name, make([]byte, 64<<10), d.o.MaxBlob)
		if err == nil && (id.IsZero() || id != rec.Have && id != rec.Want) {
			err = ErrUnsaved
		}
		return err
	}
	if err := known(n, name); err != nil {
		return err
	}
	if err := d.vol.Exchange(own, restoreName, n, name); err != nil {
		if errors.Is(err, safe.ErrNoExchange) {
			return d.vol.Rename(own, restoreName, n, name)
		}
		return err
	}
	if err := known(own, restoreName); err != nil { // the gateway wrote between the first check and the exchange
		return errors.Join(err, d.vol.Exchange(own, restoreName, n, name))
	}
	return nil
}
