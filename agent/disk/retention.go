package disk

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

// pruneSnapshots removes the oldest snapshots and backups beyond the limits, and the incomplete ones. The newest of each stays. The oldest
// go first, so that a crash in between leaves no gap: restoring a snapshot needs all later ones.
func (d *Dir) pruneSnapshots(o Snapshots) error {
	all, err := d.openSnapshots(false)
	if err != nil || all == nil {
		return err
	}
	defer all.Close()
	names, err := d.snapshotNames()
	if err != nil {
		return err
	}
	if n, err := d.openBackups(); err != nil {
		return err
	} else if n != nil {
		err := d.clearUnfinished(n)
		n.Close()
		if err != nil {
			return err
		}
	}
	backups, err := d.Backups()
	if err != nil {
		return err
	}
	var total int64
	left := func(kept int, bytes int64) bool { return kept == 0 || kept < o.Keep && total+bytes <= o.MaxBytes }
	kept, keptBackups := 0, 0
	var drop []string // newest first
	for _, id := range slices.Backward(byTime(append(slices.Collect(maps.Keys(backups)), names...))) {
		if slices.Contains(names, id) {
			bytes, complete, err := d.sizeOf(all, id)
			if err != nil {
				return err
			}
			if complete && left(kept, bytes) {
				kept, total = kept+1, total+bytes
			} else {
				kept = o.Keep // an older one needs this one
				d.log.Info("snapshot removed", "snapshot", id, "bytes", bytes)
				drop = append(drop, id)
			}
		}
		if bytes, ok := backups[id]; ok {
			if left(keptBackups, bytes) {
				keptBackups, total = keptBackups+1, total+bytes
				continue
			}
			keptBackups = o.Keep // the oldest go first
			d.log.Info("backup removed", "backup", id, "bytes", bytes)
			if err := d.dropBackup(id); err != nil {
				return err
			}
		}
	}
	slices.Reverse(drop)
	return d.dropAll(all, drop)
}

// dropAll removes snapshots, one after the other.
func (d *Dir) dropAll(all *safe.Folder, names []string) error {
	for _, name := range names {
		if err := d.dropOne(all, name); err != nil {
			return err
		}
	}
	return nil
}

// sizeOf returns the bytes of the displaced files in a snapshot, and whether the snapshot is complete.
func (d *Dir) sizeOf(all *safe.Folder, id string) (bytes int64, complete bool, err error) {
	if s, known := d.known(id); known {
		return s.Bytes, true, nil
	}
	n, err := all.Open(id)
	if err != nil {
		return 0, false, err
	}
	defer n.Close()
	if _, bytes, err = sizeOf(n); err != nil {
		return 0, false, err
	}
	_, missing := n.Root.Lstat(manifestFile)
	return bytes, missing == nil, nil
}

// byTime sorts ids of snapshots and backups in place, oldest first, and returns them without duplicates.
func byTime(ids []string) []string {
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(format.TimeOfSnapshot(a).Compare(format.TimeOfSnapshot(b)), strings.Compare(a, b))
	})
	return slices.Compact(ids)
}
