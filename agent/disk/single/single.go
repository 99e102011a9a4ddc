// Package single changes single files of the gateway, without a plan and without a journal: those of lost+found that a user restores, and those
// of the agent's API key. A file appears complete or not at all, and no link is followed. What git does not have is not lost, unless the
// caller of Edit gives no reason to save it, or RemoveOwn removes it.
package single

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// Files are the files of a data directory.
type Files struct {
	top       *os.Root
	vol       *safe.Volume
	own       *safe.AgentFolder
	lost      *lostfound.Folder
	manifest  func() *format.Manifest
	exclusive func(do func() error) error
	maxBlob   int64 // bytes; larger files are not hashed. 0 means no limit
}

// New returns the files of the data directory with the agent's folder own. exclusive calls a function while nothing else writes.
func New(own *safe.AgentFolder, lost *lostfound.Folder, manifest func() *format.Manifest, exclusive func(do func() error) error, maxBlob int64) Files {
	return Files{own.Vol.Top, own.Vol, own, lost, manifest, exclusive, maxBlob}
}

// ErrOwned means that a file is git's, so that only a sync changes it.
var ErrOwned = errors.New("the file belongs to git")

// Edit changes a file of the gateway that git does not have, atomically. edit gets the content, nil if there is no file, and returns the new
// content, or nil to leave the file as it is. Edit makes missing directories. The old file goes to lost+found if reason is not empty. If the
// file is in the manifest and would change, Edit returns ErrOwned. A file of more than limit bytes is LimitExceeded. Edit follows no link.
func (f *Files) Edit(path string, limit int64, reason string, edit func(old []byte) ([]byte, error)) (changed bool, err error) {
	if err := safe.CheckPath(path); err != nil {
		return false, err
	}
	err = f.exclusive(func() error {
		return f.alone(func() error {
			changed, err = f.edit(path, limit, reason, edit)
			return err
		})
	})
	return changed, err
}

// checkNotOwned returns ErrOwned for a file of the manifest.
func (f *Files) checkNotOwned(path string) error {
	_, owned, err := f.manifest().Get(path)
	if err == nil && owned {
		err = fmt.Errorf("%s: %w", path, ErrOwned)
	}
	return err
}

func (f *Files) edit(path string, limit int64, reason string, edit func(old []byte) ([]byte, error)) (changed bool, err error) {
	cur := safe.Cursor{Top: f.top}
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
	if err := f.checkNotOwned(path); err != nil {
		return false, err
	}
	folder, err := makeParents(f.vol, &cur, dir)
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	own, done, err := onMount(f.own, &cur, folder)
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	defer done()
	if err := f.vol.Vacate(own, Staged); err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	defer func() { _ = f.vol.Remove(own, Staged) }() // does nothing if it was moved into place
	mode := fs.FileMode(0o644)
	if fi, err := folder.Lstat(name); err == nil {
		mode = fi.Mode()
	}
	err = writeStaged(f.vol, own, folder, bytes.NewReader(next), mode)
	switch {
	case err != nil:
	case old == nil:
		err = f.vol.RenameNew(own, Staged, folder, name)
	default:
		err = f.replace(own, folder, name, path, reason, old, next)
	}
	if err != nil {
		return false, safe.WriteError(err, "write %s", path)
	}
	return true, safe.WriteError(f.vol.SyncDir(folder), "write %s", path)
}

