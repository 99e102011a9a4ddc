//go:build !unix

package disk

import (
	"errors"
	"os"
)

var errLockHeld = errors.New("held by another process")

func flock(*os.File) error { return errors.ErrUnsupported }

func unlock(*os.File) {}
