package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// fileAttrs are the owner and the mode that a file gets.
type fileAttrs struct {
	owner safe.Attrs
	perm  fs.FileMode
}

// attributes has the fileAttrs of each change. It stores equal ones once: there are few, and a first sync has a hundred thousand changes.
type attributes struct {
	kinds []fileAttrs
	known map[fileAttrs]uint32 // → index in kinds
	of    []uint32
}

func (p *attributes) at(i int) fileAttrs { return p.kinds[p.of[i]] }

func (p *attributes) put(i int, x fileAttrs) {
	x.owner = safe.Attrs{Known: x.owner.Known, UID: x.owner.UID, GID: x.owner.GID}
	k, ok := p.known[x]
	if !ok {
		k = uint32(len(p.kinds))
		p.kinds, p.known[x] = append(p.kinds, x), k
	}
	p.of[i] = k
}

// layout determines where the changes of a run are staged, and the order of the steps.
type layout struct {
	r      *run
	inWay  map[int]bool   // removes that must come before the writes
	byPath map[string]int // path → index in r.Dirs
	// dir is the directory that enter was called with last. The rest describes it.
	dir   string
	fi    fs.FileInfo
	area  int
	known bool
}

// layOut determines where each change is staged, which directories to make or remove, and the order of the steps:
//
//  1. Remove what is in the way of a write.
//  2. Make directories and files. A gateway reads a folder by its resource.json or project.json, so these come last.
//  3. Remove the other files. Here resource.json and project.json come first.
//  4. Remove directories that are empty then.
func (r stager) layOut() (*attributes, error) {
	p := &layout{r: r.run, inWay: map[int]bool{}, byPath: map[string]int{}, area: -1}
	at := &attributes{known: map[fileAttrs]uint32{}, of: make([]uint32, len(r.Changes))}
	for i := range r.Changes {
		c := &r.Changes[i]
		if !format.Moves(c.Op) {
			continue
		}
		if err := p.parents(i); err != nil {
			return nil, err
		}
		if err := p.readable(c.Path); err != nil {
			return nil, err
		}
		if format.Writes(c.Op) {
			x, err := p.target(i)
			if err != nil {
				return nil, err
			}
			at.put(i, x)
		}
	}
	p.order()
	return at, nil
}

// parents determines the area of a change and the directories to make for it.
func (p *layout) parents(i int) error {
	r, c := p.r, &p.r.Changes[i]
	dir, _ := safe.Split(c.Path)
	n, err := r.cur.At(dir)
	if safe.NotThere(err) {
		n = r.cur.Chain[len(r.cur.Chain)-1] // as far as the path exists
	} else if err != nil {
		return safe.WriteError(err, "open the parents of %s", c.Path)
	}
	if b, ok := errors.AsType[*safe.BlockedError](err); ok && format.Writes(c.Op) {
		k := r.Find(b.Path)
		if k < 0 || r.Changes[k].Op != plan.Delete {
			return blocked(c.Path, b)
		}
		p.inWay[k] = true
	}
	if err := p.enter(n); err != nil {
		return err
	}
	r.Slots[i].Area = uint16(p.area) // less than format.MaxAreas
	if format.Writes(c.Op) {
		p.addDirs(n.Path, dir)
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

// enter makes n the directory whose owner and area the following files get.
func (p *layout) enter(n *safe.Folder) error {
	if p.known && p.dir == n.Path {
		return nil
	}
	fi, err := n.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", n.Path, err)
	}
	if p.area, err = p.r.areaOf(n); err != nil {
		return err
	}
	if err := safe.MayWrite(n); err != nil {
		return safe.WriteError(err, "write to directory %q", n.Path)
	}
	p.dir, p.fi, p.known = n.Path, fi, true
	return nil
}

// areaOf returns the area of a directory: the top of the mount it is in.
func (r *run) areaOf(n *safe.Folder) (int, error) {
	here, err := safe.MountOf(n)
	if err != nil {
		return 0, fmt.Errorf("find the mount of %s: %w", n.Path, err)
	}
	top := ""
	for k := len(r.cur.Chain) - 1; k >= 0; k-- {
		m, err := safe.MountOf(r.cur.Chain[k])
		if err != nil {
			return 0, fmt.Errorf("find the mount of %s: %w", r.cur.Chain[k].Path, err)
		}
		if m != here {
			break
		}
		top = r.cur.Chain[k].Path
	}
	if i := slices.Index(r.Areas, top); i >= 0 {
		return i, nil
	}
	if strings.HasPrefix(top, "projects/") {
		return 0, failure.New(v1alpha1.ReasonUnsafePath, "%s is a mount inside a project, and the agent cannot stage files there; mount all of projects, or all of the data directory", top)
	}
	if len(r.Areas) == format.MaxAreas {
		return 0, failure.New(v1alpha1.ReasonLimitExceeded, "the data directory has more than %d mounts", format.MaxAreas)
	}
	r.Areas = append(r.Areas, top)
	return len(r.Areas) - 1, nil
}

// addDirs records the directories to make between an existing one and dir.
func (p *layout) addDirs(exists, dir string) {
	for len(dir) > len(exists) {
		if _, ok := p.byPath[dir]; ok {
			return
		}
		p.byPath[dir] = len(p.r.Dirs)
		p.r.Dirs = append(p.r.Dirs, format.Directory{Path: dir, Made: true, Perm: 0o755})
		dir, _ = safe.Split(dir)
	}
}

// readable refuses to replace or remove an unreadable file: it could not be compared after it has moved, and a new file
// with its mode would be just as unreadable.
func (p *layout) readable(path string) error {
	dir, name := safe.Split(path)
	if p.dir != dir {
		return nil
	}
	n, err := p.r.cur.At(dir)
	if err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	fi, err := n.Root.Lstat(name)
	if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o444 == 0o444 {
		return nil //nolint:nilerr // a file that is not there need not be readable
	}
	f, _, err := n.File(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) {
		return safe.WriteError(err, "read %s", path)
	}
	if err != nil {
		return nil //nolint:nilerr // it changes while we look; the step finds what it is
	}
	return f.Close()
}

// target determines owner and mode of a write from what it replaces.
func (p *layout) target(i int) (fileAttrs, error) {
	r, c := p.r, &p.r.Changes[i]
	at := fileAttrs{owner: safe.AttrsOf(p.fi), perm: 0o644}
	dir, name := safe.Split(c.Path)
	if p.dir == dir {
		n, err := r.cur.At(dir)
		if err != nil {
			return at, fmt.Errorf("stat %s: %w", c.Path, err)
		}
		switch fi, err := n.Root.Lstat(name); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return at, fmt.Errorf("stat %s: %w", c.Path, err)
		case fi.IsDir():
			p.removeFirst(c.Path)
		case fi.Mode().IsRegular():
			at.owner, at.perm = safe.AttrsOf(fi), fi.Mode().Perm()
		}
	}
	if c.Exec {
		at.perm |= at.perm & 0o444 >> 2
	} else {
		at.perm &^= 0o111
	}
	return at, nil
}

