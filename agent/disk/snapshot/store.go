// Package snapshot keeps what syncs displaced (replaced or deleted), and plans how to restore it without git. It also keeps the
// gateway's own backups.
//
// A snapshot is what one sync displaced. It is the folder snapshots/<id> in .stoker, with
//
//	journal     a second name of the sync's journal, which says what the sync did to each path
//	manifest    a second name of the manifest from before the sync
//	<n>-<blob>  a second name of the file that change n of the journal displaced, with its blob id
//
// So a snapshot copies no file on a volume with hard links, and its cost depends on the sync and not on the size of the gateway.
// Restoring the newest snapshot undoes the last sync, and restoring an older one undoes all syncs since, for which each of them needs a snapshot.
// Therefore a sync that moves files and takes no snapshot removes all of them. If it restores a snapshot, this one and older ones stay: the
// files are again what they were before the sync of that snapshot.
package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// DirName is the name of the folder of the snapshots in .stoker.
const DirName = "snapshots"

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

// Store has the snapshots and the backups of a data directory. The methods that write must not run at the same time; the others
// may be called concurrently with each other and with those.
type Store struct {
	Backups Backups
	own     *safe.AgentFolder // nil: the store is empty
	limits  Limits
	known   sync.Map // id → Snapshot that this process took or read; a snapshot never changes
}

// Limits bound what is read of a snapshot. Beyond them it counts as damaged.
type Limits struct {
	Files        int   // of a manifest: see format.OpenManifest
	JournalBytes int64 // see format.ReadJournal
	FileBytes    int64 // see fileBytes; 0 means no limit
}

// fileBytes returns the limit of a displaced file, in bytes; 0 means no limit. The plan saw size bytes, and the gateway may append to the file
// during each sync.
func (l Limits) fileBytes(size int64) int64 {
	if l.FileBytes == 0 {
		return 0
	}
	return size + l.FileBytes
}

// New returns the store in own, which is nil if there is no .stoker.
func New(own *safe.AgentFolder, limits Limits) *Store {
	return &Store{Backups: Backups{own}, own: own, limits: limits}
}

const (
	// maxAhead is how far the time in an id may be ahead of the clock. Beyond it, the id is from another program, or the clock was wrong.
	maxAhead = 24 * time.Hour
	// maxLate bounds how far the clock may be behind. A clock may start in 1970.
	maxLate = 100 * 365 * 24 * time.Hour
)

// future is the time from which ids count as those of another program.
type future time.Time

// futureOf returns a day after the present. The present is what the clock shows or, if the clock is behind, the last time at which the
// manifest, a snapshot or a backup was changed.
func futureOf(own *safe.AgentFolder) (future, error) {
	now := own.Vol.Now()
	latest := now
	see := func(folder *safe.Folder, name string) {
		if fi, err := folder.Lstat(name); err == nil && fi.ModTime().After(latest) && fi.ModTime().Before(now.Add(maxLate)) {
			latest = fi.ModTime()
		}
	}
	see(own.Folder, format.ManifestFile)
	for _, dir := range []string{DirName, BackupsDir} {
		folder, err := own.OpenExisting(dir)
		if err != nil {
			return future{}, err
		}
		if folder == nil {
			continue
		}
		err = folder.Each(func(e fs.DirEntry) error {
			see(folder, e.Name())
			return nil
		})
		folder.Close()
		if err != nil {
			return future{}, fmt.Errorf("list %s: %w", dir, err)
		}
	}
	return future(latest.Add(maxAhead)), nil
}

// has reports whether the time in an id is in the future.
func (f future) has(id string) bool { return syntax.SnapshotTime(id).After(time.Time(f)) }

// NextID returns an id that sorts behind the ids of all snapshots and backups, even if the clock is behind or was set back. It sets aside
// what has an id in the future.
func (s *Store) NextID(gateway string) (string, error) {
	if err := s.setAsideFuture(); err != nil {
		return "", err
	}
	ids, err := s.ids()
	if err != nil {
		return "", err
	}
	backups, err := s.Backups.List()
	if err != nil {
		return "", err
	}
	at := s.own.Vol.Now().UTC().Truncate(time.Second)
	for _, id := range slices.AppendSeq(ids, maps.Keys(backups)) {
		if t := syntax.SnapshotTime(id); !at.After(t) {
			at = t.Add(time.Second)
		}
	}
	id := syntax.NewSnapshotID(gateway, at)
	if !syntax.IsSnapshotID(id) {
		return "", failure.New(v1alpha1.ReasonSnapshotFailed, "%s cannot be part of the name of a snapshot", failure.Quote(gateway))
	}
	return id, nil
}

// SortByTime sorts ids of snapshots and backups in place, oldest first.
func SortByTime(ids []string) {
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(syntax.SnapshotTime(a).Compare(syntax.SnapshotTime(b)), strings.Compare(a, b))
	})
}

