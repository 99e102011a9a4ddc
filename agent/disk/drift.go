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

// Drift is the difference between the owned files and what the last sync left.
type Drift struct {
	Files int `json:"files"`
	// Paths are at most ten of the files, sorted.
	Paths []Drifted `json:"paths,omitempty"`
	// Watched are all of the files for which Options.Watch is true, sorted.
	Watched []string `json:"-"`
	// Adopted counts the files that the gateway only rewrote. They are not drift; their new bytes are recorded in the
	// manifest. If the manifest cannot be written, the next comparison reads them again.
	Adopted int `json:"adopted,omitempty"`
	// Checked is the number of compared files, Hashed the number of those that were read.
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
	Retyped  What = "type" // something else than a file
	Chmodded What = "mode" // the executable bit
)

const (
	driftPaths  = 10
	maxCompared = 4 << 20 // bytes of a JSON file compared by meaning
	// maxSuspects bounds what one comparison reads because of ctime alone: a chown of all files, as kubelets do, must
	// not keep the disk busy.
	maxSuspects = 256 << 20 // bytes
	// cycle is the time in which every file is read once. It does not divide a day, so that an agent that is stopped at
	// the same hour each day skips other files each time.
	cycle = 11 * time.Hour
)

// looked is the result of a comparison.
type looked struct {
	m      *format.Manifest // the manifest of the files, in its order
	ctimes []int64          // ctime at which each file was right; 0 if it must be read
	at     time.Time
}

// reader returns a lookedReader. Records must be looked up in the manifest's order.
func (l looked) reader() *lookedReader {
	r := &lookedReader{ctimes: l.ctimes, stop: func() {}}
	if l.m != nil {
		r.next, r.stop = iter.Pull2(l.m.All(""))
		r.advance()
	}
	return r
}

type lookedReader struct {
	next   func() (plan.Owned, error, bool)
	stop   func()
	ctimes []int64 // of rec and the records after it
	rec    plan.Owned
}

func (r *lookedReader) advance() {
	rec, err, ok := r.next()
	if r.rec = rec; !ok || err != nil {
		r.ctimes = nil
	}
}

// of returns the ctime of a record's file, if the record has not changed.
func (r *lookedReader) of(rec plan.Owned) (int64, bool) {
	for len(r.ctimes) > 0 && r.rec.Path < rec.Path {
		r.ctimes = r.ctimes[1:]
		r.advance()
	}
	if len(r.ctimes) == 0 || r.rec != rec {
		return 0, false
	}
	return r.ctimes[0], true
}

// shareOf returns which of n files a comparison at time to has to read if the last one was at time from: the same share
// of all files as the elapsed time is of the cycle. The start of the share depends on the clock, so that a restarted
// agent continues the cycle.
func shareOf(n int, from, to time.Time) func(i int) bool {
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

// Drift compares the owned files with the manifest: by stat, and by hash if stat differs; full hashes all. Changes that
// the gateway makes by itself are adopted and not drift: a new mtime, a re-signed resource.json, JSON of the same
// meaning, a thumbnail.png if nothing else in its folder changed.
//
// A file may change without a new size or mtime. So Drift also hashes a file if its ctime differs from the last
// comparison or, without one, is later than the manifest; of these at most maxSuspects bytes at a time. In case a
// volume's ctime is meaningless, each comparison also reads a share of all files, so that each is read once a cycle.
func (d *Dir) Drift(ctx context.Context, full bool) (Drift, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.Current(); err != nil {
		return Drift{}, err
	}
	c := &driftCheck{d: d, cur: safe.Cursor{Top: d.top}, dirs: map[string]bool{}, buf: make([]byte, 64<<10), suspects: maxSuspects}
	defer c.cur.Reset()
	m := d.manifest()
	before := d.looked.reader()
	defer before.stop()
	now := looked{m: m, ctimes: make([]int64, 0, m.Header().Files), at: d.o.Now()}
	share := shareOf(m.Header().Files, d.looked.at, now.at)
	for rec, err := range m.All("") {
		if err == nil {
			err = ctx.Err()
		}
		var ctime int64
		if err == nil {
			was, known := before.of(rec)
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
	d.looked = now
	c.thumbnails()
	slices.Sort(c.Watched)
	slices.SortFunc(c.Paths, func(a, b Drifted) int { return strings.Compare(a.Path, b.Path) })
	if !d.o.ReadOnly {
		c.record(m.Header())
	}
	return c.Drift, nil
}

// record records rewritten files in the manifest. A full volume does not prevent drift detection.
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
	// suspects is how many more bytes may be hashed because of ctime alone.
	suspects int64
}

// thumbnail is a changed thumbnail. Whether it is drift is known when its whole folder has been compared.
type thumbnail struct {
	rec plan.Owned
	at  int // index in adopt to insert at
}

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

// file compares one file. was is its ctime at the last comparison or, if unknown, a time up to which it was right. It
// returns the ctime at which the file is right, or 0 if it differs or still has to be read.
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
	right, err := c.content(ctx, rec, st, same)
	if !right {
		ctime = 0
	}
	return ctime, err
}

// content compares a file by its bytes, or by meaning. It reports whether the file matches the manifest, or will after
// adoption.
func (c *driftCheck) content(ctx context.Context, rec plan.Owned, st plan.Stat, same bool) (bool, error) {
	dir, name := safe.Split(rec.Path)
	n, err := c.cur.At(dir)
	var id plan.ID
	if err == nil {
		c.Hashed++
		id, err = n.Hash(ctx, name, c.buf, c.d.o.MaxBlob)
	}
	if _, ok := errors.AsType[*safe.IrregularError](err); ok || safe.NotThere(err) {
		c.drifted(rec.Path, Modified) // it changes during the comparison
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
		if same { // make every plan and later comparison read it
			rec.Mtime = unknownMtime
			c.adopt = append(c.adopt, rec)
		}
		return false, nil
	}
	return true, nil
}

// unknownMtime marks a record whose file changed without a new size or mtime. No file has this mtime.
const unknownMtime = math.MinInt64

func (c *driftCheck) adoptAs(rec plan.Owned) {
	c.adopt = append(c.adopt, rec)
	c.Adopted++
}

// thumbnails decides about the changed thumbnails.
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

// sameMeaning reports whether a JSON file on the disk, which belongs to rec.Path, still means what git wanted. It returns
// false if the wanted bytes are not available.
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
