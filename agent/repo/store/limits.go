package store

import (
	"errors"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Limits bounds what a repository may cost. A zero field means the default.
type Limits struct {
	// Objects is the number of objects in one pack; default 4,000,000.
	Objects int
	// DeltaBytes is the inflated size of a delta, and of a blob that is its base or its result, because these need space beside
	// the packs. The default is 512 MiB: git makes no deltas of larger files (core.bigFileThreshold). It also bounds the blobs of
	// an Importer. Only PackBytes and InflatedBytes bound other blobs: the sync decides whether a file is too large for a gateway.
	DeltaBytes int64
	// TreeBytes is the inflated size of a tree, a commit or a tag. These are read into memory. Default 32 MiB.
	TreeBytes int64
	// PackBytes is the size of one pack on disk, and if DiskBytes is zero, that of the temporary file for its deltas; default 8 GiB.
	PackBytes int64
	// InflatedBytes is the sum of the inflated entries of one pack and the results of their deltas; default 64 GiB.
	InflatedBytes int64
	// DiskBytes is the size of all files of a store, for a volume that several stores share; default none. A new pack gets half of what is
	// left of it, and its index a quarter. The objects of deltas get a quarter of DiskBytes. Transfer.Copy does not check DiskBytes.
	DiskBytes int64
	// DeltaDepth is the length of a chain of deltas; default 4,095, the longest that git writes.
	DeltaDepth int
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Objects, 4_000_000)
	setDefault(&l.DeltaBytes, 512<<20)
	setDefault(&l.TreeBytes, 32<<20)
	setDefault(&l.PackBytes, 8<<30)
	setDefault(&l.InflatedBytes, 64<<30)
	setDefault(&l.DeltaDepth, 4095)
	return l
}

func setDefault[T int | int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// minIndexed is the disk space in bytes that an index needs for one object.
const minIndexed = 40

// within returns l, bounded by what a store that uses the given number of bytes may still use of DiskBytes.
func (l Limits) within(used int64) Limits {
	if l.DiskBytes <= 0 {
		return l
	}
	left := max(l.DiskBytes-used, 0)
	l.PackBytes = min(l.PackBytes, left/2)
	l.Objects = min(l.Objects, int(left/4/minIndexed))
	l.DeltaBytes = min(l.DeltaBytes, l.scratchBytes())
	return l
}

// scratchBytes bounds the temporary file of a scratch.
func (l Limits) scratchBytes() int64 {
	if l.DiskBytes <= 0 {
		return l.PackBytes
	}
	return l.DiskBytes / 4
}

// checkSize checks the inflated size that an entry of a pack claims.
func (l *Limits) checkSize(k kind, n int64) error {
	switch {
	case k.delta():
		return l.checkDeltaSize(k, n)
	case k != kindBlob && n > l.TreeBytes:
		return OverLimit("a %s is %d bytes, more than %d", k, n, l.TreeBytes)
	}
	return nil
}

// checkDeltaSize is checkSize for a delta, and for the base or the result of a delta.
func (l *Limits) checkDeltaSize(k kind, n int64) error {
	if n > l.DeltaBytes {
		return OverLimit("an object is packed as a delta and has %d bytes, more than the %d for such objects", n, l.DeltaBytes)
	}
	if k.delta() {
		return nil
	}
	return l.checkSize(k, n)
}

// OverLimit returns the error for a repository that exceeds a limit.
func OverLimit(format string, args ...any) error {
	return failure.New(v1alpha1.ReasonLimitExceeded, "the repository is over a limit: "+format, args...)
}

// ErrCorrupt is wrapped by every error that reports malformed git data.
var ErrCorrupt = errors.New("damaged git data")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

// maxTreeDepth is the maximum depth of nested directories.
const maxTreeDepth = 1 << 10
