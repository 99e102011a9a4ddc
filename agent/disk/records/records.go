// Package records keeps small files in .stoker: the audit record and the diffs of the last syncs, which users read, and notes,
// which the agent reads after a restart.
package records

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"

	"stoker.io/stoker/agent/disk/safe"
)

// Records are the records of a data directory.
type Records struct {
	own       *safe.AgentFolder // nil if .stoker does not exist
	writing   sync.Locker
	exclusive func(do func() error) error
}

// New returns the records in own, or none if own is nil. Every method that writes in own holds writing. exclusive calls do while it
// holds writing, or returns an error if nothing may be written.
func New(own *safe.AgentFolder, writing sync.Locker, exclusive func(do func() error) error) Records {
	return Records{own, writing, exclusive}
}

// Close makes r empty. The caller must hold writing, and closes the folder.
func (r *Records) Close() { r.own = nil }

// readOwn reads at most limit bytes of a file in .stoker. It returns nil if there is no such file.
func readOwn(dataDir, name string, limit int64) (_ []byte, err error) {
	root, err := os.OpenRoot(dataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	c := safe.Cursor{Top: root}
	defer c.Reset()
	n, name, err := c.Parent(path.Join(safe.OwnDir, name))
	var f *os.File
	if err == nil {
		f, _, err = n.File(name, os.O_RDONLY)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, limit))
}
