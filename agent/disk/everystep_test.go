//go:build linux && !race

// These tests enumerate crashes and are not concurrent. `make test` runs them without the race detector, which would only slow them
// down.

package disk

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
)

// F14: after a crash at any step, the next start finds one commit or the other, and nothing is lost.
func TestCrashAfterAnyStep(t *testing.T) {
	modes := []struct {
		name               string
		cut, strict, quiet bool
		plain, snapshots   bool
		whole              bool
		copied             func(testing.TB, string)
	}{
		{name: "process dies"},
		{name: "power cut, names kept in order", cut: true},
		{name: "power cut, names kept by directory", cut: true, strict: true},
		{name: "power cut, nothing to save", cut: true, strict: true, quiet: true},
		{name: "process dies, no exchange", plain: true},
		{name: "process dies, with a snapshot", snapshots: true},
		{name: "power cut, with a snapshot", snapshots: true, cut: true, strict: true},
		{name: "power cut, with a snapshot, no exchange", snapshots: true, cut: true, plain: true},
		{name: "process dies, with a snapshot, copied by file", snapshots: true, copied: copyByFile},
		{name: "power cut, no exchange", cut: true, plain: true},
		{name: "process dies, copied by file", copied: copyByFile},
		{name: "process dies, copied by file, no exchange", plain: true, copied: copyByFile},
		{name: "power cut, copied by file, same inode numbers", cut: true, copied: copyToSameInodes},
		{name: "process dies, directories staged whole", whole: true},
		{name: "power cut, directories staged whole", whole: true, cut: true, strict: true},
		{name: "power cut, directories staged whole, copied by file", whole: true, cut: true, copied: copyByFile},
		{name: "process dies, directories staged whole, with a snapshot", whole: true, snapshots: true},
	}
	type world struct{ plain, quiet, snapshots, whole bool }
	same := map[world]int{} // the number of modes whose sync takes the same steps
	for _, mode := range modes {
		same[world{mode.plain, mode.quiet, mode.snapshots, mode.whole}]++
	}
	seen := map[world]int{}
	for _, mode := range modes {
		of := world{mode.plain, mode.quiet, mode.snapshots, mode.whole}
		seen[of]++
		first, every := 1, 1
		if testing.Short() { // the modes of one world share every seventh of its steps; otherwise each mode takes them all
			first, every = stride(1)*(seen[of]-1)+1, stride(1)*same[of]
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld()
			w.plain, w.snapshots, w.whole, w.mayLack = mode.plain, mode.snapshots, mode.whole, mode.copied != nil
			if w.quiet = mode.quiet; w.quiet {
				w.gateways = nil
			}
			n := w.steps(t)
			ends := map[bool]int{}
			for stop := first; stop <= n; stop += every {
				ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
					root := w.build(t)
					c := newPowerCut(t, root)
					c.stop, c.strict = stop, mode.strict
					_, err := w.run(t, root, c)
					if stop < n-10 { // the last steps only remove leftovers, and may fail
						require.Error(t, err)
					}
					if mode.cut {
						c.cut()
					}
					if mode.copied != nil {
						mode.copied(t, root)
					}
					ends[w.check(t, root)]++
				})
				if !ok {
					return
				}
			}
			assert.Positive(t, ends[true])
			assert.Positive(t, ends[false])
		})
	}
}

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
