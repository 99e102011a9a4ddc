package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bound ties a child to the thread that starts it, which has to be locked for as long as the child is to live. The group is its
// own: an interrupt at the terminal is for the starter, which then ends its programs in order.
func Bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether a child has stopped with all its threads. It leaves the child to be waited for.
func stopped(pid int) (bool, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
	switch {
	case errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("state of process %d: %w", pid, err)
	}
	return info.Signo != 0, nil
}
