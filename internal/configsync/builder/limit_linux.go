//go:build !race

// With the race detector: see limit_other.go.

package builder

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// self returns the path of the running program, also if its file was replaced.
func self() (string, error) { return "/proc/self/exe", nil }

// limit bounds the CPU time and the memory of this process. After the CPU time it exits with exitCPU, or the kernel kills it two seconds later.
// If it needs more memory, it crashes.
func limit(cpu time.Duration, memory uint64) error {
	over := make(chan os.Signal, 1)
	signal.Notify(over, syscall.SIGXCPU)
	go func() {
		<-over
		os.Exit(exitCPU)
	}()
	seconds := uint64(cpu / time.Second)
	if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: seconds, Max: seconds + 2}); err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: memory, Max: memory})
}
