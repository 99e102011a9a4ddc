package sync_test

import (
	"hash/fnv"
	"math/bits"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
)

const (
	// flipEnv makes the simulated gateways of this package differ from the default in the properties that are unknown
	// of a real gateway: all tests flip the unknown that it names, or with flipSample a half of them that depends on
	// the name of the test.
	flipEnv    = "STOKER_TEST_UNKNOWN"
	flipSample = "sample"
	// fullEnv makes TestUnknowns run the package once for each unknown, which takes about ten minutes.
	fullEnv = "STOKER_TEST_FULL"
)

// unknowns flips the unknowns that flipEnv selects for a test.
func unknowns(t *testing.T, u simulator.Unknowns) simulator.Unknowns {
	t.Helper()
	fields := reflect.ValueOf(&u).Elem()
	flip := func(field reflect.Value) { field.SetBool(!field.Bool()) }
	switch name := os.Getenv(flipEnv); name {
	case "":
	case flipSample:
		row := rowOf(t.Name())
		for i, rows := range columns(t, fields.NumField()) {
			if rows&(1<<row) != 0 {
				flip(fields.Field(i))
			}
		}
	default:
		field := fields.FieldByName(name)
		require.True(t, field.IsValid(), "there is no unknown %s", name)
		flip(field)
	}
	return u
}

// rowCount is the number of rows of the covering array. Eight rows cover the pairs of up to 35 unknowns.
const rowCount = 8

// columns returns a covering array of strength 2 (Kleitman and Spencer): column i is the set of rows that flip unknown
// i, as a bit mask. Each column has half of the rows, and row 0 is in every column; so any two columns have a row with
// both, with neither, and with either one alone.
func columns(t *testing.T, n int) []uint8 {
	t.Helper()
	var list []uint8
	for set := range 1 << rowCount {
		if set&1 == 1 && bits.OnesCount(uint(set)) == rowCount/2 {
			list = append(list, uint8(set))
		}
	}
	require.LessOrEqual(t, n, len(list), "more rows are needed")
	return list[:n]
}

func rowOf(test string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(test)) // a hash never fails
	return h.Sum32() % rowCount
}

func TestUnknownsCoverPairs(t *testing.T) {
	list := columns(t, reflect.TypeFor[simulator.Unknowns]().NumField())
	for i, a := range list {
		for _, b := range list[:i] {
			for _, rows := range []uint8{a & b, a &^ b, b &^ a, ^(a | b)} {
				assert.NotZero(t, rows)
			}
		}
	}
}
