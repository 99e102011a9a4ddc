package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// Drift says which owned files differ from what the last sync wrote or adopted.
type Drift struct {
	Files int `json:"files"` // how many
	// Paths are at most ten of the files, sorted.
	Paths []Drifted `json:"paths,omitempty"`
	// Watched are all of the files for which Options.Watch is true, sorted.
	Watched []string `json:"-"`
	// Adopted counts the files that the gateway rewrote without changing their meaning. They are not drift; Drift records their
	// new bytes in the manifest. If the manifest cannot be written, the next comparison reads them again.
	Adopted int `json:"adopted,omitempty"`
	// Checked is the number of compared files, Hashed the number of files among them whose content was read.
	Checked int `json:"checked"`
	Hashed  int `json:"hashed"`
}

// Drifted is a file that drifted, and how.
type Drifted struct {
	Path string    `json:"path"`
	What DriftKind `json:"what"`
}

// DriftKind is the way in which a file drifted.
type DriftKind string

// Ways in which a file drifts.
const (
	Modified DriftKind = "modified"
	Gone     DriftKind = "missing"
	Retyped  DriftKind = "type" // no longer a regular file
	Chmodded DriftKind = "mode" // another executable bit, or unreadable
)

const (
	driftPaths = 10 // in Drift.Paths
	// maxSuspectBytes bounds how many bytes one comparison reads only because the ctime of files changed; the last file may exceed
	// it. A kubelet may chown all files at once, which must not keep the disk busy.
	maxSuspectBytes = 256 << 20
)

// Drift compares the owned files with the manifest: by type, executable bit, size and mtime and, if size or mtime differs, by
// hash. If full is set, it hashes every file. Changes that the gateway makes by itself are adopted and are not drift: a new
// mtime, a re-signed resource.json, JSON of the same meaning, a thumbnail.png if nothing else in its folder drifted.
//
// A file may change without a new size or mtime. So Drift also hashes a file if its ctime is not that of the last comparison
// or, if that did not have this record, is later than the manifest. It hashes about maxSuspectBytes at most for this reason; the
// next calls continue. Because the ctime of some volumes is meaningless, each comparison also reads a share of all files, so
// that each file is read once a cycle.
func (d *Dir) Drift(ctx context.Context, full bool) (Drift, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.CheckOpen(); err != nil {
		return Drift{}, err
	}
	c := &driftCheck{d: d, cur: safe.Cursor{Top: d.top}, dirs: map[string]bool{}, buf: make([]byte, 64<<10), suspectBytes: maxSuspectBytes}
	defer c.cur.Reset()
	m := d.manifest()
	before := d.compared.reader()
	defer before.stop()
	now := knownCtimes{manifest: m, ctimes: make([]int64, 0, m.Header().Files), at: d.o.Now()}
	inShare := shareToRead(m.Header().Files, d.compared.at, now.at)
	for rec, err := range m.All("") {
		if err == nil {
			err = ctx.Err()
		}
		var ctime int64
		if err == nil {
			last, known := before.ctimeOf(rec)
			if !known && m.Info != nil {
				last = m.Info.ModTime().UnixNano()
			}
			ctime, err = c.compare(ctx, rec, last, known, full || inShare(len(now.ctimes)))
		}
		if err != nil {
			return Drift{}, fmt.Errorf("check for drift: %w", err)
		}
		now.ctimes = append(now.ctimes, ctime)
	}
	d.compared = now
	c.finishThumbnails()
	slices.Sort(c.Watched)
	slices.SortFunc(c.Paths, func(a, b Drifted) int { return strings.Compare(a.Path, b.Path) })
	if !d.o.ReadOnly {
		c.record(m.Header())
	}
	return c.Drift, nil
}

// driftCheck is one call of Drift.
type driftCheck struct {
	Drift
	d          *Dir
	cur        safe.Cursor
	dirs       map[string]bool // folders with drift
	newRecords []plan.Owned    // new records, sorted by path
	thumbnails [][2]plan.Owned // old and new records of changed thumbnails; see finishThumbnails
	buf        []byte
	// suspectBytes is how many more bytes may be read only because the ctime of files changed.
	suspectBytes int64
}

// drifted adds a file to the result.
func (c *driftCheck) drifted(path string, kind DriftKind) {
	dir, _ := safe.Split(path)
	c.dirs[dir] = true
	c.Files++
	if w := c.d.o.Watch; w != nil && w(path) {
		c.Watched = append(c.Watched, path)
	}
	if len(c.Paths) < driftPaths {
		c.Paths = append(c.Paths, Drifted{path, kind})
	}
}

