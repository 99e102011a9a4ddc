package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// runName returns a name that no folder in lost+found has.
func (d *Dir) runName(commit plan.ID) string {
	base := d.o.Now().UTC().Format(runTime) + "-" + commit.Short()
	lost, err := d.own.open(lostDir)
	if err != nil {
		return base // lost+found does not exist, or a later step reports why it cannot be opened
	}
	defer lost.close()
	name := base
	for i := 2; i < 10000; i++ {
		_, err := lost.root.Lstat(name)
		_, erru := lost.root.Lstat(name + undoSuffix)
		if err != nil && erru != nil {
			break
		}
		name = fmt.Sprintf("%s-%d", base, i)
	}
	return name
}

// fits refuses a run whose conflicts alone exceed lost+found, because pruning would remove what it just saved.
func (r *run) fits() error {
	var sum int64
	for i := range r.changes {
		c := &r.changes[i]
		if !c.Conflict || !moves(c.Op) {
			continue
		}
		if c.Found.Kind != plan.Dir {
			sum += c.Found.Size
			continue
		}
		for f, err := range r.d.Walk(c.Path) {
			if err != nil {
				return err
			}
			sum += f.Stat.Size
		}
	}
	if limit := r.d.o.LostFoundMax; sum > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the gateway's own versions of what this sync replaces have %d bytes, and lost+found may hold %d; raise the limit, or commit or remove those files first", sum, limit)
	}
	return nil
}

// save puts what the run displaced, and git does not have, into lost+found. It also stays in staging, so that the run can
// be rolled back.
func (r *run) save() error {
	if r.redo {
		if err := r.dropSaved(); err != nil {
			return err
		}
	}
	for _, t := range r.tasks {
		if t.kind != taskWrite && t.kind != taskRemove {
			continue
		}
		name, err := r.displaced(t.at)
		if err != nil {
			return err
		}
		if err := r.saveIfLost(t.at, name); err != nil {
			return err
		}
	}
	if err := r.writeIndex(); err != nil {
		return err
	}
	return r.syncSaved()
}

// why returns the reason to keep something displaced, or "" if it has no bytes, or is what the plan saw and knew to be
// in git.
func (r *run) why(at int, name string) (string, error) {
	c, stg := &r.changes[at], r.stagingOf(at)
	fi, err := stg.root.Lstat(name)
	if err != nil {
		return "", err
	}
	switch kindOf(fi) {
	case plan.Dir:
		n, err := stg.open(name)
		if err != nil {
			return "", err
		}
		defer n.close()
		first, err := firstFile(n)
		if err != nil || first == "" {
			return "", err
		}
		return "a directory of the gateway's where git has a file", nil
	case plan.File:
		id, err := r.id(stg, name)
		switch {
		case err != nil:
			return "", err
		case writes(c.Op) && id == c.ID:
			return "", nil
		case c.Conflict && c.Op == plan.Delete:
			return "not in git", nil
		case c.Conflict:
			return "changed on the gateway, and git has another version", nil
		case c.Found.Kind == plan.File && id == c.FoundID && !id.IsZero():
			return "", nil
		}
		return "written by the gateway during the sync", nil
	default:
		return "neither file nor directory", nil
	}
}

func firstFile(n *node) (string, error) {
	first := ""
	var failed error
	walk(n, 0, statOf, func(f plan.Found, err error) bool {
		first, failed = f.Path, err
		return false
	})
	return first, failed
}

// occupied returns the error for a file in place of a directory with files.
func occupied(path, first string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, where the gateway has a directory with files of its own (%s); move them away", path, first)
}

