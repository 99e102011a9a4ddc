package repo

import (
	"errors"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Limits bounds what a repository may cost. Zero fields take the default.
type Limits struct {
	// Objects is the number of objects in one pack; default 4,000,000.
	Objects int
	// ObjectBytes is the inflated size of one blob; default 512 MiB.
	ObjectBytes int64
	// TreeBytes is the inflated size of a tree, a commit or a tag, which are held in memory; default 32 MiB.
	TreeBytes int64
	// PackBytes is the size of one pack on disk; default 8 GiB.
	PackBytes int64
	// InflatedBytes is the sum of what the entries of one pack inflate to and their deltas make; default 64 GiB.
	InflatedBytes int64
	// DeltaDepth is the length of a chain of deltas; default 4,095, the most that git itself writes.
	DeltaDepth int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	setInt := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	setInt(&l.Objects, 4_000_000)
	set(&l.ObjectBytes, 512<<20)
	set(&l.TreeBytes, 32<<20)
	set(&l.PackBytes, 8<<30)
	set(&l.InflatedBytes, 64<<30)
	setInt(&l.DeltaDepth, 4095)
	return l
}

// size checks the inflated size that an object claims.
func (l *Limits) size(k kind, n int64) error {
	if n > l.ObjectBytes {
		return overLimit("one object is %d bytes, more than the %d bytes that a file of the repository may have", n, l.ObjectBytes)
	}
	if k != kindBlob && !k.delta() && n > l.TreeBytes {
		return overLimit("a %s is %d bytes, more than %d", k, n, l.TreeBytes)
	}
	return nil
}

func overLimit(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "the repository is over a limit: "+format, args...)
}

// errCorrupt is in the chain of every error that says that packed bytes are not what they must be.
var errCorrupt = errors.New("damaged git data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}
