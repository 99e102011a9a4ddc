//go:build !linux

package process

import "syscall"

// TiedToThread does not tie a child to its starter: only Linux can, which Kubernetes needs anyway.
func TiedToThread() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped assumes that the signal took effect.
func stopped(int) (bool, error) { return true, nil }