// removeFirst marks the removes in a directory that a file replaces.
func (p *layout) removeFirst(dir string) {
	from, to := p.changesIn(dir)
	for k := from; k < to; k++ {
		if p.r.Changes[k].Op == plan.Delete {
			p.inWay[k] = true
		}
	}
}

// changesIn returns the range of the changes in a directory, at any depth.
func (p *layout) changesIn(dir string) (from, to int) {
	l := p.r.Changes
	from = sort.Search(len(l), func(k int) bool { return l[k].Path >= dir+"/" })
	to = from + sort.Search(len(l)-from, func(k int) bool { return !strings.HasPrefix(l[from+k].Path, dir+"/") })
	return from, to
}

// needed reports whether a file is written in a directory, at any depth.
func (p *layout) needed(dir string) bool {
	from, to := p.changesIn(dir)
	return slices.ContainsFunc(p.r.Changes[from:to], func(c plan.Change) bool { return format.Writes(c.Op) })
}

// order creates the steps.
func (p *layout) order() {
	r := p.r
	moving := 0
	for i := range r.Changes {
		if format.Moves(r.Changes[i].Op) {
			moving++
		}
	}
	r.Tasks = make([]format.Task, 0, moving+len(r.Dirs))
	add := func(want func(i int) bool, kind format.TaskKind) {
		for _, index := range []bool{kind == format.TaskRemove, kind != format.TaskRemove} {
			for i := range r.Changes {
				if want(i) && isIndexFile(r.Changes[i].Path) == index {
					if kind == format.TaskWrite {
						p.mkdirs(r.Changes[i].Path)
					}
					r.Tasks = append(r.Tasks, format.Task{Kind: kind, At: i})
				}
			}
		}
	}
	removes := func(inWay bool) func(int) bool {
		return func(i int) bool { return r.Changes[i].Op == plan.Delete && p.inWay[i] == inWay }
	}
	add(removes(true), format.TaskRemove)
	p.rmdirs(true)
	add(func(i int) bool { return format.Writes(r.Changes[i].Op) }, format.TaskWrite)
	add(removes(false), format.TaskRemove)
	p.rmdirs(false)
}

// isIndexFile reports whether a gateway reads a folder by this file.
func isIndexFile(p string) bool {
	switch path.Base(p) {
	case "resource.json", "project.json":
		return true
	}
	return false
}

// mkdirs adds the steps that make the missing parents of a path, outermost first.
func (p *layout) mkdirs(path string) {
	var steps []format.Task
	for dir, _ := safe.Split(path); dir != ""; dir, _ = safe.Split(dir) {
		i, ok := p.byPath[dir]
		if !ok {
			break
		}
		delete(p.byPath, dir)
		steps = append(steps, format.Task{Kind: format.TaskMkdir, At: i})
	}
	slices.Reverse(steps)
	p.r.Tasks = append(p.r.Tasks, steps...)
}

// rmdirs adds the steps that remove our directories that may be empty after the removes, innermost first. Before the
// writes it keeps directories that a write needs, because nothing would make them again.
func (p *layout) rmdirs(inWay bool) {
	r := p.r
	seen := map[string]bool{}
	var dirs []string
	for i := range r.Changes {
		if r.Changes[i].Op != plan.Delete || p.inWay[i] != inWay {
			continue
		}
		for dir, _ := safe.Split(r.Changes[i].Path); dir != "" && !seen[dir]; dir, _ = safe.Split(dir) {
			seen[dir] = true
			if inWay && p.needed(dir) {
				break // so are all directories above it
			}
			// An unreadable manifest fails when it is rewritten; then the moves are rolled back.
			if rec, ok, err := r.d.man.Lookup(dir); err == nil && ok && rec.Dir {
				dirs = append(dirs, dir)
			}
		}
	}
	slices.Sort(dirs)
	slices.Reverse(dirs)
	for _, dir := range dirs {
		r.Tasks = append(r.Tasks, format.Task{Kind: format.TaskRmdir, At: len(r.Dirs)})
		r.Dirs = append(r.Dirs, format.Directory{Path: dir, Perm: 0o755})
	}
}
