//go:build !race

// This test enumerates and is not concurrent itself. `make test` runs it without the race detector, which would only slow it down.

package sync_test

import (
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

// ofGit matches tests of git, the store and approvals, whose gateway requests other tests cover.
const ofGit = "^(Fuzz|TestAnHour|TestLooksAtDrift|TestALookAtDrift|TestWithTheStoreLost|TestLeaveForAMassDeletion|TestAToldDeletion|TestTheLongestList)"

// An unknown property of the real gateway must not matter. Every test must pass with each unknown flipped.
func TestEveryTestPassesWithEachUnknownTurned(t *testing.T) {
	if os.Getenv(flipEnv) != "" {
		t.Skip("this is one of the runs")
	}
	if testing.Short() {
		t.Skip("runs the package's tests once for each unknown")
	}
	type outcome struct {
		out []byte
		err error
	}
	all, turns := reflect.TypeFor[simulator.Unknowns](), make(chan struct{}, 4) // the runs wait for disks and timers
	outcomes := make([]chan outcome, all.NumField())
	for i := range outcomes {
		outcomes[i] = make(chan outcome, 1)
		go func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.failfast", "-test.timeout=5m", "-test.skip="+ofGit)
			cmd.Env = append(os.Environ(), flipEnv+"="+all.Field(i).Name)
			out, err := cmd.CombinedOutput()
			outcomes[i] <- outcome{out, err}
		}()
	}
	for i := range outcomes {
		t.Run(all.Field(i).Name, func(t *testing.T) {
			o := <-outcomes[i]
			require.NoError(t, o.err, "%s", o.out)
		})
	}
}
