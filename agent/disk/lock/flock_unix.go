//go:build unix

package lock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

var errLocked = errors.New("locked by another process")

// Flock locks an open file, and does not wait.
func Flock(f *os.File) error {
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
		return errLocked
	case errors.Is(inner, unix.ENOLCK), errors.Is(inner, unix.ENOSYS), errors.Is(inner, unix.EOPNOTSUPP):
		return errors.ErrUnsupported
	}
	return os.NewSyscallError("flock", inner)
}

func unlock(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.Flock(int(fd), unix.LOCK_UN) })
	}
}
