package safe

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// ErrDamaged means that one of the agent's own files in .stoker is not valid.
var ErrDamaged = errors.New("damaged")

// Damaged returns an error that wraps ErrDamaged.
func Damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// WriteError wraps an error of a write. It turns errors about space, limits, a read-only volume and permissions into failures
// with a reason, and keeps an existing reason.
func WriteError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: no space or inodes left; free space on the gateway's data volume: %w", what, err)
	case errors.Is(err, syscall.EDQUOT):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: disk quota exceeded; raise it or free space: %w", what, err)
	case errors.Is(err, syscall.EROFS):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: the data volume is read-only; mount it writable: %w", what, err)
	case errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonWriteFailed, "%s: the file exceeds the size limit of the process or file system: %w", what, err)
	case errors.Is(err, fs.ErrPermission):
		return failure.New(v1alpha1.ReasonWriteFailed, "%s: permission denied; run the agent with the gateway's uid and gid, and restore the mode of the file or directory: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
