//go:build !linux || race

package builder

import (
	"os"
	"time"
)

// self returns the path of the running program.
func self() (string, error) { return os.Executable() }

// limit does nothing here. `stoker config run`, which builds the files of many users, runs on Linux; elsewhere users build files of their own
// choice. The race detector reserves terabytes of addresses, which no limit of memory allows.
func limit(time.Duration, uint64) error { return nil }
