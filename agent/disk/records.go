package disk

import (
	"errors"
	"os"

	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// agentRecords has the methods of a Dir for the audit record, for diffs and for notes.
type agentRecords = records.Records

const (
	// MaxDiff bounds a diff, in bytes.
	MaxDiff = records.MaxDiff
	// DamagedNote replaces a note that could not be read; see Dir.Note.
	DamagedNote = records.DamagedNote
)

// ReadAudit returns the audit record of a data directory; see records.ReadAudit.
func ReadAudit(dataDir string) ([]byte, error) { return records.ReadAudit(dataDir) }

// ReadDiff returns a diff of a data directory; see records.ReadDiff.
func ReadDiff(dataDir, id string) ([]byte, error) { return records.ReadDiff(dataDir, id) }

// scratchFile is the name of a scratch file until it is open.
const scratchFile = "scratch"

// Scratch returns a new file on the data volume. The file has no name, so it vanishes when it is closed, or with the process.
func (d *Dir) Scratch() (f *os.File, err error) {
	err = d.exclusive(func() error {
		if err := d.vol.Vacate(d.own.Folder, scratchFile); err != nil {
			return safe.WriteError(err, "make a scratch file")
		}
		f, err = d.vol.Create(d.own.Folder, scratchFile, 0o600)
		if err == nil {
			if err = d.vol.Remove(d.own.Folder, scratchFile); err != nil {
				err = errors.Join(err, f.Close())
			}
		}
		return safe.WriteError(err, "make a scratch file")
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// minFree is the space that CheckSpace leaves to the gateway.
const minFree = 64 << 20

// CheckSpace returns an error with the reason NoSpace if the volume of f has no room for size more bytes.
func CheckSpace(f *os.File, size int64) error {
	free, err := safe.FreeBytes(f)
	if err != nil {
		return safe.WriteError(err, "measure the free space")
	}
	if free-minFree < size {
		return failure.New(v1alpha1.ReasonNoSpace, "it has %d MiB, and the gateway's data volume has %d MiB free, of which %d stay free: free space on it",
			size>>20, free>>20, minFree>>20)
	}
	return nil
}
