//go:build !linux || race

package builder

import (
	"os"
	"time"
)

// self returns the path of the running program.
func self() (string, error) { return os.Executable() }

// limit does nothing here. The shared program runs on Linux; elsewhere a user builds what that user chose. The race detector reserves
// terabytes of addresses, which no limit of memory allows.
func limit(time.Duration, uint64) error { return nil }
