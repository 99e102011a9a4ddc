// Package leak tells of goroutines that outlive a test. goleak itself waits for half a second, which a machine with other
// things to do lets pass.
package leak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// endsWithin bounds how long a goroutine takes that was told to end: far above what a loaded machine needs.
const endsWithin = time.Minute

// Main runs the tests of a package, and fails where they pass and leave goroutines behind.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(endsWithin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// None fails a test that leaves goroutines behind. It knows nothing of tests that run beside it.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(endsWithin, options...); err != nil {
		t.Error(err)
	}
}

func find(within time.Duration, options ...goleak.Option) error {
	for began := time.Now(); ; {
		err := goleak.Find(options...)
		if err == nil || time.Since(began) > within {
			return err
		}
	}
}
