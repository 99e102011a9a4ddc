//go:build linux && !race

package disk

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	envKillRoot = "DISK_TEST_KILL_ROOT"
	envKillStep = "DISK_TEST_KILL_STEP"
)

// TestKilledProcess runs in the process that TestSIGKILLAtAnyStep kills.
func TestKilledProcess(t *testing.T) {
	root := os.Getenv(envKillRoot)
	if root == "" {
		t.Skip("runs in a process of TestSIGKILLAtAnyStep")
	}
	stop, err := strconv.Atoi(os.Getenv(envKillStep))
	require.NoError(t, err)
	steps := 0
	d, err := Open(root, Options{Around: func(_ safe.Effect, do func() error) error {
		if steps++; steps == stop {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return do()
	}})
	require.NoError(t, err)
	_, err = newCrashWorld().sync(t, d)
	require.NoError(t, err)
}

// F14: SIGKILL at any step, and again during recovery.
func TestSIGKILLAtAnyStep(t *testing.T) {
	w := newCrashWorld()
	n, again := w.steps(t), 0
	for stop := 2; stop <= n; stop += stride(6) {
		ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
			root := w.build(t)
			// sequence: the second process recovers, and is killed, too
			for _, s := range []int{stop, stop / 2} {
				cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
				cmd.Env = append(os.Environ(), envKillRoot+"="+root, envKillStep+"="+strconv.Itoa(s))
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				if s != stop && err == nil { // it needed fewer steps
					continue
				}
				require.Error(t, err, out.String())
				require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), out.String())
				if s != stop {
					again++
				}
			}
			w.check(t, root)
		})
		if !ok {
			return
		}
	}
	require.Positive(t, again, "no second process was killed")
}
