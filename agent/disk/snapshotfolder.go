package disk

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// snapshotFolder is the open folder of a snapshot.
type snapshotFolder struct {
	*safe.Folder
	name string
}

func (d *Dir) openSnapshot(name string) (*snapshotFolder, error) {
	all, err := d.openSnapshots(false)
	if err != nil {
		return nil, err
	}
	if all == nil || !format.ValidSnapshot(name) {
		return nil, fs.ErrNotExist
	}
	defer all.Close()
	n, err := all.Open(name)
	if safe.NotThere(err) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return &snapshotFolder{n, name}, nil
}

// manifest opens the manifest from before the snapshot's sync.
func (s *snapshotFolder) manifest(maxFiles int) (*format.Manifest, error) {
	f, _, err := s.File(manifestFile, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	m, err := format.OpenManifest(f, maxFiles)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the manifest of snapshot %s: %w", s.name, err), f.Close())
	}
	return m, nil
}

// journal reads the journal of the snapshot's sync. See format.ReadJournal.
func (s *snapshotFolder) journal(limit int64, each func(at int, c plan.Change) error) (*format.Journal, error) {
	f, fi, err := s.File(journalFile, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	j, err := format.ReadJournal(f, fi.Size(), limit, each)
	if err != nil {
		return nil, fmt.Errorf("read the journal of snapshot %s: %w", s.name, err)
	}
	return j, nil
}

// manifestOf opens the manifest of a snapshot, and reads all of it.
func (d *Dir) manifestOf(name string) (*format.Manifest, error) {
	n, err := d.openSnapshot(name)
	if err != nil {
		return nil, fmt.Errorf("open snapshot %s: %w", name, err)
	}
	defer n.Close()
	m, err := n.manifest(d.o.MaxFiles)
	if err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("read the manifest of snapshot %s: %w", name, err), m.Close())
	}
	return m, nil
}

// displaced is a file that a sync displaced and its snapshot keeps.
type displaced struct {
	change int32 // its number in the journal
	id     plan.ID
}

// name returns the name of the file in the snapshot.
func (f displaced) name() string { return string(f.appendName(nil)) }

func (f displaced) appendName(b []byte) []byte {
	return hex.AppendEncode(append(strconv.AppendInt(b, int64(f.change), 10), '-'), f.id[:])
}

// displacedIn lists the displaced files in an open snapshot, by number.
func displacedIn(n *safe.Folder) ([]displaced, error) {
	var files []displaced
	var name [64]byte
	err := n.Each(func(e fs.DirEntry) error {
		number, blob, _ := strings.Cut(e.Name(), "-")
		at, nerr := strconv.ParseInt(number, 10, 32)
		id, ierr := plan.ParseID(blob)
		if f := (displaced{int32(at), id}); nerr == nil && ierr == nil && string(f.appendName(name[:0])) == e.Name() && e.Type().IsRegular() {
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", n.Path, err)
	}
	slices.SortFunc(files, func(a, b displaced) int { return cmp.Compare(a.change, b.change) })
	return files, nil
}

// sizeOf returns the number of the displaced files in an open snapshot, and their bytes.
func sizeOf(n *safe.Folder) (files int, bytes int64, err error) {
	list, err := displacedIn(n)
	if err != nil {
		return 0, 0, err
	}
	for _, f := range list {
		fi, err := n.Root.Lstat(f.name())
		if err != nil {
			return 0, 0, fmt.Errorf("list %s: %w", n.Path, err)
		}
		bytes += fi.Size()
	}
	return len(list), bytes, nil
}
