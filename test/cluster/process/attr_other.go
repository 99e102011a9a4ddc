//go:build !linux

package process

import "syscall"

// Bound cannot tie a child to its starter here. Only Linux, which Kubernetes needs, keeps the package's promise.
func Bound() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped assumes that the signal took effect.
func stopped(int) (bool, error) { return true, nil }
