//go:build !race

// This test repeats the tests of the package, which the race detector checks already.

package sync_test

import (
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

// ofGit matches tests of git, the store and approvals, whose gateway requests other tests cover, and the simulated hour.
const ofGit = "^(Fuzz|TestIdleHour|TestDriftCheck|TestLostStore|TestMassDeletionApproval)"

// An unknown property of the real gateway must not matter. Every test must pass whatever the unknowns are. By default,
// the package runs once more with half of them flipped, so that all pairs of values occur, though not in every test.
func TestUnknowns(t *testing.T) {
	if os.Getenv(flipEnv) != "" {
		t.Skip("this is one of the runs")
	}
	if testing.Short() {
		t.Skip("repeats the package's tests")
	}
	runs := []string{flipSample}
	if os.Getenv(fullEnv) != "" {
		for field := range reflect.TypeFor[simulator.Unknowns]().Fields() {
			runs = append(runs, field.Name)
		}
	}
	for _, flip := range runs {
		t.Run(flip, func(t *testing.T) {
			t.Parallel() // the runs also wait for disks and timers
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.short", "-test.failfast", "-test.timeout=15m", "-test.skip="+ofGit)
			cmd.Env = append(os.Environ(), flipEnv+"="+flip)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