// modified adds a file to the result. If its size and mtime are those of its record, later plans and comparisons must read it.
func (c *driftCheck) modified(rec, now plan.Owned) {
	c.drifted(rec.Path, Modified)
	if now.Size == rec.Size && now.Mtime == rec.Mtime {
		rec.Mtime = unknownMtime
		c.newRecords = append(c.newRecords, rec)
	}
}

func (c *driftCheck) adopt(rec plan.Owned) {
	c.newRecords = append(c.newRecords, rec)
	c.Adopted++
}

// compare compares one file with its record. If known is set, last is its ctime at the last comparison; otherwise last is a time
// at which the file matched the manifest. compare reads the file if read is set, or if the size, mtime or ctime differs. It returns
// the ctime of a file whose content matches, or 0 if the content differs or the next comparison has to read it.
func (c *driftCheck) compare(ctx context.Context, rec plan.Owned, last int64, known, read bool) (ctime int64, err error) {
	c.Checked++
	fi, err := c.cur.Lstat(rec.Path)
	if safe.NotThere(err) {
		c.drifted(rec.Path, Gone)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("stat %s: %w", rec.Path, err)
	}
	st, ctime := c.d.vol.Stat(fi), safe.AttrsOf(fi).Ctime
	if st.NoModes {
		st.Exec = rec.Exec
	}
	if st.Kind != plan.File {
		c.drifted(rec.Path, Retyped)
		return 0, nil
	}
	if st.Size != rec.Size && st.Size > resource.MaxCompared { // too large to mean the same, so there is no need to read it
		c.drifted(rec.Path, Modified)
		return 0, nil
	}
	same := st.Size == rec.Size && st.Mtime == rec.Mtime
	suspect := ctime > last || known && ctime != last
	if same && !read {
		if !suspect || c.suspectBytes <= 0 {
			if st.Exec != rec.Exec {
				c.drifted(rec.Path, Chmodded)
			}
			if suspect {
				ctime = 0
			}
			return ctime, nil
		}
		c.suspectBytes -= st.Size
	}
	matches, err := c.compareContent(ctx, rec, st, same)
	if !matches {
		ctime = 0
	}
	return ctime, err
}

// compareContent compares a file by its bytes or, if it is JSON, by its meaning. It reports whether the content matches the
// manifest, or will once the file is adopted. A file with another executable bit has drifted, but its content
// matches. same is set if size and mtime are those of the record.
func (c *driftCheck) compareContent(ctx context.Context, rec plan.Owned, st plan.Stat, same bool) (matches bool, err error) {
	folder, name, err := c.cur.Parent(rec.Path)
	var id plan.ID
	if err == nil {
		c.Hashed++
		id, err = folder.Hash(ctx, name, c.buf, c.d.o.MaxBlob)
	}
	if _, irregular := errors.AsType[*safe.IrregularError](err); irregular || safe.NotThere(err) {
		c.drifted(rec.Path, Modified) // the file changed during the comparison
		return false, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		c.drifted(rec.Path, Chmodded)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now := rec
	now.Have, now.Size, now.Mtime = id, st.Size, st.Mtime
	switch {
	case id == rec.Have && st.Exec != rec.Exec:
		c.drifted(rec.Path, Chmodded)
	case id == rec.Have && same:
	case id == rec.Have:
		c.adopt(now)
	case name == resource.Thumbnail && st.Exec == rec.Exec && !id.IsZero():
		c.thumbnails = append(c.thumbnails, [2]plan.Owned{rec, now})
		return false, nil
	case st.Exec == rec.Exec && c.d.sameMeaning(folder, name, now):
		c.adopt(now)
	default:
		c.modified(rec, now)
		return false, nil
	}
	return true, nil
}

// unknownMtime is recorded for a file that changed without a new size or mtime. No file has this mtime.
const unknownMtime = math.MinInt64

// finishThumbnails adopts the changed thumbnails. But if another file of its folder drifted, a thumbnail is drift, too.
func (c *driftCheck) finishThumbnails() {
	for _, t := range c.thumbnails {
		if dir, _ := safe.Split(t[0].Path); c.dirs[dir] {
			c.modified(t[0], t[1])
		} else {
			c.adopt(t[1])
		}
	}
	slices.SortFunc(c.newRecords, func(a, b plan.Owned) int { return strings.Compare(a.Path, b.Path) })
}

// record writes the new records to the manifest. It only logs an error, so that drift is reported on a full volume, too.
func (c *driftCheck) record(h plan.Header) {
	d, list := c.d, c.newRecords
	if len(list) == 0 {
		return
	}
	_, err := d.writeManifest(h, d.manifest(), func(yield func(format.Edit) bool) {
		for _, rec := range list {
			if !yield(format.Set(rec)) {
				return
			}
		}
	})
	if err != nil && !d.adoptFailed {
		d.log.Warn("cannot record files that the gateway rewrote", "files", len(list), "error", err)
	}
	d.adoptFailed = err != nil
}
