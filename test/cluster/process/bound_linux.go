package process

import "syscall"

// Bound ties a child to the thread that starts it, which has to be locked for as long as the child is to live. The group is its
// own: an interrupt at the terminal is for the starter, which then ends its programs in order.
func Bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
