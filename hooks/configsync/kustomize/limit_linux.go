//go:build !race

package kustomize

import (
	"syscall"
	"time"
)

// self returns the path of the running program, also if its file was replaced.
func self() (string, error) { return "/proc/self/exe", nil }

// limit bounds the CPU time and the memory of this process. The kernel kills it at the first bound; at the second one it cannot go on.
func limit(cpu time.Duration, memory uint64) error {
	seconds := uint64(cpu / time.Second)
	if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: seconds, Max: seconds}); err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: memory, Max: memory})
}
