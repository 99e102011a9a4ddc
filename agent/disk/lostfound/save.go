package lostfound

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

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxCopies bounds the files of one path in a folder of lost+found.
const maxCopies = 100

// Saver gives the files that one run displaced a second name in lost+found. Saving the same files again after a crash is safe.
type Saver struct {
	to      *Folder
	name    string // of the run
	commit  plan.ID
	Entries []Entry // what was saved
	buf     []byte  // for copying
}

// Save gives a file, or all files below a directory, a second name in the run's folder, or copies them if it cannot
// link. It skips pipes, sockets and devices that it cannot link. as is the path that the file had. reason says why it is saved.
// The entries are durable after Sync.
func (s *Saver) Save(from *safe.Folder, name, as, reason string) error {
	if strings.Count(as, "/") > safe.MaxDepth {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is more than %d directories deep", as, safe.MaxDepth)
	}
	fi, err := from.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return s.saveFile(from, name, as, reason, fi)
	}
	folder, err := from.Open(name)
	if err != nil {
		return err
	}
	defer folder.Close()
	list, err := folder.Entries()
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := s.Save(folder, e.Name(), as+"/"+e.Name(), reason); err != nil {
			return err
		}
	}
	return nil
}

func (s *Saver) saveFile(from *safe.Folder, name, as, reason string, fi fs.FileInfo) error {
	dir, base := safe.Split(as)
	folder, err := s.makeFolder(dir)
	if err != nil {
		return safe.WriteError(err, "save %s to lost+found", as)
	}
	defer folder.Close()
	to := base
	for i := 1; ; i++ {
		err = s.to.vol.Link(from, name, folder, to)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			if kind := safe.KindOf(fi.Mode()); kind != plan.File && kind != plan.Link {
				s.to.log.Warn("not saved to lost+found", "path", as, "mode", fi.Mode().String(), "error", err)
				return nil // pipes, sockets and devices have no content to keep
			}
			err = s.copyFile(from, name, folder, to, fi)
		}
		if !errors.Is(err, fs.ErrExist) || i == maxCopies {
			break
		}
		if existing, lerr := folder.Lstat(to); lerr == nil && safe.SameFile(existing, fi) {
			err = nil // saved before a crash
			break
		}
		to = fmt.Sprintf("%s.%d", base, i)
	}
	if err != nil {
		return safe.WriteError(err, "save %s to lost+found", as)
	}
	s.record(as, path.Join(s.name, dir, to), reason, fi.Size())
	return nil
}

func (s *Saver) record(as, file, reason string, size int64) {
	l := Entry{When: s.to.vol.Now().UTC(), Path: as, Size: size, Reason: reason, Commit: s.commit.String(), File: file}
	if !utf8.ValidString(as) {
		l.RawPath = []byte(as)
	}
	s.Entries = append(s.Entries, l)
	s.to.log.Warn("saved to lost+found", "path", as, "reason", reason, "bytes", size)
}

// copyFile copies a regular file or a symbolic link that cannot be linked: to another mount, or on a file system without hard
// links.
func (s *Saver) copyFile(from *safe.Folder, name string, to *safe.Folder, as string, fi fs.FileInfo) error {
	if safe.KindOf(fi.Mode()) == plan.Link {
		target, err := from.Readlink(name)
		if err != nil {
			return err
		}
		return s.to.vol.Effect(safe.Effect{Op: "create", Path: to.Join(as)}, func() error { return to.Symlink(target, as) })
	}
	in, _, err := from.File(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	out, err := s.to.vol.Create(to, as, 0o600)
	if err != nil {
		return err
	}
	err = s.to.vol.Fill(to.Join(as), func() error { // the wrappers hide ReadFrom and WriteTo, so that the copy uses s.buf
		_, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, s.buf)
		return err
	})
	if err == nil {
		// Keep the mode like a link does, for a restore; only the bytes are essential, because some file systems have no modes.
		_, _ = s.to.vol.SetAttrs(out, to.Join(as), safe.Attrs{}, fi.Mode())
	}
	if err == nil {
		err = s.to.vol.Sync(out, to.Join(as))
	}
	return errors.Join(err, out.Close())
}

// makeFolder opens a folder of the run in lost+found, and makes missing ones.
func (s *Saver) makeFolder(dir string) (*safe.Folder, error) {
	folder, err := s.to.own.OpenOrMake(DirName)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(path.Join(s.name, dir), "/") {
		child, err := folder.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			if err = s.to.vol.Mkdir(folder, name, 0o700); err == nil {
				child, err = folder.Open(name)
			}
		}
		folder.Close()
		if err != nil {
			return nil, err
		}
		folder = child
	}
	return folder, nil
}

// Sync writes the index and makes the saved files durable. It does nothing if nothing was saved.
func (s *Saver) Sync() error {
	if len(s.Entries) == 0 {
		return nil
	}
	if err := s.writeIndex(); err != nil {
		return err
	}
	err := s.to.vol.SyncFS(s.to.own.Folder)
	if errors.Is(err, errors.ErrUnsupported) {
		err = s.to.vol.SyncDir(s.to.own.Folder)
	}
	return safe.WriteError(err, "sync lost+found to disk")
}

func (s *Saver) writeIndex() error {
	s.to.pruned, s.to.newest = time.Time{}, s.name // lost+found has grown: prune it again
	lost, err := s.to.own.OpenOrMake(DirName)
	if err != nil {
		return safe.WriteError(err, "open lost+found")
	}
	defer lost.Close()
	_, err = s.to.vol.WriteFile(lost, s.name+indexSuffix, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		for i := range s.Entries {
			if err := enc.Encode(&s.Entries[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
