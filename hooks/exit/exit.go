// Package exit has the exit codes of the program stoker, and the errors that carry one.
package exit

import "fmt"

// Exit codes. A code that the agent has, too, has the same meaning there.
const (
	Done       = 0
	Failed     = 1
	Usage      = 2
	Timeout    = 3
	Superseded = 4
	Forbidden  = 5
	Held       = 6
	Retry      = 7 // interrupted, or a retry may help
)

// Error is an error with the exit code of the program.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// With returns err with an exit code.
func With(code int, err error) error { return &Error{Code: code, Err: err} }

// Errorf returns an Error with the message that fmt.Errorf makes.
func Errorf(code int, format string, args ...any) error {
	return With(code, fmt.Errorf(format, args...))
}