// setAsideFuture sets aside the snapshots and backups with ids in the future. If a complete snapshot is among them, it removes the snapshots
// with other ids, which are of no use: see ids.
func (s *Store) setAsideFuture() error {
	future, err := futureOf(s.own)
	if err != nil {
		return err
	}
	for _, dir := range []string{DirName, BackupsDir} {
		folder, err := s.own.OpenExisting(dir)
		if err != nil {
			return err
		}
		if folder == nil {
			continue
		}
		entries, err := folder.Entries()
		for _, e := range entries {
			id := strings.TrimSuffix(e.Name(), backupSuffix)
			if err != nil || !syntax.IsSnapshotID(id) || !future.has(id) {
				continue
			}
			if dir == DirName && s.complete(folder, id) {
				s.own.Vol.Log.Warn("snapshots removed, because a newer one has a date in the future", "snapshot", id)
				err = s.dropBefore(folder, entries, future)
			}
			if err == nil {
				err = s.own.Vol.SetAside(folder, e.Name(), errors.New("its date is in the future"))
			}
		}
		folder.Close()
		if err != nil {
			return safe.WriteError(err, "set aside %s", dir)
		}
	}
	return nil
}

// complete reports whether a folder is a complete snapshot.
func (s *Store) complete(all *safe.Folder, id string) bool {
	folder, err := all.Open(id)
	if err != nil {
		return false
	}
	defer folder.Close()
	return folder.Has(format.ManifestFile)
}

// dropBefore removes the snapshots with ids that are not in the future.
func (s *Store) dropBefore(all *safe.Folder, entries []fs.DirEntry, future future) error {
	var ids []string
	for _, e := range entries {
		if e.IsDir() && syntax.IsSnapshotID(e.Name()) && !future.has(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	SortByTime(ids)
	return errors.Join(s.drop(ids...), s.own.Vol.SyncDir(all))
}

// ids returns the ids of the snapshots, oldest first, including incomplete ones. It leaves out ids in the future. If a snapshot with such an
// id is complete, ids returns none, because restoring an older snapshot would need that one.
func (s *Store) ids() ([]string, error) {
	all, err := s.own.OpenExisting(DirName)
	if err != nil || all == nil {
		return nil, err
	}
	defer all.Close()
	list, err := all.Entries()
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	future, err := futureOf(s.own)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range list {
		switch {
		case !e.IsDir() || !syntax.IsSnapshotID(e.Name()):
		case !future.has(e.Name()):
			ids = append(ids, e.Name())
		case s.complete(all, e.Name()):
			return nil, nil
		}
	}
	SortByTime(ids)
	return ids, nil
}

// List returns the snapshots, oldest first. It leaves out and logs a snapshot that it cannot read.
func (s *Store) List() ([]Snapshot, error) {
	ids, err := s.ids()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	backups, err := s.Backups.List()
	if err != nil {
		return nil, err
	}
	var list []Snapshot
	for _, id := range ids {
		x, err := s.describe(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a sync is taking it, or has removed it
		}
		if err != nil {
			s.own.Vol.Log.Warn("snapshot unreadable", "snapshot", id, "error", err)
			continue
		}
		_, x.Backup = backups[id]
		list = append(list, x)
	}
	return list, nil
}

// describe returns what this process knows of a snapshot, or else reads it.
func (s *Store) describe(id string) (Snapshot, error) {
	if x, ok := s.lookUp(id); ok {
		return x, nil
	}
	x, err := s.read(id)
	if err == nil {
		s.known.Store(id, x)
	}
	return x, err
}

// read returns the description of a snapshot, without Backup. The error is fs.ErrNotExist if the snapshot does not exist or is
// incomplete.
func (s *Store) read(id string) (Snapshot, error) {
	folder, err := s.openFolder(id)
	if err != nil {
		return Snapshot{}, err
	}
	defer folder.Close()
	files, bytes, err := folder.size()
	if err != nil {
		return Snapshot{}, err
	}
	m, err := folder.manifest(s.limits.Files) // without Manifest.Check: only the header counts here
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = m.Close() }() // opened for reading
	j, err := folder.journal(s.limits.JournalBytes, nil)
	if err != nil {
		return Snapshot{}, err
	}
	h := m.Header()
	return Snapshot{ID: id, Time: syntax.SnapshotTime(id), Ref: h.Ref, Commit: h.Commit, To: j.Header.Commit, Files: files, Bytes: bytes}, nil
}

// lookUp returns a snapshot that this process took or read.
func (s *Store) lookUp(id string) (x Snapshot, ok bool) {
	v, _ := s.known.Load(id)
	x, ok = v.(Snapshot)
	return x, ok
}

// Manifest opens the manifest from before the sync of a snapshot, and checks all of it. The caller closes it.
func (s *Store) Manifest(id string) (*format.Manifest, error) {
	folder, err := s.openFolder(id)
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	defer folder.Close()
	m, err := folder.manifest(s.limits.Files)
	if err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("read the manifest of snapshot %s: %w", id, err), m.Close())
	}
	return m, nil
}

