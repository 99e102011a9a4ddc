package sync_test

import (
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

// flipEnv names the unknown that is flipped in all tests of this package.
const flipEnv = "STOKER_TEST_UNKNOWN"

// unknowns flips the unknown that flipEnv names.
func unknowns(t *testing.T, u simulator.Unknowns) simulator.Unknowns {
	t.Helper()
	if name := os.Getenv(flipEnv); name != "" {
		field := reflect.ValueOf(&u).Elem().FieldByName(name)
		require.True(t, field.IsValid(), "there is no unknown %s", name)
		field.SetBool(!field.Bool())
	}
	return u
}
