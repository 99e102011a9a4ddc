package process

import "syscall"

// bound ties a child to its starter. The group is its own: an interrupt at the terminal is for the starter, which then
// ends its programs in order.
func bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
