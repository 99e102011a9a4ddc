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

// buildTimeout is the timeout of one go build. A first build of Kubernetes takes minutes on two idle cores.
const buildTimeout = time.Hour

// goBuild builds a static program, with progress messages.
func (c *Cache) goBuild(ctx context.Context, what, dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	var output strings.Builder
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(nestedEnv(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = &output, &output
	// The compilers are in its process group and end with it. The build itself ends with this process, because the
	// kernel ties it to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = process.TiedToThread()
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
				return fmt.Errorf("build %s: %w after %s\n%s", what, err, took, lastOutput(output.String()))
			}
			if took >= 15*time.Second {
				fmt.Fprintf(c.Progress, "built %s in %s\n", what, took)
			}
			return nil
		case <-ticker.C:
			fmt.Fprintf(c.Progress, "building %s … %s (once for each version; it is kept)\n", what, time.Since(began).Round(time.Second))
		}
	}
}

// nestedEnv is the environment of go commands in nested modules. Some of these modules need a newer Go than the rest of the project;
// an older go command downloads it as a module.
func nestedEnv() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOTOOLCHAIN=auto")
}

// lastOutput returns the last 4000 bytes of a build's output.
func lastOutput(output string) string {
	return strings.TrimSpace(output[max(0, len(output)-4000):])
}