// saveTree gives a file, or all files below a directory, a second name in the run's folder, or copies them if it cannot
// link.
func (r *run) saveTree(from *node, name, as, why string) error {
	if strings.Count(as, "/") > maxDepth {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is more than %d directories deep", as, maxDepth)
	}
	fi, err := from.root.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return r.saveFile(from, name, as, why, fi)
	}
	n, err := from.open(name)
	if err != nil {
		return err
	}
	defer n.close()
	list, err := n.entries()
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := r.saveTree(n, e.Name(), as+"/"+e.Name(), why); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) saveFile(from *node, name, as, why string, fi fs.FileInfo) error {
	dir, base := split(as)
	n, err := r.lostFolder(dir)
	if err != nil {
		return writing(err, "save %s to lost+found", as)
	}
	defer n.close()
	to := base
	for i := 1; ; i++ {
		err = r.d.link(from, name, n, to)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			err = r.copyFile(from, name, n, to, fi)
		}
		if !errors.Is(err, fs.ErrExist) || i == swaps {
			break
		}
		if there, lerr := n.root.Lstat(to); lerr == nil && os.SameFile(there, fi) {
			err = nil // saved before a crash
			break
		}
		to = fmt.Sprintf("%s.%d", base, i)
	}
	if err != nil {
		return writing(err, "save %s to lost+found", as)
	}
	r.note(as, path.Join(r.name, dir, to), why, fi.Size())
	return nil
}

func (r *run) note(as, file, why string, size int64) {
	l := Lost{When: r.d.o.Now().UTC(), Path: as, Size: size, Why: why, Commit: r.header.Commit.String(), File: file}
	if !utf8.ValidString(as) {
		l.RawPath = []byte(as)
	}
	r.saved = append(r.saved, l)
	r.d.log.Warn("saved to lost+found", "path", as, "reason", why, "bytes", size)
}

// copyFile copies what cannot be linked: to another mount, or on a file system without hard links. Anything but files
// and symbolic links has no bytes to keep.
func (r *run) copyFile(from *node, name string, to *node, as string, fi fs.FileInfo) error {
	switch kindOf(fi) {
	case plan.File:
	case plan.Link:
		target, err := from.root.Readlink(name)
		if err != nil {
			return err
		}
		return r.d.effect(effect{op: "create", path: to.join(as)}, func() error { return to.root.Symlink(target, as) })
	default:
		return nil
	}
	in, _, err := from.file(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	out, err := r.d.create(to, as, 0o600)
	if err != nil {
		return err
	}
	err = r.d.fill(to.join(as), func() error {
		_, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, r.buf)
		return err
	})
	if err == nil {
		// Keep the mode like a link does, for a restore; only the bytes are essential, because some file systems have
		// no modes.
		_, _ = r.d.give(out, to.join(as), attrs{}, fi.Mode())
	}
	if err == nil {
		err = r.d.sync(out, to.join(as))
	}
	return errors.Join(err, out.Close())
}

// lostFolder opens a folder of the run in lost+found, and makes missing ones.
func (r *run) lostFolder(dir string) (*node, error) {
	n := r.d.own
	for name := range strings.SplitSeq(path.Join(lostDir, r.name, dir), "/") {
		child, err := n.open(name)
		if _, blocked := errors.AsType[*blockedError](err); blocked && n == r.d.own {
			if err = r.d.setAside(n, name, err); err == nil {
				err = fs.ErrNotExist
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err = r.d.mkdir(n, name, 0o700); err == nil {
				child, err = n.open(name)
			}
		}
		if n != r.d.own {
			n.close()
		}
		if err != nil {
			return nil, err
		}
		n = child
	}
	return n, nil
}

// dropSaved removes what this run has saved so far.
func (r *run) dropSaved() error {
	r.saved = nil
	return writing(r.d.dropLost(r.name), "clear lost+found")
}

// writeIndex writes the index of what was saved. It may be repeated after a crash.
func (r *run) writeIndex() error {
	if len(r.saved) == 0 {
		return nil
	}
	r.d.pruned, r.d.saved = time.Time{}, r.name // lost+found has grown: prune it again
	n, err := r.lostFolder("")
	if err != nil {
		return writing(err, "open lost+found")
	}
	n.close()
	lost, err := r.d.own.open(lostDir)
	if err != nil {
		return fmt.Errorf("open lost+found: %w", err)
	}
	defer lost.close()
	_, err = r.d.writeIn(lost, r.name+indexSuffix, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		for i := range r.saved {
			if err := enc.Encode(&r.saved[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// syncSaved makes the saved files durable.
func (r *run) syncSaved() error {
	if len(r.saved) == 0 {
		return nil
	}
	if err := r.d.syncFS(r.d.own); err == nil || !errors.Is(err, errors.ErrUnsupported) {
		return writing(err, "make lost+found durable")
	}
	return writing(r.d.syncDir(r.d.own), "make lost+found durable")
}