// readExisting returns the content of a file, or nil if it or its directory does not exist.
func readExisting(cur *safe.Cursor, dir, name string, limit int64) ([]byte, error) {
	folder, err := cur.At(dir)
	if err == nil {
		var b []byte
		if b, err = folder.ReadFile(name, limit); err == nil {
			return b, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// replace exchanges the file Staged in own, whose content is next, with the one in folder, which must still be old.
func (f *Files) replace(own, folder *safe.Folder, name, path, reason string, old, next []byte) error {
	if reason != "" {
		if err := f.save(folder, name, path, reason); err != nil {
			return err
		}
	}
	if err := f.exchange(own, folder, name); err != nil {
		return err
	}
	if err := checkContent(own, old); err != nil {
		err = errors.Join(err, f.exchange(own, folder, name))
		return errors.Join(err, f.saveForeign(own, path, func() error { return checkContent(own, next) }))
	}
	return nil
}

// errForeign means that a file does not have the content that the agent knows.
var errForeign = errors.New("the gateway wrote it at the same time; the agent tries again")

// checkContent returns errForeign if the file Staged in own does not have the content want.
func checkContent(own *safe.Folder, want []byte) error {
	fi, err := own.Lstat(Staged)
	if err != nil {
		return err
	}
	if fi.Size() != int64(len(want)) {
		return errForeign
	}
	b, err := own.ReadFile(Staged, fi.Size())
	if err == nil && !bytes.Equal(b, want) {
		err = errForeign
	}
	return err
}

// save saves the file at a name in lost+found. path is the path that lost+found records for it.
func (f *Files) save(in *safe.Folder, name, path, reason string) error {
	saver := f.lost.NewSaver(f.lost.NewName(plan.ID{}), plan.ID{})
	if err := saver.Save(in, name, path, reason); err != nil {
		return err
	}
	return saver.Sync()
}

// saveForeign saves the file Staged in own after an exchange back, or one that failed, unless checkOwn returns nil, because the file is the
// agent's: the gateway may have written it at the last moment, and Staged will be removed.
func (f *Files) saveForeign(own *safe.Folder, path string, checkOwn func() error) error {
	if err := checkOwn(); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := f.save(own, Staged, path, "written by the gateway when the agent wrote it")
	if err != nil {
		err = errors.Join(err, f.vol.SetAside(own, Staged, err))
	}
	return err
}

// RemoveOwn removes a file that Edit made, durably, and the directory that it leaves empty. A missing file is not an error.
func (f *Files) RemoveOwn(path string) error {
	return f.exclusive(func() error {
		if err := f.checkNotOwned(path); err != nil {
			return err
		}
		cur := safe.Cursor{Top: f.top}
		defer cur.Reset()
		dir, name := safe.Split(path)
		folder, err := cur.At(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		err = f.vol.Remove(folder, name)
		if err == nil {
			err = f.vol.SyncDir(folder)
		}
		if err != nil {
			return safe.WriteError(err, "remove %s", path)
		}
		above, last := safe.Split(dir)
		parent, err := cur.At(above)
		if err != nil {
			return err
		}
		if err := f.vol.Rmdir(parent, last); err != nil && !safe.IsNotEmpty(err) && !errors.Is(err, fs.ErrNotExist) {
			return safe.WriteError(err, "remove %s", dir)
		}
		return nil
	})
}

// Folders returns the names of the directories in a directory of the gateway, at most limit of them. A missing directory has none.
func (f *Files) Folders(path string, limit int) ([]string, error) {
	cur := safe.Cursor{Top: f.top}
	defer cur.Reset()
	folder, err := cur.At(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := folder.Entries()
	var names []string
	for _, e := range list {
		if e.IsDir() && len(names) < limit {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// ErrUnsaved means that a restore would destroy a file that git does not have.
var ErrUnsaved = errors.New("the current file is not in git and would be lost")

// Staged is the name in .stoker of a file until it moves to its path.
const Staged = "restore.new"

// RestoreLost puts an entry of lost+found back at its old path. To the agent this looks like a change by a user of the gateway:
// the next comparison reports it. RestoreLost does not take the agent's lock, so it may run beside an agent, and it works on a Dir that
// was opened with ReadOnly. It fails while another process changes a single file.
//
// RestoreLost replaces an existing file only if git has it according to the manifest; otherwise it returns ErrUnsaved and
// changes nothing. The entry stays in lost+found.
func (f *Files) RestoreLost(l lostfound.Entry) error {
	if err := safe.CheckPath(l.Path); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if resource.NeverTouch(l.Path) {
		return fmt.Errorf("restore %s: the agent never writes this path", l.Path)
	}
	from, saved, err := f.lost.Open(l)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // opened for reading
	return f.alone(func() error { return f.restore(l, from, saved.Mode()) })
}

// restore writes the content of from to the old path of an entry of lost+found.
func (f *Files) restore(l lostfound.Entry, from io.Reader, mode fs.FileMode) error {
	cur := safe.Cursor{Top: f.top}
	defer cur.Reset()
	dir, name := safe.Split(l.Path)
	folder, err := makeParents(f.vol, &cur, dir)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	own, done, err := onMount(f.own, &cur, folder)
	if err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	defer done()
	if err := f.vol.Vacate(own, Staged); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	defer func() { _ = f.vol.Remove(own, Staged) }() // does nothing if it was moved into place
	if err := writeStaged(f.vol, own, folder, from, mode); err != nil {
		return safe.WriteError(err, "restore %s", l.Path)
	}
	if err := f.moveTo(own, folder, name, l.Path); err != nil {
		return fmt.Errorf("restore %s: %w", l.Path, err)
	}
	return f.vol.SyncDir(folder)
}

// onMount returns the .stoker folder on the mount of the directory folder, because a rename cannot cross mounts. folder must be the
// directory that cur opened last. On the mount of the data directory, this is agent. On another one, onMount creates a missing .stoker, and
// done closes it, and removes it if it is empty.
func onMount(agent *safe.AgentFolder, cur *safe.Cursor, folder *safe.Folder) (own *safe.Folder, done func(), err error) {
	area, err := safe.AreaOf(cur, folder)
	if err != nil {
		return nil, nil, err
	}
	if area == "" { // the data directory
		return agent.Folder, func() {}, nil
	}
	top := cur.Chain[slices.IndexFunc(cur.Chain, func(folder *safe.Folder) bool { return folder.Path == area })]
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
	folder, err := cur.At(dir)
	if dir == "" || !errors.Is(err, fs.ErrNotExist) {
		return folder, err
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
	if folder, err = cur.At(dir); err == nil {
		err = vol.SetDirAttrs(folder, like, 0o755)
	}
	return folder, err
}

// writeStaged writes the bytes of from to Staged in own, with mode and the owner of folder, the target directory.
func writeStaged(vol *safe.Volume, own, folder *safe.Folder, from io.Reader, mode fs.FileMode) error {
	like, err := folder.Stat()
	if err != nil {
		return err
	}
	f, err := vol.Create(own, Staged, 0o600)
	if err != nil {
		return err
	}
	path := own.Join(Staged)
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

// moveTo moves the file Staged in own to its path, the name in folder. It replaces an existing file only if git has it, which is checked twice:
// before the exchange, and again for the file that the exchange moved to own, because the gateway may have written in
// between. If the second check fails, the files are exchanged back.
func (f *Files) moveTo(own, folder *safe.Folder, name, path string) error {
	err := f.vol.RenameNew(own, Staged, folder, name)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	rec, owned, err := f.manifest().Get(path)
	if err != nil {
		return err
	}
	// check returns nil if the file at a name has one of the contents.
	check := func(in *safe.Folder, name string, want ...plan.ID) error {
		id, err := in.Hash(context.Background(), name, make([]byte, 64<<10), f.maxBlob)
		if err == nil && (id.IsZero() || !slices.Contains(want, id)) {
			err = errForeign
		}
		return err
	}
	// checkSaved returns nil if the file at a name has the content that the manifest recorded for path.
	checkSaved := func(in *safe.Folder, name string) error {
		if !owned {
			return ErrUnsaved
		}
		err := check(in, name, rec.Have, rec.Want)
		if errors.Is(err, errForeign) {
			err = ErrUnsaved
		}
		return err
	}
	if err := checkSaved(folder, name); err != nil {
		return err
	}
	restored, err := own.Hash(context.Background(), Staged, make([]byte, 64<<10), f.maxBlob)
	if err != nil {
		return err
	}
	if err := f.exchange(own, folder, name); err != nil {
		return err
	}
	if err := checkSaved(own, Staged); err != nil { // the gateway wrote between the first check and the exchange
		err = errors.Join(err, f.exchange(own, folder, name))
		return errors.Join(err, f.saveForeign(own, path, func() error { return check(own, Staged, restored) }))
	}
	return nil
}
