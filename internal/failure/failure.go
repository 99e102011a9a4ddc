// Package failure holds the error type that crosses the packages of the agent: a reason from the closed list of api/v1alpha1
// and a sentence for people. What happens next depends on the class of the reason, never on the text.
package failure

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
)

// Error is an error with a reason. Its text says what is wrong and what to do, and never holds a secret.
type Error struct {
	Reason v1alpha1.Reason
	err    error
}

// New returns an Error. The format is that of fmt.Errorf: %w keeps the cause reachable for errors.Is and errors.As.
func New(reason v1alpha1.Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, err: fmt.Errorf(format, args...)}
}

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// Reason returns the reason that err carries, as an Error or a v1alpha1.Error, or fallback if it carries none.
func Reason(err error, fallback v1alpha1.Reason) v1alpha1.Reason {
	if r, ok := reason(err); ok {
		return r
	}
	return fallback
}

// Is reports whether err carries reason.
func Is(err error, want v1alpha1.Reason) bool {
	r, ok := reason(err)
	return ok && r == want
}

func reason(err error) (v1alpha1.Reason, bool) {
	if f, ok := errors.AsType[*Error](err); ok {
		return f.Reason, true
	}
	if f, ok := errors.AsType[*v1alpha1.Error](err); ok {
		return f.Reason, true
	}
	return "", false
}

// MaxQuoted is how many bytes of a text Quote shows.
const MaxQuoted = 200

// Quote makes text from outside safe to print in a message: bounded, on one line, with control characters escaped.
func Quote(s string) string {
	if len(s) > MaxQuoted {
		s = s[:MaxQuoted]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s += "…"
	}
	return strconv.Quote(strings.TrimSpace(s))
}
