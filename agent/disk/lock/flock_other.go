//go:build !unix

package lock

import (
	"errors"
	"os"
)

var errLocked = errors.New("locked by another process")

// Flock returns errors.ErrUnsupported.
func Flock(*os.File) error { return errors.ErrUnsupported }

func unlock(*os.File) {}
