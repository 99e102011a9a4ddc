package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	numberOffset = 0
	archOffset   = 4
)

// run replaces this process by a program. It returns only if that fails.
func run(args []string) error {
	if len(args) == 0 {
		return errors.New("which program?")
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter belongs to the thread, and exec keeps it
	if err := ignoreSyncs(); err != nil {
		return err
	}
	return syscall.Exec(program, args, os.Environ())
}

// ignoreSyncs installs the filter on this thread.
func ignoreSyncs() error {
	arch, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return fmt.Errorf("not on %s", runtime.GOARCH)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	filter := program(arch, []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS})
	list := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0); err != nil {
		return fmt.Errorf("seccomp filter: %w", err)
	}
	runtime.KeepAlive(filter)
	return nil
}

// program returns the filter: the given calls of this architecture return 0 without being made, all others are made.
func program(arch uint32, calls []uint32) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		done  = unix.BPF_RET | unix.BPF_K
	)
	all := []unix.SockFilter{
		{Code: load, K: archOffset},
		{Code: equal, K: arch, Jf: uint8(len(calls) + 1)}, // other architectures have other numbers
		{Code: load, K: numberOffset},
	}
	for i, call := range calls {
		all = append(all, unix.SockFilter{Code: equal, K: call, Jt: uint8(len(calls) - i)})
	}
	return append(all,
		unix.SockFilter{Code: done, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: done, K: unix.SECCOMP_RET_ERRNO}, // errno 0: success
	)
}
