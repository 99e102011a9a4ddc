package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	auditFile = "audit.jsonl"
	// maxAudit bounds audit.jsonl, maxAuditLine one line of it, in bytes.
	maxAudit     = 1 << 20
	maxAuditLine = 8 << 10
)

// AddAudit adds a line to audit.jsonl, by rewriting the file durably. If the file then exceeds 1 MiB, AddAudit removes the oldest
// lines. It sets a damaged file aside and starts a new one. Only users read the file: no sync depends on it.
func (d *Dir) AddAudit(line []byte) error {
	if len(line) > maxAuditLine || bytes.ContainsRune(line, '\n') {
		return fmt.Errorf("cannot record a line of %d bytes: it must have at most %d bytes and no line break", len(line), maxAuditLine)
	}
	return d.exclusive(func() error {
		all, err := d.own.Read(auditFile, maxAudit)
		if errors.Is(err, safe.ErrDamaged) {
			err = d.vol.SetAside(d.own.Folder, auditFile, err)
		}
		if err != nil {
			return err
		}
		if len(all) > 0 && all[len(all)-1] != '\n' {
			all = append(all, '\n')
		}
		all = append(append(all, line...), '\n')
		for len(all) > maxAudit {
			all = all[bytes.IndexByte(all, '\n')+1:]
		}
		return d.own.WriteBytes(auditFile, all)
	})
}

// ReadAudit returns the content of audit.jsonl in a data directory, one line for each sync, oldest first, or nil if there is no
// such file. It may run while an agent writes. The gateway can write to its data directory, so the caller must not trust the
// content.
func ReadAudit(dataDir string) ([]byte, error) { return readOwn(dataDir, auditFile, maxAudit) }

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
