package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// fileAttrs are the owner and the mode that a file gets. The struct is small, because a first sync has one for each
// of 100,000 changes.
type fileAttrs struct {
	uid, gid uint32
	hasOwner bool // uid and gid are known
	perm     fs.FileMode
}

func (a *fileAttrs) setOwner(of fs.FileInfo) {
	owner := safe.AttrsOf(of)
	a.uid, a.gid, a.hasOwner = owner.UID, owner.GID, owner.Known
}

func (a *fileAttrs) owner() safe.Attrs {
	return safe.Attrs{Known: a.hasOwner, UID: a.uid, GID: a.gid}
}

// layout determines where the changes of a run are staged, and the order of the steps.
type layout struct {
	r     *run
	early map[int]bool   // deletes that must come before the writes
	made  map[string]int // directories to make: path → index in r.Dirs
	// dir is the directory that enter was called with last, if entered is true. fi and area belong to it.
	dir     string
	fi      fs.FileInfo
	area    int
	entered bool
}

// layOut determines where each change is staged, which directories to make or remove, and the order of the steps:
//
//  1. Remove what is in the way of a write.
//  2. Make directories and files. A gateway reads a folder by its resource.json or project.json, so these come last.
//  3. Remove the other files. Here resource.json and project.json come first.
//  4. Remove the directories that the agent created and that are empty then.
//
// It returns the attributes of the files to write, by the index of the change.
func (r stager) layOut() ([]fileAttrs, error) {
	p := &layout{r: r.run, early: map[int]bool{}, made: map[string]int{}, area: -1}
	attrs := make([]fileAttrs, len(r.run.Changes))
	for i := range r.run.Changes {
		c := &r.run.Changes[i]
		if !format.Moves(c.Op) {
			continue
		}
		if err := p.parents(i); err != nil {
			return nil, err
		}
		folder, fi, err := p.lstat(c.Path)
		if err == nil && fi != nil {
			err = checkReadable(folder, c.Path, fi)
		}
		if err != nil {
			return nil, err
		}
		if format.Writes(c.Op) {
			p.setAttrs(&attrs[i], c, fi)
		}
	}
	p.order()
	return attrs, nil
}

// parents determines the area of a change and the directories to make for it.
func (p *layout) parents(i int) error {
	r, c := p.r, &p.r.Changes[i]
	dir, _ := safe.Split(c.Path)
	folder, err := r.cur.Look(dir)
	if safe.NotThere(err) {
		folder = r.cur.Chain[len(r.cur.Chain)-1] // as far as the path exists
	} else if err != nil {
		return safe.WriteError(err, "open the parents of %s", c.Path)
	}
	if b, ok := errors.AsType[*safe.BlockedError](err); ok && format.Writes(c.Op) {
		k := r.Find(b.Path)
		if k < 0 || r.Changes[k].Op != plan.Delete {
			return blocked(c.Path, b)
		}
		p.early[k] = true
	}
	if err := p.enter(folder); err != nil {
		return err
	}
	r.Slots[i].Area = uint16(p.area) // less than format.MaxAreas
	if format.Writes(c.Op) {
		p.addDirs(folder.Path, dir)
	}
	return nil
}

// blocked returns the error for a write below something that is not a directory and that the plan does not remove.
func blocked(path string, b *safe.BlockedError) error {
	if b.Kind == plan.Link {
		return failure.New(v1alpha1.ReasonUnsafePath, "cannot write %s: %w; the agent never follows links: replace the link with a directory", path, b)
	}
	return failure.New(v1alpha1.ReasonPathCollision, "cannot write %s: %w; move that file away", path, b)
}

// enter makes folder the directory from which the next change gets its area and, if it makes a new file, the owner. r.cur must have
// opened folder last. enter checks that the agent may write there.
func (p *layout) enter(folder *safe.Folder) error {
	if p.entered && p.dir == folder.Path {
		return nil
	}
	fi, err := folder.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", folder.Path, err)
	}
	if p.area, err = p.areaIndex(folder); err != nil {
		return err
	}
	if err := safe.CheckWritable(folder); err != nil {
		return safe.WriteError(err, "write to directory %q", folder.Path)
	}
	p.dir, p.fi, p.entered = folder.Path, fi, true
	return nil
}

// areaIndex returns the index of the area of folder, the top directory of its mount, in r.Areas, and adds a new area.
func (p *layout) areaIndex(folder *safe.Folder) (int, error) {
	r := p.r
	area, err := safe.AreaOf(&r.cur, folder)
	if err != nil {
		return 0, err
	}
	if i := slices.Index(r.Areas, area); i >= 0 {
		return i, nil
	}
	if len(r.Areas) == format.MaxAreas {
		return 0, failure.New(v1alpha1.ReasonLimitExceeded, "the data directory has more than %d mounts", format.MaxAreas)
	}
	r.Areas = append(r.Areas, area)
	return len(r.Areas) - 1, nil
}

// addDirs records the directories to make between an existing one and dir.
func (p *layout) addDirs(exists, dir string) {
	for len(dir) > len(exists) {
		if _, ok := p.made[dir]; ok {
			return
		}
		p.made[dir] = len(p.r.Dirs)
		p.r.Dirs = append(p.r.Dirs, format.Directory{Path: dir, Create: true, Perm: 0o755})
		dir, _ = safe.Split(dir)
	}
}

