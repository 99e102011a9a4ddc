package records

import (
	"bytes"
	"errors"
	"fmt"

	"stoker.io/stoker/agent/disk/safe"
)

const (
	// AuditFile is the name of the audit record in .stoker.
	AuditFile = "audit.jsonl"
	// MaxAudit bounds the audit record, in bytes.
	MaxAudit = 1 << 20
	// MaxAuditLine bounds one line of it, in bytes.
	MaxAuditLine = 8 << 10
)

// AddAudit adds a line to audit.jsonl, by rewriting the file durably. If the file then exceeds 1 MiB, AddAudit removes the oldest
// lines. It sets a damaged file aside and starts a new one. Only users read the file: no sync depends on it.
func (r *Records) AddAudit(line []byte) error {
	if len(line) > MaxAuditLine || bytes.ContainsRune(line, '\n') {
		return fmt.Errorf("cannot record a line of %d bytes: it must have at most %d bytes and no line break", len(line), MaxAuditLine)
	}
	return r.exclusive(func() error {
		all, err := r.own.Read(AuditFile, MaxAudit)
		if errors.Is(err, safe.ErrDamaged) {
			err = r.own.Vol.SetAside(r.own.Folder, AuditFile, err)
		}
		if err != nil {
			return err
		}
		if len(all) > 0 && all[len(all)-1] != '\n' {
			all = append(all, '\n')
		}
		all = append(append(all, line...), '\n')
		for len(all) > MaxAudit {
			all = all[bytes.IndexByte(all, '\n')+1:]
		}
		return r.own.WriteBytes(AuditFile, all)
	})
}

// ReadAudit returns the content of audit.jsonl in a data directory, one line for each recorded sync, oldest first, or nil if there is no
// such file. It may run while an agent writes. The gateway can write to its data directory, so the caller must not trust the
// content.
func ReadAudit(dataDir string) ([]byte, error) { return readOwn(dataDir, AuditFile, MaxAudit) }
