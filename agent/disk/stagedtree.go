package disk

import (
	"errors"
	"io/fs"
	"syscall"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

// stagedTrees are the new directories of a large run. If selectTrees chooses a directory, it is staged whole, with everything that
// the run creates in it, and one rename brings it to its place. That spares a rename per file, and a staging folder with very many
// names.
//
// If something has the directory's name by then, the rename fails, and nothing is overwritten. Then the run makes the directory,
// unless it exists, and goes on with the directories in it in the same way. Their files move to their slots and from there to their
// places, like files that were not staged in a directory.
type stagedTrees struct {
	cur    safe.Cursor
	placed map[string]struct{}   // directories that this process renamed to their place
	owners map[int32]fs.FileInfo // the parent of a directory that is staged whole, by its index in Dirs, while files are staged
}

// isPlaced reports whether this process renamed a directory, or one above it, to its place.
func (t *stagedTrees) isPlaced(dir string) bool {
	for ; len(t.placed) > 0 && dir != ""; dir, _ = safe.Split(dir) {
		if _, ok := t.placed[dir]; ok {
			return true
		}
	}
	return false
}

// inTree returns the staging path of something in a directory that is staged whole. tree is as in format.Slot.
func (r *run) inTree(tree int32, area uint16, path string) string {
	staging := r.staging.In(r.Areas[area])
	return staging.Join(format.TreeName(tree-1)) + path[len(r.Dirs[tree-1].Path):]
}

// selectTrees chooses the directories to stage whole: the outermost new ones with a file to write, if new files inherit the same group
// in the staging folder as in their place, and no ACL.
func (r stager) selectTrees() error {
	if r.run.d.vol.NoExchange.Load() {
		return nil
	}
	made := map[string]bool{}
	for _, step := range r.run.Steps {
		if step.Kind != format.StepMkdir {
			continue
		}
		x := &r.run.Dirs[step.Index]
		made[x.Path] = true
		parent, _ := safe.Split(x.Path)
		if made[parent] {
			continue
		}
		folder, err := r.run.cur.At(parent)
		if safe.NotThere(err) { // removed since the layout was computed
			continue
		}
		if err != nil {
			return err
		}
		like, err := folder.Stat()
		if err != nil {
			return err
		}
		from, to := r.run.In(x.Path)
		for from < to && !format.Writes(r.run.Changes[from].Op) {
			from++
		}
		if from == to {
			continue
		}
		if x.Whole, err = safe.InheritAlike(folder, r.run.stagingOf(from)); err != nil {
			return err
		}
		if x.Whole {
			r.run.trees.owners[step.Index] = like
		}
	}
	return r.run.LinkTrees()
}

// slotFolder returns where the file of a write is staged.
func (w *writer) slotFolder(i int) (folder *safe.Folder, name string, err error) {
	s := &w.run.Slots[i]
	if s.Tree == 0 {
		return w.run.stagingOf(i), format.SlotName(i), nil
	}
	dir, name := safe.Split(w.run.inTree(s.Tree, s.Area, w.run.Changes[i].Path))
	folder, err = w.makeTree(dir, s.Tree)
	return folder, name, err
}

// makeTree opens a directory of a tree, and makes it if it is missing. Most directories are missing, so that makeTree does not
// look for them first.
func (w *writer) makeTree(dir string, tree int32) (folder *safe.Folder, err error) {
	if w.cur.Has(dir) {
		return w.cur.At(dir)
	}
	parent, name := safe.Split(dir)
	top := &w.run.Dirs[tree-1]
	isTop := parent == w.run.staging.In(w.run.Areas[top.Area]).Path
	if isTop {
		folder, err = w.cur.At(parent)
	} else {
		folder, err = w.makeTree(parent, tree)
	}
	if err != nil {
		return nil, err
	}
	w.making.Lock()
	defer w.making.Unlock()
	perm := fs.FileMode(top.Perm)
	if err := w.run.d.vol.Mkdir(folder, name, perm); errors.Is(err, fs.ErrExist) {
		return w.cur.At(dir)
	} else if err != nil {
		return nil, err
	}
	like := w.run.trees.owners[tree-1]
	if !isTop {
		if like, err = folder.Stat(); err != nil {
			return nil, err
		}
	}
	if folder, err = w.cur.At(dir); err != nil {
		return nil, err
	}
	return folder, w.run.d.vol.SetDirAttrs(folder, like, perm)
}

// stagedAt returns where the file of a change is in staging: in its slot, or in its tree. fi is nil if it is in neither.
func (r *run) stagedAt(i int) (folder *safe.Folder, name string, fi fs.FileInfo, err error) {
	folder, name = r.stagingOf(i), format.SlotName(i)
	fi, err = folder.Lstat(name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || r.Slots[i].Tree == 0 {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return folder, name, fi, err
	}
	tree, base, err := r.trees.cur.Parent(r.inTree(r.Slots[i].Tree, r.Slots[i].Area, r.Changes[i].Path))
	if safe.NotThere(err) {
		return folder, name, nil, nil
	}
	if err != nil {
		return nil, "", nil, err
	}
	if fi, err = tree.Lstat(base); safe.NotThere(err) {
		return folder, name, nil, nil
	}
	return tree, base, fi, err
}

// leaveTree moves the file of a write from its tree to its slot. It reports whether the file is in the slot; otherwise it moved with
// a directory.
func (r mover) leaveTree(i int) (bool, error) {
	dir, _ := safe.Split(r.run.Changes[i].Path)
	if !r.run.replayed && r.run.trees.isPlaced(dir) { // in a replay, the caller knows that it is in staging
		return false, nil
	}
	stg, slot := r.run.stagingOf(i), format.SlotName(i)
	folder, name, fi, err := r.run.stagedAt(i)
	if err == nil && fi == nil {
		err = &fs.PathError{Op: "rename", Path: stg.Join(slot), Err: fs.ErrNotExist}
	}
	if err != nil || folder == stg {
		return true, err
	}
	return true, r.run.d.vol.RenameNew(folder, name, stg, slot)
}

// placeTree renames a directory that is staged whole, or one in it, to its place. It reports whether nothing is left to do.
func (r mover) placeTree(x *format.Directory) (bool, error) {
	if r.run.trees.isPlaced(x.Path) {
		return true, nil
	}
	staged := r.run.inTree(x.Tree, x.Area, x.Path)
	from, base, err := r.run.trees.cur.Parent(staged)
	if safe.NotThere(err) && r.run.replayed { // the directory moved before the crash
		return false, nil
	}
	if err != nil {
		return false, err
	}
	to, name, err := r.openParent(x.Path)
	if err != nil {
		return false, err
	}
	err = r.run.d.vol.RenameNew(from, base, to, name)
	switch {
	case err == nil:
		r.run.trees.cur.Drop(staged)
		r.run.recordTouched(to)
		r.run.trees.placed[x.Path] = struct{}{}
		return true, nil
	case errors.Is(err, fs.ErrNotExist) && r.run.replayed:
		return false, nil
	case errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EXDEV):
		return false, nil // makeDir and the writes of its files go on from here
	}
	return false, err
}
