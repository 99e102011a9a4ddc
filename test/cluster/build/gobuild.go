package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/cluster/process"
)

// atMost bounds one go build. An uncached build of Kubernetes takes minutes on two idle cores, and many on busy ones.
const atMost = time.Hour

// goBuild builds a static program, with progress messages.
func (c *Cache) goBuild(ctx context.Context, what, dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stdout, cmd.Stderr = &said, &said
	// The compilers are in its process group and end with it. The build itself ends with this process, because the
	// kernel ties it to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = process.Bound()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			took := time.Since(began).Round(time.Second)
			if err != nil {
				return fmt.Errorf("build %s: %w after %s\n%s", what, err, took, end(said.String()))
			}
			if took >= 15*time.Second {
				fmt.Fprintf(c.Say, "built %s in %s\n", what, took)
			}
			return nil
		case <-ticker.C:
			fmt.Fprintf(c.Say, "building %s … %s (once for each version; it is kept)\n", what, time.Since(began).Round(time.Second))
		}
	}
}

// end returns the end of a build's output.
func end(said string) string {
	const most = 4000
	return strings.TrimSpace(said[max(0, len(said)-most):])
}
