package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/safe"
)

// This file keeps two records that only users read: audit.jsonl, with a line for each sync, and the folder history, with a diff for each
// of the last syncs. No sync depends on them.

const (
	historyDir = "history"
	// keptDiffs is how many diffs are kept.
	keptDiffs = 10
	// MaxDiff bounds a diff, in bytes.
	MaxDiff = 1 << 20

	auditFile = "audit.jsonl"
	// maxAudit bounds audit.jsonl, maxAuditLine one line of it, in bytes.
	maxAudit     = 1 << 20
	maxAuditLine = 8 << 10
)

// AddAudit appends a line to audit.jsonl, durably. If the file then exceeds 1 MiB, AddAudit removes the oldest lines. It sets a damaged
// file aside and starts a new one.
func (d *Dir) AddAudit(line []byte) error {
	d.work.Lock()
	defer d.work.Unlock()
	switch {
	case d.o.ReadOnly:
		return ErrReadOnly
	case len(line) > maxAuditLine || bytes.ContainsRune(line, '\n'):
		return fmt.Errorf("cannot record a line of %d bytes: it must have at most %d bytes and no line break", len(line), maxAuditLine)
	}
	if err := d.checkMoved(); err != nil {
		return err
	}
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
}

var diffName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-diff-[0-9]{8}-[0-9]{6}\.json$`)

// AddDiff saves the diff of a sync, durably, and returns the name of its file. It removes the oldest diffs beyond keptDiffs.
func (d *Dir) AddDiff(gateway string, at time.Time, b []byte) (id string, err error) {
	d.work.Lock()
	defer d.work.Unlock()
	if d.o.ReadOnly {
		return "", ErrReadOnly
	}
	if err := d.checkMoved(); err != nil {
		return "", err
	}
	history, err := d.own.OpenOrMake(historyDir)
	if err != nil {
		return "", err
	}
	defer history.Close()
	list, err := history.Entries()
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".json.new") { // an agent was killed while it wrote the file
			if err := d.vol.Vacate(history, e.Name()); err != nil {
				return "", err
			}
		}
		if diffName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(diffTime(a), diffTime(b)) })
	stamp := at.UTC().Format(diffStamp)
	if n := len(names); n > 0 && stamp <= diffTime(names[n-1]) { // names differ by at least a second
		newest, err := time.Parse(diffStamp, diffTime(names[n-1]))
		if err == nil {
			stamp = newest.Add(time.Second).Format(diffStamp)
		}
	}
	id = gateway[:min(len(gateway), 200)] + "-diff-" + stamp + ".json"
	if len(b) > MaxDiff || !diffName.MatchString(id) {
		return "", fmt.Errorf("cannot save the diff %.300q of %d bytes", id, len(b))
	}
	if _, err := d.vol.WriteFile(history, id, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}); err != nil {
		return "", err
	}
	for _, name := range names[:max(0, len(names)-keptDiffs+1)] {
		err = errors.Join(err, d.vol.Vacate(history, name))
	}
	return id, err
}

const diffStamp = "20060102-150405"

// diffTime returns the time in the name of a diff. Such times sort as text.
func diffTime(name string) string {
	name = strings.TrimSuffix(name, ".json")
	return name[len(name)-len(diffStamp):]
}

// ReadDiff returns a diff that AddDiff saved in a data directory, or nil if there is none. Like ReadAudit, it may run while an agent
// writes, and its result may be anything.
func ReadDiff(dataDir, id string) ([]byte, error) {
	if !diffName.MatchString(id) {
		return nil, nil
	}
	return readOwn(dataDir, path.Join(historyDir, id), MaxDiff)
}

// ReadAudit returns the content of audit.jsonl in a data directory, one line for each sync, oldest first, or nil if there is no such file.
// It may run while an agent writes. The gateway can write to its data directory, so a line may be anything.
func ReadAudit(dataDir string) ([]byte, error) { return readOwn(dataDir, auditFile, maxAudit) }

// readOwn reads at most limit bytes of a file in .stoker. It returns nil if there is no such file.
func readOwn(dataDir, name string, limit int64) (_ []byte, err error) {
	root, err := os.OpenRoot(dataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name = path.Join(safe.OwnDir, name)
	fi, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, limit))
}
