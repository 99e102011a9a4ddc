package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A snapshot is what one sync displaced: the folder snapshots/<id> in .stoker, with
//
//	journal     a second name of the sync's journal, which says what the sync did to each path
//	manifest    a second name of the manifest from before the sync
//	<n>-<blob>  a second name of the file that change n of the journal displaced, with its blob id
//
// So a snapshot copies no file, and its cost depends on the sync and not on the gateway. Taking back the newest snapshot
// undoes the last sync, and taking back an older one undoes all syncs since: see PlanTakeBack. That is right only if no sync
// between them is without a snapshot. Therefore a sync that takes none removes all of them.
const snapshotsDir = "snapshots"

// Snapshots configures the snapshot of a sync.
type Snapshots struct {
	// Gateway is the first part of the id.
	Gateway string
	// Keep is how many snapshots are kept, and MaxBytes the size that all of them may have. The newest is always kept.
	Keep     int
	MaxBytes int64
}

// Snapshot describes a snapshot.
type Snapshot struct {
	// ID is the gateway's name, and the time of the sync as yyyymmdd-hhmmss in UTC.
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	// Ref and Commit are those before the sync, and To is the commit that the sync delivered.
	Ref    string  `json:"ref"`
	Commit plan.ID `json:"commit"`
	To     plan.ID `json:"to"`
	// Files and Bytes count the displaced files.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Backup reports whether a backup of the whole gateway with this id is beside the snapshot.
	Backup bool `json:"backup,omitempty"`
}

// Snapshot makes Apply keep what it displaces. It must be called before Apply. The first sync of a volume has no version
// before it, and takes no snapshot. It fails with LimitExceeded if the sync alone displaces more than s.MaxBytes.
func (s *Staged) Snapshot(o Snapshots) error {
	d, r := s.d, s.run
	d.work.Lock()
	defer d.work.Unlock()
	if d.manifest().Missing() || len(r.Tasks) == 0 {
		return nil
	}
	var sum int64
	for i := range r.Changes {
		if c := &r.Changes[i]; format.Moves(c.Op) && c.Found.Kind == plan.File {
			sum += c.Found.Size
		}
	}
	if sum > o.MaxBytes {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync replaces %d bytes, and spec.snapshots.maxSize allows a snapshot of %d; raise it, or sync in two commits", sum, o.MaxBytes)
	}
	name, err := d.nextSnapshot(o.Gateway)
	r.Snapshot, r.retain = name, o
	return err
}

// SnapshotID returns the id of the snapshot that Apply takes; "" if it takes none.
func (s *Staged) SnapshotID() string { return s.run.Snapshot }

// nextSnapshot returns an id that sorts behind all others, whatever the clock says.
func (d *Dir) nextSnapshot(gateway string) (string, error) {
	names, err := d.snapshotNames()
	if err != nil {
		return "", err
	}
	backups, err := d.Backups()
	if err != nil {
		return "", err
	}
	names = slices.AppendSeq(names, maps.Keys(backups))
	at := d.o.Now().UTC().Truncate(time.Second)
	for _, n := range names {
		if t := format.TimeOfSnapshot(n); !at.After(t) {
			at = t.Add(time.Second)
		}
	}
	name := format.SnapshotName(gateway, at)
	if !format.ValidSnapshot(name) {
		return "", failure.New(v1alpha1.ReasonSnapshotFailed, "%s cannot be part of the name of a snapshot", failure.Quote(gateway))
	}
	return name, nil
}

