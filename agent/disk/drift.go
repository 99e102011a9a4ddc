package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// Drift says which owned files differ from what the last sync wrote or adopted.
type Drift struct {
	Files int `json:"files"`
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
	Path string `json:"path"`
	What What   `json:"what"`
}

// What is the way in which a file drifted.
type What string

// Ways in which a file drifts.
const (
	Modified What = "modified"
	Gone     What = "missing"
	Retyped  What = "type" // no longer a regular file
	Chmodded What = "mode" // another executable bit, or unreadable
)

const (
	driftPaths  = 10
	maxCompared = 4 << 20 // bytes of a JSON file compared by meaning
	// maxSuspects bounds how much one comparison reads only because the ctime of files changed. A kubelet may chown all files
	// at once, which must not keep the disk busy.
	maxSuspects = 256 << 20 // bytes
	// cycle is the time in which every file is read once. A day is not a multiple of it, so that an agent that is stopped at
	// the same hour each day does not skip the same files each time.
	cycle = 11 * time.Hour
)

// comparison is what Drift remembers for the next call: the ctime of each file that matched the manifest. A file with the same
// ctime has not changed since.
type comparison struct {
	m      *format.Manifest
	ctimes []int64 // one for each file of m, in its order; 0 if the next comparison has to read the file
	at     time.Time
}

// reader returns a ctimeReader for the comparison.
func (c comparison) reader() *ctimeReader {
	r := &ctimeReader{ctimes: c.ctimes, stop: func() {}}
	if c.m != nil {
		r.next, r.stop = iter.Pull2(c.m.All(""))
		r.advance()
	}
	return r
}

// ctimeReader looks up the ctimes of a comparison. Lookups must be in the order of paths.
type ctimeReader struct {
	next   func() (plan.Owned, error, bool)
	stop   func()
	ctimes []int64 // of rec and the records after it
	rec    plan.Owned
}

func (r *ctimeReader) advance() {
	rec, err, ok := r.next()
	if r.rec = rec; !ok || err != nil {
		r.ctimes = nil
	}
}

// ctimeOf returns the ctime of a record's file. It returns false if the comparison has no such record, or had another one for
// that path.
func (r *ctimeReader) ctimeOf(rec plan.Owned) (int64, bool) {
	for len(r.ctimes) > 0 && r.rec.Path < rec.Path {
		r.ctimes = r.ctimes[1:]
		r.advance()
	}
	if len(r.ctimes) == 0 || r.rec != rec {
		return 0, false
	}
	return r.ctimes[0], true
}

// shareToRead selects the files that a comparison at time to has to read if the last one was at time from. The selected share of
// the n files equals the share of the cycle that has elapsed. Which files these are depends only on the clock, so that a
// restarted agent continues the cycle.
func shareToRead(n int, from, to time.Time) func(i int) bool {
	if from.IsZero() || !to.After(from) {
		return func(int) bool { return false }
	}
	if to.Sub(from) >= cycle {
		return func(int) bool { return true }
	}
	at := func(t time.Time) int { return int(float64(n) * float64(t.UnixNano()%int64(cycle)) / float64(cycle)) }
	first, end := at(from), at(to)
	return func(i int) bool {
		if first > end {
			return i >= first || i < end
		}
		return i >= first && i < end
	}
}

