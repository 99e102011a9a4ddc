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

// WriteError wraps an error of a write. It turns "no space" and "not writable" into failures with a reason, and keeps an
// existing reason.
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
