package sync

import (
	"io"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// bounded is a writer that fails at the size limit of a file, before the file fills the disk.
type bounded struct {
	w           io.Writer
	left, limit int64
	path        string
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.limit > 0 {
		if b.left -= int64(len(p)); b.left < 0 {
			return 0, failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than --max-blob, %d bytes", b.path, b.limit)
		}
	}
	return b.w.Write(p)
}
