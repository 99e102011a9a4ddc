package disk

import (
	"errors"

	"stoker.io/stoker/agent/disk/lock"
)

// ErrLocked means that another agent writes this data directory.
var ErrLocked = lock.ErrHeld

// ErrReadOnly means that the Dir was opened read-only.
var ErrReadOnly = errors.New("the data directory is open read-only")

// ErrMoved means that the open directory, or the agent's files in it, are no longer what the path leads to; see
// Dir.Current.
var ErrMoved = errors.New("the data directory was replaced while it was open")