// snapshotNames returns the names of the folders of snapshots, oldest first.
func (d *Dir) snapshotNames() ([]string, error) {
	all, err := d.openSnapshots(false)
	if err != nil || all == nil {
		return nil, err
	}
	defer all.Close()
	list, err := all.Entries()
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	var names []string
	for _, e := range list {
		if e.IsDir() && format.ValidSnapshot(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return byTime(names), nil
}

// openSnapshots opens the folder of the snapshots. If it does not exist, openSnapshots makes it, or returns nil.
func (d *Dir) openSnapshots(create bool) (*safe.Folder, error) {
	if d.own == nil {
		return nil, nil
	}
	if create {
		return d.own.OpenOrMake(snapshotsDir)
	}
	all, err := d.own.Open(snapshotsDir)
	if safe.NotThere(err) {
		return nil, nil
	}
	return all, err
}

// runSnapshot is the snapshot that a run takes. The zero value takes none.
type runSnapshot struct {
	*run
	all, n  *safe.Folder
	created bool // the folder of all snapshots
	files   int
	bytes   int64
}

// openSnapshot begins the snapshot of the run. After a crash, it is completed. A run that takes none removes all others.
func (r *run) openSnapshot() (*runSnapshot, error) {
	s := &runSnapshot{created: r.redo} // in doubt
	if r.Snapshot == "" || r.doubtful {
		return s, r.d.dropSnapshots()
	}
	var err error
	if s.all, err = r.d.openSnapshots(false); err == nil && s.all == nil {
		s.created = true
		s.all, err = r.d.openSnapshots(true)
	}
	if err != nil {
		return nil, snapshotError(err)
	}
	if err = r.d.vol.Mkdir(s.all, r.Snapshot, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
		s.n, err = s.all.Open(r.Snapshot)
	}
	if err != nil {
		s.all.Close()
		return nil, snapshotError(err)
	}
	s.run = r
	return s, nil
}

func (s *runSnapshot) close() {
	if s.run != nil {
		s.n.Close()
		s.all.Close()
	}
}

// keep gives the regular file that a change displaced a name in the snapshot. Anything else is in lost+found, as is what cannot be
// read and therefore has no id.
func (s *runSnapshot) keep(at int, name string, id plan.ID) error {
	if s.run == nil || id.IsZero() {
		return nil
	}
	as := displaced{int32(at), id}.name()
	err := s.d.secondName(s.stagingOf(at), name, s.n, as, s.buf)
	if err == nil {
		var fi fs.FileInfo
		if fi, err = s.n.Root.Lstat(as); err == nil {
			s.files, s.bytes = s.files+1, s.bytes+fi.Size()
		}
	}
	return snapshotError(err)
}

// complete gives the journal of the run and the old manifest a second name, and makes the snapshot durable. The manifest is last:
// without it, the folder does not count.
func (s *runSnapshot) complete() error {
	if s.run == nil {
		return nil
	}
	if s.doubtful { // as it turned out meanwhile
		return s.d.dropSnapshots()
	}
	for _, name := range []string{journalFile, manifestFile} {
		if err := s.d.secondName(s.d.own.Folder, name, s.n, name, s.buf); err != nil {
			return snapshotError(err)
		}
	}
	err := errors.Join(s.d.vol.SyncDir(s.n), s.d.vol.SyncDir(s.all))
	if s.created {
		err = errors.Join(err, s.d.vol.SyncDir(s.d.own.Folder))
	}
	if err == nil && !s.redo { // after a crash, the manifest may be the new one already
		old := s.d.manifest().Header()
		s.d.note(Snapshot{
			ID: s.Snapshot, Time: format.TimeOfSnapshot(s.Snapshot), Ref: old.Ref, Commit: old.Commit, To: s.Header.Commit, Files: s.files, Bytes: s.bytes,
		})
	}
	return snapshotError(err)
}

// note remembers a snapshot.
func (d *Dir) note(s Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.snapshots == nil {
		d.snapshots = map[string]Snapshot{}
	}
	d.snapshots[s.ID] = s
}

// known returns a snapshot that this process took or read.
func (d *Dir) known(id string) (Snapshot, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.snapshots[id]
	return s, ok
}

// forget forgets a snapshot that is removed.
func (d *Dir) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, id)
}

func snapshotError(err error) error {
	if err == nil || failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return err
	}
	err = safe.WriteError(err, "take a snapshot")
	if failure.Is(err, v1alpha1.ReasonNoSpace) {
		return err
	}
	return failure.New(v1alpha1.ReasonSnapshotFailed, "%w", err)
}

