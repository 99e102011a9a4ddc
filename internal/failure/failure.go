// Package failure holds the one error type that crosses the rooms of the agent: a reason from the closed list of
// api/v1alpha1 and a sentence for people. What happens next follows from the reason's class, never from the text.
package failure

import (
	"errors"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
)

// Error is an outcome that has a name. Its text says what is wrong and what to do, and never holds a secret.
type Error struct {
	Reason v1alpha1.Reason
	err    error
}

// New makes an Error. The format is that of fmt.Errorf: %w keeps the cause reachable for errors.Is and errors.As.
func New(reason v1alpha1.Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, err: fmt.Errorf(format, args...)}
}

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// Reason returns the reason of the outermost Error in err's chain, or fallback where there is none.
func Reason(err error, fallback v1alpha1.Reason) v1alpha1.Reason {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Reason
	}
	return fallback
}

// Is reports whether the outermost Error in err's chain carries reason.
func Is(err error, reason v1alpha1.Reason) bool {
	f, ok := errors.AsType[*Error](err)
	return ok && f.Reason == reason
}
