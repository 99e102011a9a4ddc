package v1alpha1

import "fmt"

// Error is an error with a reason. Its text says what is wrong and what to do.
//
// +kubebuilder:object:generate=false
type Error struct {
	Reason Reason
	err    error
}

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// NewError returns an Error. The arguments are those of fmt.Errorf.
func NewError(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, err: fmt.Errorf(format, args...)}
}
