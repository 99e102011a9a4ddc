//go:build !linux

package process

import "syscall"

// bound cannot tie a child to its starter here: the promise of the package holds on Linux only, where Kubernetes runs.
func bound() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
