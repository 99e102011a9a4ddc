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

// endTimeout is how long goroutines may take to end: far more than a loaded machine needs.
const endTimeout = time.Minute

// Main runs the tests of a package, and fails if they pass but leave goroutines behind.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(endTimeout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// None fails a test that leaves goroutines behind. It cannot tell them from those of parallel tests.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := find(endTimeout, options...); err != nil {
		t.Error(err)
	}
}

// find repeats goleak.Find until it finds no goroutine or the timeout has passed.
func find(timeout time.Duration, options ...goleak.Option) error {
	for began := time.Now(); ; {
		err := goleak.Find(options...)
		if err == nil || time.Since(began) > timeout {
			return err
		}
	}
}
