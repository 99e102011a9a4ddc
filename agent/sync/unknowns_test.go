package sync_test

import (
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

// flipEnv names the one unknown that all tests of this package run with.
const flipEnv = "STOKER_TEST_UNKNOWN"

// unknowns turns the switch of flipEnv.
func unknowns(t *testing.T, u simulator.Unknowns) simulator.Unknowns {
	t.Helper()
	if name := os.Getenv(flipEnv); name != "" {
		field := reflect.ValueOf(&u).Elem().FieldByName(name)
		require.True(t, field.IsValid(), "there is no unknown %s", name)
		field.SetBool(!field.Bool())
	}
	return u
}

// What is not known of the real gateway must not matter: each unknown is turned alone, and every test passes.
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
	all, turns := reflect.TypeFor[simulator.Unknowns](), make(chan struct{}, 4) // the runs wait for disks and timers, not for processors
	outcomes := make([]chan outcome, all.NumField())
	for i := range outcomes {
		outcomes[i] = make(chan outcome, 1)
		go func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.failfast", "-test.timeout=5m", "-test.skip=^(Fuzz|TestAnHour)")
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
