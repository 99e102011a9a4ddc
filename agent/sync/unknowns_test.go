package sync_test

import (
	"os"
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
