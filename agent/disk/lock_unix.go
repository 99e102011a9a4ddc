//go:build unix

package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

var errLockHeld = errors.New("held by another process")

func flock(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return err
	}
	switch {
	case errors.Is(inner, unix.EWOULDBLOCK):
		return errLockHeld
	case errors.Is(inner, unix.ENOLCK), errors.Is(inner, unix.ENOSYS), errors.Is(inner, unix.EOPNOTSUPP):
		return errors.ErrUnsupported
	}
	return os.NewSyscallError("flock", inner)
}

// unlock releases the lock at once. Closing the file alone would not, as long as a child process started meanwhile has
// it open.
func unlock(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.Flock(int(fd), unix.LOCK_UN) })
	}
}
