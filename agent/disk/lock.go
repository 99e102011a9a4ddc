package disk

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
	lockFile  = "lock"
	maxHolder = 4 << 10 // bytes of the lock file
)

// holder is the content of the lock file.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// lock is the locked file in .stoker.
type lock struct {
	own   *safe.AgentFolder
	f     *os.File // nil if not locked
	flock func(*os.File) error
}

// take makes this process the only writer. The kernel's lock ends with the process; the file's content only informs
// users.
//
// take never writes to a file that no agent can have created: it may have another hard link outside .stoker, or may
// have been moved here by a user. take sets such a file aside, but only after locking it, in case an agent does use it.
func (l *lock) take() error {
	for range 10 {
		if err := l.try(); err != nil {
			return err
		}
		why := l.unexpected()
		if why == nil {
			// A full disk must not prevent the start of the agent, which may free space.
			if err := l.writeHolder(); err != nil {
				l.own.Vol.Log.Warn("cannot write the lock file", "error", err)
			}
			return nil
		}
		if err := errors.Join(l.own.Vol.SetAside(l.own.Folder, lockFile, why), l.f.Close()); err != nil {
			return err
		}
		l.f = nil
	}
	return fmt.Errorf("%w: another process keeps replacing %s/%s; find and stop it", safe.ErrDamaged, safe.OwnDir, lockFile)
}

// unexpected returns why no agent can have made the locked file, or nil if an agent may have made it.
func (l *lock) unexpected() error {
	fi, err := l.f.Stat()
	if err != nil {
		return err
	}
	if a := safe.AttrsOf(fi); a.Known && a.Links != 1 {
		return fmt.Errorf("it has %d hard links", a.Links)
	}
	const start = `{"pid":`
	b := make([]byte, len(start))
	n, err := l.f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// After a crash it may be empty, or contain bytes that were never written.
	if b = bytes.Trim(b[:n], "\x00"); fi.Size() > maxHolder || string(b) != start[:len(b)] {
		return errors.New("no agent wrote its content")
	}
	return nil
}

func (l *lock) try() error {
	f, err := l.open()
	if err != nil {
		return safe.WriteError(err, "open %s/%s", safe.OwnDir, lockFile)
	}
	err = l.flock(f)
	if wantsWriter(err) {
		if f, err = l.reopen(f); err != nil {
			return safe.WriteError(err, "open %s/%s for writing", safe.OwnDir, lockFile)
		}
		err = l.flock(f)
	}
	switch {
	case errors.Is(err, errLockHeld):
		err := fmt.Errorf("%w: %s; give each agent a data volume of its own", ErrLocked, readHolder(f))
		return errors.Join(err, f.Close())
	case errors.Is(err, errors.ErrUnsupported):
		l.own.Vol.Log.Warn("data volume without file locks")
	case err != nil:
		return errors.Join(fmt.Errorf("lock the data directory: %w", err), f.Close())
	}
	l.f = f
	return nil
}

// open opens the lock file for reading only, so that an idle agent does not prevent a read-only remount of its
// volume.
func (l *lock) open() (*os.File, error) {
	f, _, err := l.own.OpenFile(lockFile)
	if errors.Is(err, safe.ErrDamaged) {
		if err = l.own.Vol.SetAside(l.own.Folder, lockFile, err); err == nil {
			err = fs.ErrNotExist
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = l.own.Vol.Create(l.own.Folder, lockFile, 0o600); err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // fs.ErrExist: another agent was faster
		return nil, err
	}
	f, _, err = l.own.File(lockFile, os.O_RDONLY)
	return f, err
}

// wantsWriter reports whether a lock was refused because its file is not open for writing. NFS implements flock by
// byte-range locks, which need that for exclusive locks: most clients return EBADF, some EIO.
func wantsWriter(err error) bool { return errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EIO) }

// reopen reopens the lock file for writing.
func (l *lock) reopen(f *os.File) (*os.File, error) {
	if err := f.Close(); err != nil {
		return nil, err
	}
	f, _, err := l.own.File(lockFile, os.O_RDWR)
	return f, err
}

func (l *lock) writeHolder() error {
	host, _ := os.Hostname() // informative only
	b, err := json.Marshal(holder{os.Getpid(), host, l.own.Vol.Now().UTC()})
	if err != nil {
		return err
	}
	f, is, err := l.own.File(lockFile, os.O_RDWR)
	if err != nil {
		return err
	}
	locked, err := l.f.Stat()
	if err == nil && !os.SameFile(locked, is) {
		err = fmt.Errorf("%w: it was replaced", ErrMoved)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	err = l.own.Vol.Fill(l.own.Join(lockFile), func() error {
		if err := f.Truncate(0); err != nil {
			return err
		}
		_, err := f.WriteAt(append(b, '\n'), 0)
		return err
	})
	return errors.Join(err, f.Close())
}

func readHolder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
	var h holder
	if err != nil || json.Unmarshal(b, &h) != nil {
		return "its holder is unknown"
	}
	return fmt.Sprintf("process %d on %s has held the lock since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}
