package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

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
	n, err := s.openFolder(id)
	if err != nil {
		return 0, false, err
	}
	defer n.Close()
	_, bytes, err = n.size()
	return bytes, n.Has(format.ManifestFile), err
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

// DropNewer removes the snapshots that are newer than id, because a sync that takes none restored id.
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
		n, err := all.Open(id)
		if safe.NotThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = errors.Join(vol.Remove(n, format.ManifestFile), vol.SyncDir(n))
		n.Close()
		if err == nil {
			err = vol.ClearTree(all, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
