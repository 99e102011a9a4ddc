package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

const lockFile = "lock"

// holder is what the lock file says of the process that holds it.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// takeLock makes this process the only writer. The lock is the kernel's and ends with the process; the file's content
// only tells people who it is.
func (d *Dir) takeLock() error {
	f, err := d.openLock()
	if err != nil {
		return writing(err, "open %s/%s", ownDir, lockFile)
	}
	err = d.o.flock(f)
	if wantsWriter(err) {
		if f, err = d.reopenLock(f); err != nil {
			return writing(err, "open %s/%s for writing", ownDir, lockFile)
		}
		err = d.o.flock(f)
	}
	switch {
	case errors.Is(err, errLockHeld):
		err := fmt.Errorf("%w: %s; two agents must not share a data volume", ErrLocked, readHolder(f))
		return errors.Join(err, f.Close())
	case errors.Is(err, errors.ErrUnsupported):
		d.log.Warn("the data volume knows no file locks; make sure that only one agent writes it")
	case err != nil:
		return errors.Join(fmt.Errorf("lock the data directory: %w", err), f.Close())
	}
	d.lock = f
	// A full disk must not keep the agent from starting: it may be about to make room.
	if err := d.noteHolder(); err != nil {
		d.log.Warn("cannot note the holder in the lock file", "error", err)
	}
	return nil
}

// openLock opens the lock file for reading, so that an idle agent does not keep its volume from being remounted.
func (d *Dir) openLock() (*os.File, error) {
	f, _, err := d.own.file(lockFile, os.O_RDONLY)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = d.create(d.own, lockFile, 0o600); err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // else another agent was quicker
		return nil, err
	}
	f, _, err = d.own.file(lockFile, os.O_RDONLY)
	return f, err
}

// wantsWriter reports whether a lock was refused since its file is not open for writing. NFS keeps these locks as those of
// byte ranges, where an exclusive one needs that: the server's client says EBADF, some say EIO.
func wantsWriter(err error) bool { return errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EIO) }

// reopenLock opens the lock file for writing, in place of f.
func (d *Dir) reopenLock(f *os.File) (*os.File, error) {
	if err := f.Close(); err != nil {
		return nil, err
	}
	f, _, err := d.own.file(lockFile, os.O_RDWR)
	return f, err
}

func (d *Dir) noteHolder() error {
	host, _ := os.Hostname() // only for people
	b, err := json.Marshal(holder{os.Getpid(), host, d.o.Now().UTC()})
	if err != nil {
		return err
	}
	f, _, err := d.own.file(lockFile, os.O_RDWR)
	if err != nil {
		return err
	}
	err = d.fill(d.own.join(lockFile), func() error {
		if err := f.Truncate(0); err != nil {
			return err
		}
		_, err := f.WriteAt(append(b, '\n'), 0)
		return err
	})
	return errors.Join(err, f.Close())
}

func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 4<<10))
	var h holder
	if err != nil || json.Unmarshal(b, &h) != nil {
		return "its holder is not known"
	}
	return fmt.Sprintf("process %d on %s has it since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}