// Drift compares the owned files with the manifest: by type, executable bit, size and mtime and, if size or mtime
// differs, by hash. If full is set, it hashes every file. Changes that the gateway makes by itself are adopted and
// are not drift: a new mtime, a re-signed resource.json, JSON of the same meaning, a thumbnail.png if nothing else in
// its folder changed.
//
// A file may change without a new size or mtime. So Drift also hashes a file if its ctime is not that of the last comparison
// or, before the first comparison, is later than the manifest. It hashes at most maxSuspects bytes for this reason; the next
// calls continue. Because the ctime of some volumes is meaningless, each comparison also reads a share of all files, so that
// each file is read once a cycle.
func (d *Dir) Drift(ctx context.Context, full bool) (Drift, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.Current(); err != nil {
		return Drift{}, err
	}
	c := &driftCheck{d: d, cur: safe.Cursor{Top: d.top}, dirs: map[string]bool{}, buf: make([]byte, 64<<10), suspects: maxSuspects}
	defer c.cur.Reset()
	m := d.manifest()
	before := d.compared.reader()
	defer before.stop()
	now := comparison{m: m, ctimes: make([]int64, 0, m.Header().Files), at: d.o.Now()}
	share := shareToRead(m.Header().Files, d.compared.at, now.at)
	for rec, err := range m.All("") {
		if err == nil {
			err = ctx.Err()
		}
		var ctime int64
		if err == nil {
			was, known := before.ctimeOf(rec)
			if !known && m.Info != nil {
				was = m.Info.ModTime().UnixNano()
			}
			ctime, err = c.file(ctx, rec, was, known, full || share(len(now.ctimes)))
		}
		if err != nil {
			return Drift{}, fmt.Errorf("check for drift: %w", err)
		}
		now.ctimes = append(now.ctimes, ctime)
	}
	d.compared = now
	c.thumbnails()
	slices.Sort(c.Watched)
	slices.SortFunc(c.Paths, func(a, b Drifted) int { return strings.Compare(a.Path, b.Path) })
	if !d.o.ReadOnly {
		c.record(m.Header())
	}
	return c.Drift, nil
}

// record writes the adopted files to the manifest. An error is only logged, so that drift is detected on a full volume, too.
func (c *driftCheck) record(h plan.Header) {
	d, list := c.d, c.adopt
	if len(list) == 0 {
		return
	}
	k := 0
	_, err := d.rewrite(h, d.manifest(), func() (format.Edit, bool) {
		if k == len(list) {
			return format.Edit{}, false
		}
		k++
		return format.Set(list[k-1]), true
	})
	if err != nil && !d.unadopted {
		d.log.Warn("cannot record files that the gateway rewrote", "files", len(list), "error", err)
	}
	d.unadopted = err != nil
}

type driftCheck struct {
	Drift
	d     *Dir
	cur   safe.Cursor
	dirs  map[string]bool // folders with drift
	thumb []thumbnail
	adopt []plan.Owned // sorted by path
	buf   []byte
	// suspects is how many more bytes may be hashed only because of the ctime.
	suspects int64
}

// thumbnail is a changed thumbnail. It is drift if another file of its folder drifted, which is known only at the end.
type thumbnail struct {
	rec plan.Owned
	at  int // the index in adopt before which rec belongs
}

// drifted adds a file to the result.
func (c *driftCheck) drifted(path string, what What) {
	dir, _ := safe.Split(path)
	c.dirs[dir] = true
	c.Files++
	if w := c.d.o.Watch; w != nil && w(path) {
		c.Watched = append(c.Watched, path)
	}
	if len(c.Paths) < driftPaths {
		c.Paths = append(c.Paths, Drifted{path, what})
	}
}

// file compares one file. If known is set, was is its ctime at the last comparison; otherwise was is a time at which the file
// matched the manifest. file returns the ctime of a file that matches, or 0 if it differs or still has to be read.
func (c *driftCheck) file(ctx context.Context, rec plan.Owned, was int64, known, hash bool) (int64, error) {
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
	same := st.Size == rec.Size && st.Mtime == rec.Mtime
	suspect := ctime > was || known && ctime != was
	if same && suspect && !hash {
		if c.suspects <= 0 {
			if st.Exec != rec.Exec {
				c.drifted(rec.Path, Chmodded)
			}
			return 0, nil
		}
		c.suspects -= st.Size
	}
	if same && !suspect && !hash {
		if st.Exec != rec.Exec {
			c.drifted(rec.Path, Chmodded)
		}
		return ctime, nil
	}
	matches, err := c.content(ctx, rec, st, same)
	if !matches {
		ctime = 0
	}
	return ctime, err
}

