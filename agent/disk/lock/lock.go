// Package lock ensures that only one agent writes to a data directory. The kernel's lock on the file .stoker/lock ends with
// the process.
package lock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	// FileName is the name of the locked file in .stoker.
	FileName  = "lock"
	maxHolder = 4 << 10 // bytes of the file
)

// ErrHeld means that another agent holds the lock.
var ErrHeld = errors.New("another agent uses the data directory")

// ErrBusy is Flock's error for a file that another process has locked.
var ErrBusy = errors.New("locked by another process")

// holder is the content of the file. It only informs users.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// Lock is a lock that this process holds.
type Lock struct {
	File *os.File // the locked file
}

// Take takes the lock in own, by calling flock on the file. If another agent holds it, the error is ErrHeld and names that agent.
// On a volume without locks, Take logs a warning and succeeds.
//
// Take never writes to a file that no agent can have created: it may have another hard link outside .stoker, or a user may have
// moved it here. Take sets such a file aside, but only after locking it, in case an agent does use it.
func Take(own *safe.AgentFolder, flock func(*os.File) error) (*Lock, error) {
	for range 10 {
		f, err := lockFile(own, flock)
		if err != nil {
			return nil, err
		}
		reason := unexpected(f)
		if reason == nil {
			// A full disk must not prevent the start of the agent, which may free space.
			if err := writeHolder(own, f); err != nil {
				own.Vol.Log.Warn("cannot write the lock file", "error", err)
			}
			return &Lock{f}, nil
		}
		if err := errors.Join(own.Vol.SetAside(own.Folder, FileName, reason), f.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: another process keeps replacing %s/%s; find and stop it", safe.ErrDamaged, safe.OwnDir, FileName)
}

// Release releases the lock and closes the file. Closing the file alone would not release the lock as long as a child process,
// started meanwhile, has it open.
func (l *Lock) Release() error {
	unlock(l.File)
	return l.File.Close()
}

// unexpected returns why no agent can have made the file, or nil if an agent may have made it.
func unexpected(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if a := safe.AttrsOf(fi); a.Known && a.Links != 1 {
		return fmt.Errorf("it has %d hard links", a.Links)
	}
	const start = `{"pid":`
	b := make([]byte, len(start))
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// After a crash it may be empty, or contain bytes that were never written.
	if b = bytes.Trim(b[:n], "\x00"); fi.Size() > maxHolder || string(b) != start[:len(b)] {
		return errors.New("no agent wrote its content")
	}
	return nil
}

// lockFile opens the file and locks it.
func lockFile(own *safe.AgentFolder, flock func(*os.File) error) (*os.File, error) {
	f, err := open(own)
	if err != nil {
		return nil, safe.WriteError(err, "open %s/%s", safe.OwnDir, FileName)
	}
	err = flock(f)
	if wantsWriter(err) {
		if err = f.Close(); err == nil {
			f, _, err = own.File(FileName, os.O_RDWR)
		}
		if err != nil {
			return nil, safe.WriteError(err, "open %s/%s for writing", safe.OwnDir, FileName)
		}
		err = flock(f)
	}
	switch {
	case errors.Is(err, ErrBusy):
		err := fmt.Errorf("%w: %s; give each agent a data volume of its own", ErrHeld, readHolder(f))
		return nil, errors.Join(err, f.Close())
	case errors.Is(err, errors.ErrUnsupported):
		own.Vol.Log.Warn("data volume has no file locks")
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock the data directory: %w", err), f.Close())
	}
	return f, nil
}

// open opens the lock file for reading only, so that an idle agent does not prevent a read-only remount of its volume.
func open(own *safe.AgentFolder) (*os.File, error) {
	f, _, err := own.OpenFile(FileName)
	if errors.Is(err, safe.ErrDamaged) {
		if err = own.Vol.SetAside(own.Folder, FileName, err); err == nil {
			err = fs.ErrNotExist
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = own.Vol.Create(own.Folder, FileName, 0o600); err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // fs.ErrExist: another agent created it
		return nil, err
	}
	f, _, err = own.File(FileName, os.O_RDONLY)
	return f, err
}

// wantsWriter reports whether the kernel refused a lock because the file is not open for writing. NFS implements flock by
// byte-range locks, which need that for exclusive locks: most clients return EBADF, some EIO.
func wantsWriter(err error) bool { return errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EIO) }

// writeHolder writes to the locked file which process holds the lock.
func writeHolder(own *safe.AgentFolder, locked *os.File) error {
	host, _ := os.Hostname() // informative only
	b, err := json.Marshal(holder{os.Getpid(), host, own.Vol.Now().UTC()})
	if err != nil {
		return err
	}
	f, now, err := own.File(FileName, os.O_RDWR)
	if err != nil {
		return err
	}
	before, err := locked.Stat()
	if err == nil && !safe.SameFile(before, now) {
		err = errors.New("it was replaced")
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	err = own.Vol.Fill(own.Join(FileName), func() error {
		if err := f.Truncate(0); err != nil {
			return err
		}
		_, err := f.WriteAt(append(b, '\n'), 0)
		return err
	})
	return errors.Join(err, f.Close())
}

// readHolder describes the process that the lock file names.
func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
	var h holder
	if err != nil || json.Unmarshal(b, &h) != nil {
		return "its holder is unknown"
	}
	return fmt.Sprintf("process %d on %s has held the lock since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}
