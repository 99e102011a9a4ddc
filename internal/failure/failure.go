// Package failure holds an error type with a reason from the closed list of api/v1alpha1 and a sentence for people. What happens
// next depends on the class of the reason, never on the text.
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
type Error = v1alpha1.Error

// New returns an Error. The format is that of fmt.Errorf: %w keeps the cause reachable for errors.Is and errors.As.
func New(reason v1alpha1.Reason, format string, args ...any) *Error {
	return v1alpha1.NewError(reason, format, args...)
}

// Reason returns the reason that err carries, or fallback if it carries none.
func Reason(err error, fallback v1alpha1.Reason) v1alpha1.Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return fallback
}

// Is reports whether err carries reason.
func Is(err error, want v1alpha1.Reason) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == want
}

// MaxQuoted is how many bytes of a text Quote shows.
const MaxQuoted = 200

// Quote makes text from outside safe to print in a message: bounded, on one line, with control characters escaped.
func Quote(s string) string {
	if len(s) > MaxQuoted {
		s = head(s, MaxQuoted) + "…"
	}
	return strconv.Quote(strings.TrimSpace(s))
}

// Cut truncates a text to at most n bytes, with an ellipsis at the end, and returns "" if there is no room for the ellipsis. It does not split
// a character, and replaces invalid UTF-8.
func Cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	switch {
	case len(s) <= n:
		return s
	case n < len("…"):
		return ""
	}
	return head(s, n-len("…")) + "…"
}

// First joins the first entries of a list for a message, and says how many more there are.
func First(list []string, most int) string {
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// head returns the characters of s that fit into n bytes. s must be longer.
func head(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