// content compares a file by its bytes or, if it is JSON, by its meaning. It reports whether the content matches the
// manifest, or will once the file is adopted. A file with another executable bit has drifted, but its content
// matches. same is set if size and mtime are those of the record.
func (c *driftCheck) content(ctx context.Context, rec plan.Owned, st plan.Stat, same bool) (bool, error) {
	dir, name := safe.Split(rec.Path)
	n, err := c.cur.At(dir)
	var id plan.ID
	if err == nil {
		c.Hashed++
		id, err = n.Hash(ctx, name, c.buf, c.d.o.MaxBlob)
	}
	if _, ok := errors.AsType[*safe.IrregularError](err); ok || safe.NotThere(err) {
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
		return true, nil
	case id == rec.Have && !same:
		c.adoptAs(now)
	case id == rec.Have:
	case name == resource.Thumbnail && st.Exec == rec.Exec && !id.IsZero():
		c.thumb = append(c.thumb, thumbnail{now, len(c.adopt)})
	case st.Exec == rec.Exec && sameMeaning(c.d, n, name, now):
		c.adoptAs(now)
	default:
		c.drifted(rec.Path, Modified)
		if same { // make later plans and comparisons read the file
			rec.Mtime = unknownMtime
			c.adopt = append(c.adopt, rec)
		}
		return false, nil
	}
	return true, nil
}

// unknownMtime is recorded for a file that changed without a new size or mtime. No file has this mtime.
const unknownMtime = math.MinInt64

func (c *driftCheck) adoptAs(rec plan.Owned) {
	c.adopt = append(c.adopt, rec)
	c.Adopted++
}

// thumbnails adopts the changed thumbnails, or reports them as drift if their folder has other drift.
func (c *driftCheck) thumbnails() {
	if len(c.thumb) == 0 {
		return
	}
	merged := make([]plan.Owned, 0, len(c.adopt)+len(c.thumb))
	from := 0
	for _, t := range c.thumb {
		merged = append(merged, c.adopt[from:t.at]...)
		from = t.at
		if dir, _ := safe.Split(t.rec.Path); c.dirs[dir] {
			c.drifted(t.rec.Path, Modified)
			continue
		}
		merged = append(merged, t.rec)
		c.Adopted++
	}
	c.adopt = append(merged, c.adopt[from:]...)
}

// rewritten reports whether the gateway itself rewrote a recorded file without changing its meaning: it signed a resource.json again, or made
// a thumbnail. The file is called name in n, and now is its blob id.
func (d *Dir) rewritten(n *safe.Folder, name string, rec plan.Owned, now plan.ID) bool {
	rec.Have = now
	return path.Base(rec.Path) == resource.Thumbnail || sameMeaning(d, n, name, rec)
}

// sameMeaning reports whether a JSON file means the same as the content from git, rec.Want. The file is called name in folder n,
// belongs to rec.Path and has the content rec.Have. sameMeaning returns false if the content from git is not available.
func sameMeaning(d *Dir, n *safe.Folder, name string, rec plan.Owned) bool {
	compare := resource.SameJSON
	switch {
	case d.o.Wanted == nil || path.Ext(rec.Path) != ".json":
		return false
	case path.Base(rec.Path) == resource.File:
		compare = resource.SameButModification
	}
	f, fi, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > maxCompared {
		return false
	}
	now, err := io.ReadAll(io.LimitReader(f, maxCompared))
	if err != nil || safe.BlobID(now) != rec.Have {
		return false
	}
	b := &limited{}
	if _, err := d.o.Wanted(b, rec.Want); err != nil {
		d.log.Debug("cannot compare as JSON", "path", n.Join(name), "error", err)
		return false
	}
	same, err := compare(now, b.Bytes())
	return err == nil && same
}

// limited is a buffer of at most maxCompared bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxCompared {
		return 0, errors.New("the blob is too large to compare as JSON")
	}
	return l.Buffer.Write(p)
}