// Options configure the snapshots of a gateway.
type Options struct {
	Gateway string // the first part of the ids
	// Keep is the number of snapshots and of backups that Prune keeps, and MaxBytes the bytes of both together.
	Keep     int
	MaxBytes int64
}

// quota counts what Prune keeps of the snapshots, or of the backups.
type quota struct {
	kept int
	full bool // Prune removes all older ones
}

// Prune removes the oldest snapshots and backups beyond the limits, and what a crash left of a backup. It keeps the newest of
// each, whatever its size, unless the newest snapshot is incomplete.
func (s *Store) Prune(o Options) error {
	if err := s.Backups.dropUnfinished(); err != nil {
		return err
	}
	snapshots, err := s.ids()
	if err != nil {
		return err
	}
	backups, err := s.Backups.List()
	if err != nil {
		return err
	}
	ids := slices.AppendSeq(slices.Clone(snapshots), maps.Keys(backups))
	SortByTime(ids)
	var total int64
	keep := func(q *quota, bytes int64) bool {
		q.full = q.full || q.kept > 0 && (q.kept >= o.Keep || total+bytes > o.MaxBytes)
		if !q.full {
			q.kept, total = q.kept+1, total+bytes
		}
		return !q.full
	}
	var keptSnapshots, keptBackups quota
	var surplus []string // snapshots, newest first
	for _, id := range slices.Backward(slices.Compact(ids)) {
		if slices.Contains(snapshots, id) {
			bytes, complete, err := s.size(id)
			if err != nil {
				return err
			}
			if !complete { // restoring an older snapshot would need this one
				keptSnapshots.full = true
			}
			if !keep(&keptSnapshots, bytes) {
				s.own.Vol.Log.Info("removing snapshot", "snapshot", id, "bytes", bytes)
				surplus = append(surplus, id)
			}
		}
		if bytes, ok := backups[id]; ok && !keep(&keptBackups, bytes) {
			s.own.Vol.Log.Info("removing backup", "backup", id, "bytes", bytes)
			if err := s.Backups.drop(id); err != nil {
				return err
			}
		}
	}
	slices.Reverse(surplus) // the oldest first, so that a crash leaves no gap
	return s.drop(surplus...)
}

// size returns the bytes of the displaced files in a snapshot, and whether the snapshot is complete.
func (s *Store) size(id string) (bytes int64, complete bool, err error) {
	if x, ok := s.lookUp(id); ok {
		return x.Bytes, true, nil
	}
	folder, err := s.openFolder(id)
	if err != nil {
		return 0, false, err
	}
	defer folder.Close()
	_, bytes, err = folder.size()
	return bytes, folder.Has(format.ManifestFile), err
}

// Drop removes the newest snapshots, for example that of a sync that is rolled back. It does so durably: older snapshots stay, and
// if a crash brought a folder back, it would count as incomplete and make them useless.
func (s *Store) Drop(ids ...string) error {
	all, err := s.own.OpenExisting(DirName)
	if err != nil || all == nil {
		return err
	}
	defer all.Close()
	return errors.Join(s.drop(ids...), s.own.Vol.SyncDir(all))
}

// DropNewer removes the snapshots that are newer than id, because a sync that takes none restored id. If id is gone, it removes all.
func (s *Store) DropNewer(id string) error {
	ids, err := s.ids()
	if err != nil {
		return fmt.Errorf("remove snapshots: %w", err)
	}
	newer := ids[slices.Index(ids, id)+1:]
	if len(newer) == 0 {
		return nil
	}
	s.own.Vol.Log.Warn("newer snapshots removed, because a restore takes none", "snapshots", len(newer))
	return safe.WriteError(s.Drop(newer...), "remove snapshots")
}

// DropAll removes all snapshots, because a sync has none, and the older ones cannot be restored without it.
func (s *Store) DropAll() error {
	if _, err := s.own.Lstat(DirName); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.own.Vol.Log.Warn("all snapshots removed")
	if ids, err := s.ids(); err == nil { // otherwise DropFolder removes or renames all of it
		if err := s.drop(ids...); err != nil {
			return safe.WriteError(err, "remove the snapshots")
		}
	}
	return safe.WriteError(s.own.DropFolder(DirName), "remove the snapshots")
}

// drop removes snapshots, one after the other. It removes the manifest first, and durably, so that what a crash leaves of a
// snapshot does not count as complete. The rest need not be durable if no older snapshot stays: Prune removes what a crash brings
// back.
func (s *Store) drop(ids ...string) error {
	all, err := s.own.OpenExisting(DirName)
	if err != nil || all == nil {
		return err
	}
	defer all.Close()
	vol := s.own.Vol
	for _, id := range ids {
		s.known.Delete(id)
		folder, err := all.Open(id)
		if safe.NotThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = errors.Join(vol.Remove(folder, format.ManifestFile), vol.SyncDir(folder))
		folder.Close()
		if err == nil {
			err = vol.ClearTree(all, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
