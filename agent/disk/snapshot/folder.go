package snapshot

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
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// folder is the open folder of a snapshot.
type folder struct {
	*safe.Folder
	id string
}

// openFolder opens the folder of a snapshot. The error is fs.ErrNotExist if there is none.
func (s *Store) openFolder(id string) (*folder, error) {
	all, err := s.own.OpenExisting(DirName)
	if err != nil {
		return nil, err
	}
	if all == nil || !syntax.IsSnapshotID(id) {
		return nil, fs.ErrNotExist
	}
	defer all.Close()
	opened, err := all.Open(id)
	if safe.NotThere(err) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return &folder{opened, id}, nil
}

// manifest opens the manifest from before the snapshot's sync.
func (n *folder) manifest(maxFiles int) (*format.Manifest, error) {
	f, _, err := n.File(format.ManifestFile, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	m, err := format.OpenManifest(f, maxFiles)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the manifest of snapshot %s: %w", n.id, err), f.Close())
	}
	return m, nil
}

// journal reads the journal of the snapshot's sync; see format.ReadJournal.
func (n *folder) journal(limit int64, each func(i int, c plan.Change) error) (*format.Journal, error) {
	f, fi, err := n.File(format.JournalFile, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	j, err := format.ReadJournal(f, fi.Size(), limit, each)
	if err != nil {
		return nil, fmt.Errorf("read the journal of snapshot %s: %w", n.id, err)
	}
	return j, nil
}

// displaced is a file that a sync displaced and its snapshot keeps.
type displaced struct {
	change int32 // its index in the journal
	id     plan.ID
}

// name returns the name of the file in the snapshot.
func (f displaced) name() string { return string(f.appendName(nil)) }

func (f displaced) appendName(b []byte) []byte {
	return hex.AppendEncode(append(strconv.AppendInt(b, int64(f.change), 10), '-'), f.id[:])
}

// displaced lists the displaced files in the order of their changes.
func (n *folder) displaced() ([]displaced, error) {
	var files []displaced
	var buf [64]byte
	err := n.Each(func(e fs.DirEntry) error {
		number, blob, _ := strings.Cut(e.Name(), "-")
		change, nerr := strconv.ParseInt(number, 10, 32)
		id, ierr := plan.ParseID(blob)
		if f := (displaced{int32(change), id}); nerr == nil && ierr == nil && string(f.appendName(buf[:0])) == e.Name() && e.Type().IsRegular() {
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

// size returns the number of the displaced files, and their bytes.
func (n *folder) size() (files int, bytes int64, err error) {
	list, err := n.displaced()
	if err != nil {
		return 0, 0, err
	}
	for _, f := range list {
		fi, err := n.Lstat(f.name())
		if err != nil {
			return 0, 0, fmt.Errorf("list %s: %w", n.Path, err)
		}
		bytes += fi.Size()
	}
	return len(list), bytes, nil
}
