package snapshot

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// Saver takes a snapshot. Taking the same snapshot again after a crash completes it.
type Saver struct {
	store       *Store
	id          string
	all, folder *safe.Folder // snapshots, and the folder of this one
	created     bool         // the name of all may not be durable
	replayed    bool
	files       int
	bytes       int64
	buf         []byte // for copying
}

// NewSaver begins a snapshot, which counts only after Complete. replayed reports whether this may repeat what a crash interrupted.
func (s *Store) NewSaver(id string, replayed bool) (*Saver, error) {
	all, err := s.own.OpenExisting(DirName)
	missing := all == nil
	if err == nil && missing {
		all, err = s.own.OpenOrMake(DirName)
	}
	if err != nil {
		return nil, saveError(err)
	}
	var folder *safe.Folder
	if err = s.own.Vol.Mkdir(all, id, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
		folder, err = all.Open(id)
	}
	if err != nil {
		all.Close()
		return nil, saveError(err)
	}
	return &Saver{store: s, id: id, all: all, folder: folder, created: missing || replayed, replayed: replayed, buf: make([]byte, 64<<10)}, nil
}

// Close closes the folders. It does not complete the snapshot.
func (s *Saver) Close() {
	s.folder.Close()
	s.all.Close()
}

// Save gives the file that a change displaced a second name in the snapshot. The file is called name in from, and has the blob id
// id. If id is the null id, it may be a file that is too large for git. Save hashes such a file, because a snapshot
// without it could not be restored. size is the bytes that the plan saw: see Limits. Save skips what is not a file.
func (s *Saver) Save(from *safe.Folder, name string, change int, id plan.ID, size int64) error {
	if id.IsZero() {
		var err error
		id, err = from.Hash(context.Background(), name, s.buf, s.store.limits.fileBytes(size))
		if _, irregular := errors.AsType[*safe.IrregularError](err); irregular {
			return nil
		}
		if err == nil && id.IsZero() {
			err = errors.New("a file grew by more than --max-blob during the sync; the agent tries again")
		}
		if err != nil {
			return saveError(err)
		}
	}
	as := displaced{int32(change), id}.name()
	err := s.secondName(from, name, as)
	if err == nil {
		var fi fs.FileInfo
		if fi, err = s.folder.Lstat(as); err == nil {
			s.files, s.bytes = s.files+1, s.bytes+fi.Size()
		}
	}
	return saveError(err)
}

// Complete gives the journal and the manifest in .stoker a second name, and makes the snapshot durable. The manifest comes last:
// without it, the folder does not count. before is the header of the manifest, and to the commit of the sync.
func (s *Saver) Complete(before plan.Header, to plan.ID) error {
	for _, name := range []string{format.JournalFile, format.ManifestFile} {
		if err := s.secondName(s.store.own.Folder, name, name); err != nil {
			return saveError(err)
		}
	}
	vol := s.store.own.Vol
	var err error
	if at := syntax.SnapshotTime(s.id); at.After(vol.Now().Add(maxAhead)) { // the clock is behind: see futureOf
		err = vol.SetMtime(s.all, s.id, at)
	}
	err = errors.Join(err, vol.SyncDir(s.folder), vol.SyncDir(s.all))
	if s.created {
		err = errors.Join(err, vol.SyncDir(s.store.own.Folder))
	}
	if err == nil && !s.replayed { // after a crash, the manifest may be the new one already
		s.store.known.Store(s.id, Snapshot{
			ID: s.id, Time: syntax.SnapshotTime(s.id), Ref: before.Ref, Commit: before.Commit, To: to, Files: s.files, Bytes: s.bytes,
		})
	}
	return saveError(err)
}

// secondName gives a file a second name in the snapshot. It copies the file if the volume has no hard links or is another one. An
// existing name stays as it is.
func (s *Saver) secondName(from *safe.Folder, name, as string) error {
	vol := s.store.own.Vol
	err := vol.Link(from, name, s.folder, as)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	if _, err := s.folder.Lstat(as); err == nil {
		return nil
	}
	in, fi, err := from.File(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // opened for reading
	_, err = vol.WriteFile(s.folder, as, func(w io.Writer) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, s.buf)
		return err
	})
	if err == nil && fi.Mode()&0o111 != 0 { // as a link has it; restoring needs only the bytes, because the journal has the mode
		err = vol.Effect(safe.Effect{Op: "chmod", Path: s.folder.Join(as)}, func() error { return s.folder.Chmod(as, fi.Mode().Perm()) })
	}
	return err
}

// saveError gives an error the reason NoSpace or SnapshotFailed.
func saveError(err error) error {
	if err == nil || failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return err
	}
	err = safe.WriteError(err, "take a snapshot")
	if failure.Is(err, v1alpha1.ReasonNoSpace) {
		return err
	}
	return failure.New(v1alpha1.ReasonSnapshotFailed, "%w", err)
}
