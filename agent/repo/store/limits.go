package store

import (
	"errors"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Limits bounds the cost of a repository. Zero fields take the default.
type Limits struct {
	// Objects is the number of objects in one pack; default 4,000,000.
	Objects int
	// DeltaBytes is the inflated size of a delta, and of a blob that is the base or the result of a delta, which needs space
	// beside the packs; default 512 MiB, because git makes no deltas of larger files (core.bigFileThreshold). Other blobs are
	// bounded only by the sums below: the sync decides whether a file is too large for a gateway.
	DeltaBytes int64
	// TreeBytes is the inflated size of a tree, a commit or a tag, which are read into memory; default 32 MiB.
	TreeBytes int64
	// PackBytes is the size of one pack on disk; default 8 GiB.
	PackBytes int64
	// InflatedBytes is the sum of the inflated entries of one pack and the results of their deltas; default 64 GiB.
	InflatedBytes int64
	// DeltaDepth is the length of a chain of deltas; default 4,095, the longest that git writes.
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
	set(&l.DeltaBytes, 512<<20)
	set(&l.TreeBytes, 32<<20)
	set(&l.PackBytes, 8<<30)
	set(&l.InflatedBytes, 64<<30)
	setInt(&l.DeltaDepth, 4095)
	return l
}

// size checks the inflated size that an entry of a pack claims.
func (l *Limits) size(k kind, n int64) error {
	switch {
	case k.delta():
		return l.scratch(k, n)
	case k != kindBlob && n > l.TreeBytes:
		return OverLimit("a %s is %d bytes, more than %d", k, n, l.TreeBytes)
	}
	return nil
}

// scratch is size for an object that is a delta, or the base or the result of one.
func (l *Limits) scratch(k kind, n int64) error {
	if n > l.DeltaBytes {
		return OverLimit("an object is packed as a delta and has %d bytes, more than the %d for such objects", n, l.DeltaBytes)
	}
	if k.delta() {
		return nil
	}
	return l.size(k, n)
}

// OverLimit returns the error for a repository that exceeds a limit.
func OverLimit(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "the repository is over a limit: "+format, args...)
}

// ErrCorrupt is in the chain of every error that reports malformed git data.
var ErrCorrupt = errors.New("damaged git data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

// maxTreeDepth is how many directories may be nested.
const maxTreeDepth = 1 << 10
