package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// TiedToThread ties a child to the thread that starts it, which must stay locked for the child's life. The child has its own
// process group, so that an interrupt at the terminal goes only to the starter, which then ends its programs in order.
func TiedToThread() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether all threads of a child have stopped. It leaves the child waitable.
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
