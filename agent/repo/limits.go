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
	// DeltaBytes is the inflated size of a delta, and of a blob that deltas make or start from, which takes room beside the
	// packs; default 512 MiB, as git makes no deltas of larger files (core.bigFileThreshold). Other blobs are bounded by the
	// sums below alone: whether a file is too large for a gateway is decided when it is written there.
	DeltaBytes int64
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
		return overLimit("a %s is %d bytes, more than %d", k, n, l.TreeBytes)
	}
	return nil
}

// scratch is size for what is a delta, made from one, or the start of one.
func (l *Limits) scratch(k kind, n int64) error {
	if n > l.DeltaBytes {
		return overLimit("an object is packed as a delta and has %d bytes, more than the %d for such objects", n, l.DeltaBytes)
	}
	if k.delta() {
		return nil
	}
	return l.size(k, n)
}

func overLimit(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "the repository is over a limit: "+format, args...)
}

// errCorrupt is in the chain of every error that says that packed bytes are not what they must be.
var errCorrupt = errors.New("damaged git data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}