// secondName gives a file another name, or copies it if the volume has no hard links or is another one. An existing name
// stays.
func (d *Dir) secondName(from *safe.Folder, name string, to *safe.Folder, as string, buf []byte) error {
	err := d.vol.Link(from, name, to, as)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	if _, err := to.Root.Lstat(as); err == nil {
		return nil
	}
	in, fi, ferr := from.File(name, os.O_RDONLY)
	if ferr != nil {
		return ferr
	}
	defer func() { _ = in.Close() }() // opened for reading
	_, err = d.vol.WriteFile(to, as, func(w io.Writer) error {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, buf)
		return err
	})
	if err == nil && fi.Mode()&0o111 != 0 {
		// Only the bytes are essential: the journal has the mode.
		err = d.vol.Effect(safe.Effect{Op: "chmod", Path: to.Join(as)}, func() error { return to.Root.Chmod(as, fi.Mode().Perm()) })
	}
	return err
}

// dropSnapshots removes all snapshots, if there are any.
func (d *Dir) dropSnapshots() error {
	if _, err := d.own.Root.Lstat(snapshotsDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d.log.Warn("snapshots removed, because a sync takes none")
	if names, err := d.snapshotNames(); err == nil && len(names) > 0 { // the oldest first, as in pruneSnapshots
		if all, err := d.openSnapshots(false); err == nil && all != nil {
			err = d.dropAll(all, names)
			all.Close()
			if err != nil {
				return safe.WriteError(err, "remove the snapshots")
			}
		}
	}
	return safe.WriteError(errors.Join(d.vol.ClearTree(d.own.Folder, snapshotsDir), d.vol.SyncDir(d.own.Folder)), "remove the snapshots")
}

// dropSnapshot removes the snapshot of a run that is rolled back.
func (r *run) dropSnapshot() error {
	if r.Snapshot == "" {
		return nil
	}
	all, err := r.d.openSnapshots(false)
	if err != nil || all == nil {
		return err
	}
	defer all.Close()
	// Durably: older snapshots stay, and a folder that a crash brings back would make them count as older than a gap.
	return errors.Join(r.d.dropOne(all, r.Snapshot), r.d.vol.SyncDir(all))
}

// dropOne removes a snapshot. The manifest goes first, so that no part of a snapshot is taken for a whole one. The rest need not be
// durable if no older snapshot stays: what a crash brings back is no snapshot, and is removed with the next.
func (d *Dir) dropOne(all *safe.Folder, name string) error {
	d.forget(name)
	n, err := all.Open(name)
	if safe.NotThere(err) {
		return nil
	}
	if err == nil {
		err = errors.Join(d.vol.Remove(n, manifestFile), d.vol.SyncDir(n))
		n.Close()
	}
	if err != nil {
		return err
	}
	return d.vol.ClearTree(all, name)
}

// ListSnapshots returns the snapshots, oldest first. One that cannot be read is left out and logged. Each is read once.
func (d *Dir) ListSnapshots() ([]Snapshot, error) {
	names, err := d.snapshotNames()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	backups, err := d.Backups()
	if err != nil {
		return nil, err
	}
	var list []Snapshot
	for _, name := range names {
		_, backup := backups[name]
		s, known := d.known(name)
		var err error
		if !known {
			s, err = d.describeSnapshot(name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being made or removed
		}
		if err != nil {
			d.log.Warn("snapshot unreadable", "snapshot", name, "error", err)
			continue
		}
		if !known {
			d.note(s)
		}
		s.Backup = backup
		list = append(list, s)
	}
	return list, nil
}

func (d *Dir) describeSnapshot(name string) (Snapshot, error) {
	n, err := d.openSnapshot(name)
	if err != nil {
		return Snapshot{}, err
	}
	defer n.Close()
	files, bytes, err := sizeOf(n.Folder)
	if err != nil {
		return Snapshot{}, err
	}
	m, err := n.manifest(d.o.MaxFiles) // its header is all that is shown; a restore decodes the rest
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = m.Close() }() // opened for reading
	j, err := n.journal(d.o.maxRun(), nil)
	if err != nil {
		return Snapshot{}, err
	}
	h := m.Header()
	return Snapshot{ID: name, Time: format.TimeOfSnapshot(name), Ref: h.Ref, Commit: h.Commit, To: j.Header.Commit, Files: files, Bytes: bytes}, nil
}
