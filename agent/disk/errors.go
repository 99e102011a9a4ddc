package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// ErrLocked says that another agent writes this data directory.
var ErrLocked = errors.New("the data directory belongs to another agent")

// ErrDamaged says that a file of the agent's own in .stoker cannot be read as what it should be.
var ErrDamaged = errors.New("damaged")

// ErrReadOnly says that the Dir was opened only to look.
var ErrReadOnly = errors.New("the data directory was opened read-only")

// ErrMoved says that the open directory, or what the agent has in it, is no longer what its path leads to; see Dir.Current.
var ErrMoved = errors.New("the data directory is not the one that was opened")

// damaged makes an error that is ErrDamaged and says what is wrong.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// writing wraps an error of a write: one that means "no room" or "not writable" becomes a failure with its reason, and
// one that has a reason keeps it.
func writing(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: no space or no inodes left; make room on the gateway's data volume: %w", what, err)
	case errors.Is(err, syscall.EDQUOT):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: the quota is used up; raise it or make room: %w", what, err)
	case errors.Is(err, syscall.EROFS):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: the data volume is read-only; mount it writable: %w", what, err)
	case errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: the file is larger than this process or file system may write: %w", what, err)
	case errors.Is(err, fs.ErrPermission):
		return failure.New(v1alpha1.ReasonWriteFailed, "%s: not permitted for this user; run the agent with the gateway's uid and gid, and give the file or directory its mode again: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
