package disk

import (
	"errors"
	"fmt"
)

// ErrLocked means that another agent writes this data directory.
var ErrLocked = errors.New("the data directory belongs to another agent")

// ErrDamaged means that one of the agent's own files in .stoker is not valid.
var ErrDamaged = errors.New("damaged")

// ErrReadOnly means that the Dir was opened read-only.
var ErrReadOnly = errors.New("the data directory was opened read-only")

// ErrMoved means that the open directory, or the agent's files in it, are no longer what the path leads to; see
// Dir.Current.
var ErrMoved = errors.New("the data directory is not the one that was opened")

// damaged returns an error that wraps ErrDamaged.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}