// lstat describes what is at the path of a change, and opens its directory. fi is nil if nothing is there, and so is folder if there
// is no directory.
func (p *layout) lstat(path string) (folder *safe.Folder, fi fs.FileInfo, err error) {
	dir, name := safe.Split(path)
	if p.dir != dir { // the directory does not exist
		return nil, nil, nil
	}
	if folder, err = p.r.cur.At(dir); err != nil { // the directory existed a moment ago
		return nil, nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if fi, err = folder.Lstat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("stat %s: %w", path, err)
	}
	return folder, fi, nil
}

// checkReadable refuses to replace or remove an unreadable file: it could not be compared after it has moved, and a new file
// with its mode would be just as unreadable.
func checkReadable(folder *safe.Folder, path string, fi fs.FileInfo) error {
	if !fi.Mode().IsRegular() || fi.Mode()&0o444 == 0o444 {
		return nil
	}
	f, _, err := folder.File(fi.Name(), os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) {
		return safe.WriteError(err, "read %s", path)
	}
	if err != nil {
		return nil //nolint:nilerr // the file changes meanwhile; the step finds what it is
	}
	return f.Close()
}

// setAttrs sets the owner and the mode for a write: those of the file fi that it replaces, or else the owner of the directory and
// mode 0644. The executable bit is that of the change.
func (p *layout) setAttrs(attrs *fileAttrs, c *plan.Change, fi fs.FileInfo) {
	attrs.setOwner(p.fi)
	attrs.perm = 0o644
	switch {
	case fi == nil:
	case fi.IsDir():
		p.removeEarly(c.Path)
	case fi.Mode().IsRegular():
		attrs.setOwner(fi)
		attrs.perm = fi.Mode().Perm()
	}
	if c.Exec {
		attrs.perm |= (attrs.perm & 0o444) >> 2 // who may read may execute
	} else {
		attrs.perm &^= 0o111
	}
}

// removeEarly makes the deletes in a directory that a file replaces come before the writes.
func (p *layout) removeEarly(dir string) {
	from, to := p.r.In(dir)
	for k := from; k < to; k++ {
		if p.r.Changes[k].Op == plan.Delete {
			p.early[k] = true
		}
	}
}

// hasWrite reports whether a file is written in a directory, at any depth.
func (p *layout) hasWrite(dir string) bool {
	from, to := p.r.In(dir)
	return slices.ContainsFunc(p.r.Changes[from:to], func(c plan.Change) bool { return format.Writes(c.Op) })
}

// order creates the steps.
func (p *layout) order() {
	r := p.r
	r.Steps = make([]format.Step, 0, len(r.Changes)+len(r.Dirs))
	add := func(kind format.StepKind, indexFiles bool, selects func(i int) bool) {
		for i := range r.Changes {
			if isIndexFile(r.Changes[i].Path) != indexFiles || !selects(i) {
				continue
			}
			if kind == format.StepWrite {
				p.mkdirs(r.Changes[i].Path)
			}
			r.Steps = append(r.Steps, format.Step{Kind: kind, Index: int32(i)})
		}
	}
	remove := func(early bool) {
		selects := func(i int) bool { return r.Changes[i].Op == plan.Delete && p.early[i] == early }
		add(format.StepRemove, true, selects)
		add(format.StepRemove, false, selects)
		p.rmdirs(early)
	}
	writes := func(i int) bool { return format.Writes(r.Changes[i].Op) }
	remove(true)
	add(format.StepWrite, false, writes)
	add(format.StepWrite, true, writes)
	remove(false)
}

// isIndexFile reports whether a path is that of a resource.json or project.json, by which a gateway reads a folder.
func isIndexFile(p string) bool {
	base := path.Base(p)
	return base == resource.File || base == "project.json"
}

// mkdirs adds the steps that make the missing parents of a path, outermost first.
func (p *layout) mkdirs(path string) {
	var steps []format.Step
	for dir, _ := safe.Split(path); dir != ""; dir, _ = safe.Split(dir) {
		i, ok := p.made[dir]
		if !ok {
			break
		}
		delete(p.made, dir)
		steps = append(steps, format.Step{Kind: format.StepMkdir, Index: int32(i)})
	}
	slices.Reverse(steps)
	p.r.Steps = append(p.r.Steps, steps...)
}

// rmdirs adds the steps that remove our directories that may be empty after the early or the other deletes, innermost first.
// After the early ones it keeps directories that a write needs, because no later step would make them again.
func (p *layout) rmdirs(early bool) {
	r := p.r
	seen := map[string]bool{}
	var dirs []string
	for i := range r.Changes {
		if r.Changes[i].Op != plan.Delete || p.early[i] != early {
			continue
		}
		for dir, _ := safe.Split(r.Changes[i].Path); dir != "" && !seen[dir]; dir, _ = safe.Split(dir) {
			seen[dir] = true
			if early && p.hasWrite(dir) {
				break // the directories above it are needed, too
			}
			// An unreadable manifest fails when it is rewritten; then the moves are rolled back.
			if rec, ok, err := r.d.manifest().Lookup(dir); err == nil && ok && rec.Dir {
				dirs = append(dirs, dir)
			}
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Backward(dirs) {
		perm := fs.FileMode(0o755) // for a rollback
		if fi, err := r.cur.Lstat(dir); err == nil {
			perm = fi.Mode().Perm()
		}
		r.Steps = append(r.Steps, format.Step{Kind: format.StepRmdir, Index: int32(len(r.Dirs))})
		r.Dirs = append(r.Dirs, format.Directory{Path: dir, Perm: uint32(perm)})
	}
}
