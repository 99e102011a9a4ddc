//go:build !unix

package lock

import (
	"errors"
	"os"
)

// Flock returns errors.ErrUnsupported.
func Flock(*os.File) error { return errors.ErrUnsupported }

func unlock(*os.File) {}
