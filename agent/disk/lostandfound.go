package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
)

// Lost is an entry of lost+found.
type Lost = lostfound.Entry

// LostAndFound lists the entries, oldest first.
func (d *Dir) LostAndFound() ([]Lost, error) { return d.lost.List() }

// LostAndFoundBytes returns the size of lost+found.
func (d *Dir) LostAndFoundBytes() (int64, error) { return d.lost.Bytes() }

// LostAndFoundMax returns the size above which its oldest folders are removed.
func (d *Dir) LostAndFoundMax() int64 { return d.o.LostFoundMax }

// OpenLost opens the file of an entry. Only regular files can be read; a saved symbolic link is not followed.
func (d *Dir) OpenLost(l Lost) (*os.File, error) {
	f, _, err := d.lost.Open(l)
	return f, err
}

// ErrUnsaved means that a restore would destroy a file that git does not have.
var ErrUnsaved = errors.New("the current file is not in git and would be lost")

// restoreName is the name in .stoker of a restored file until it moves to its path.
const restoreName = "restore.new"

// RestoreLost puts an entry of lost+found back at its old path. To the agent this looks like a change by a user of the gateway:
// the next comparison reports it. RestoreLost takes no lock, so it may run beside an agent, and it works on a Dir that was opened
// with ReadOnly.
//
// RestoreLost replaces an existing file only if git has it according to the manifest; otherwise it returns ErrUnsaved and
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
	cur := safe.Cursor{Top: d.top}
	defer cur.Reset()
	dir, name := safe.Split(l.Path)
	n, err := makeParents(d.vol, &cur, dir)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	own, done, err := onMount(d.own, &cur, n)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	defer done()
	if err := d.vol.Vacate(own, restoreName); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	defer func() { _ = d.vol.Remove(own, restoreName) }() // does nothing if it was moved into place
	if err := writeRestored(d.vol, own, n, from, saved.Mode()); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	r := restoredFile{own, d.vol, d.o.MaxBlob, &d.manifestStore}
	if err := r.moveTo(n, name, l.Path); err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	return d.vol.SyncDir(n)
}

// onMount opens a .stoker folder on the same mount as the directory n, because a rename cannot cross mounts. n must be the
// directory that cur opened last. In an area other than the data directory, whose .stoker is agent, onMount creates a missing
// folder. done closes it, and removes it if it is empty.
func onMount(agent *safe.AgentFolder, cur *safe.Cursor, n *safe.Folder) (own *safe.Folder, done func(), err error) {
	area, err := areaOf(cur, n)
	if err != nil {
		return nil, nil, err
	}
	if area == "" { // the data directory
		return agent.Folder, func() {}, nil
	}
	top := cur.Chain[slices.IndexFunc(cur.Chain, func(n *safe.Folder) bool { return n.Path == area })]
	if own, err = agent.Vol.OwnFolder(top); err != nil {
		return nil, nil, err
	}
	return own, func() {
		own.Close()
		_ = agent.Vol.Rmdir(top, safe.OwnDir) // fails if a sync uses it
	}, nil
}

// makeParents opens a directory. It makes the missing directories on its path, with the owner of the existing ones.
func makeParents(vol *safe.Volume, cur *safe.Cursor, dir string) (*safe.Folder, error) {
	n, err := cur.At(dir)
	if dir == "" || !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	above, name := safe.Split(dir)
	parent, err := makeParents(vol, cur, above)
	if err != nil {
		return nil, err
	}
	like, err := parent.Stat()
	if err != nil {
		return nil, err
	}
	if err := vol.Mkdir(parent, name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if n, err = cur.At(dir); err == nil {
		err = vol.SetDirAttrs(n, like, 0o755)
	}
	return n, err
}

// writeRestored writes the saved bytes to restoreName in own, with the owner of the target directory n and the saved mode, so
// that private files stay private.
func writeRestored(vol *safe.Volume, own, n *safe.Folder, from io.Reader, mode fs.FileMode) error {
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

// restoredFile is the file restoreName in own, until it moves to its path.
type restoredFile struct {
	own       *safe.Folder
	vol       *safe.Volume
	maxBlob   int64 // see Options.MaxBlob
	manifests *manifestStore
}

// moveTo moves the file to its path, the name in n. It replaces an existing file only if git has it, which is checked twice:
// before the exchange, and again for the file that the exchange moved to own, because the gateway may have written in
// between. If the second check fails, the files are exchanged back.
func (r restoredFile) moveTo(n *safe.Folder, name, path string) error {
	err := r.vol.RenameNew(r.own, restoreName, n, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	rec, owned, err := r.manifests.manifest().Get(path)
	if err != nil {
		return err
	}
	// checkSaved returns nil if the file at a name has the content that the manifest recorded for path.
	checkSaved := func(in *safe.Folder, name string) error {
		if !owned {
			return ErrUnsaved
		}
		id, err := in.Hash(context.Background(), name, make([]byte, 64<<10), r.maxBlob)
		if err == nil && (id.IsZero() || id != rec.Have && id != rec.Want) {
			err = ErrUnsaved
		}
		return err
	}
	if err := checkSaved(n, name); err != nil {
		return err
	}
	if err := r.vol.Exchange(r.own, restoreName, n, name); err != nil {
		if errors.Is(err, safe.ErrNoExchange) {
			return r.vol.Rename(r.own, restoreName, n, name)
		}
		return err
	}
	if err := checkSaved(r.own, restoreName); err != nil { // the gateway wrote between the first check and the exchange
		return errors.Join(err, r.vol.Exchange(r.own, restoreName, n, name))
	}
	return nil
}
