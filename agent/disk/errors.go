package disk

import (
	"errors"
)

// ErrLocked means that another agent writes this data directory.
var ErrLocked = errors.New("the data directory belongs to another agent")

// ErrReadOnly means that the Dir was opened read-only.
var ErrReadOnly = errors.New("the data directory was opened read-only")

// ErrMoved means that the open directory, or the agent's files in it, are no longer what the path leads to; see
// Dir.Current.
var ErrMoved = errors.New("the data directory is not the one that was opened")
