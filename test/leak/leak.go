// Package leak finds goroutines that outlive a test. goleak itself waits only half a second, which is too short on a loaded
// machine.
package leak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// endsWithin is how long goroutines may take to end: far more than a loaded machine needs.
const endsWithin = time.Minute

// Main runs the tests of a package, and fails if they pass but leave goroutines behind.
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

// None fails a test that leaves goroutines behind. It cannot tell them from those of parallel tests.
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
