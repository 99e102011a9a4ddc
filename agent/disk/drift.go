package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// Drift is what differs on the gateway from what the last sync left there.
type Drift struct {
	Files int `json:"files"`
	// Paths are ten of them, sorted.
	Paths []Drifted `json:"paths,omitempty"`
	// Adopted counts the files that the gateway only rewrote: the manifest has their new bytes now, and they are no drift.
	// Where the manifest cannot be written they are none either, and are read again by the next look.
	Adopted int `json:"adopted,omitempty"`
	// Checked is the number of files that were looked at, Hashed of those that were read.
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

// The ways in which a file drifts.
const (
	Modified What = "modified"
	Gone     What = "missing"
	Retyped  What = "type" // something else than a file is there
	Chmodded What = "mode" // the executable bit
)

const (
	driftPaths  = 10
	maxCompared = 4 << 20 // bytes of a JSON file that is compared by meaning
)

// Drift compares the files that are ours with the manifest: by stat, and by hash where stat differs; full hashes all.
// What the gateway does by itself is adopted and is no drift: a new mtime, a re-signed resource.json, JSON of the same
// meaning, a thumbnail.png where nothing else of its folder changed.
func (d *Dir) Drift(ctx context.Context, full bool) (Drift, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.Current(); err != nil {
		return Drift{}, err
	}
	c := &driftCheck{d: d, full: full, cur: cursor{top: d.top}, dirs: map[string]bool{}, buf: make([]byte, 64<<10)}
	defer c.cur.reset()
	m := d.manifest()
	for rec, err := range m.All("") {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = c.file(rec)
		}
		if err != nil {
			return Drift{}, fmt.Errorf("check for drift: %w", err)
		}
	}
	c.thumbnails()
	slices.SortFunc(c.Paths, func(a, b Drifted) int { return strings.Compare(a.Path, b.Path) })
	if !d.o.ReadOnly {
		d.adopt(m.header, c.adopt)
	}
	return c.Drift, nil
}

// adopt puts records of what the gateway rewrote into the manifest. A volume that is full keeps nobody from seeing drift.
func (d *Dir) adopt(h plan.Header, list []plan.Owned) {
	if len(list) == 0 {
		return
	}
	k := 0
	_, err := d.rewrite(h, func() (edit, bool) {
		if k == len(list) {
			return edit{}, false
		}
		k++
		return edit{editSet, record{Owned: list[k-1]}}, true
	})
	if err != nil && !d.unadopted {
		d.log.Warn("what the gateway rewrote cannot be noted in the manifest and is read again at each look for drift", "files", len(list), "error", err)
	}
	d.unadopted = err != nil
}

type driftCheck struct {
	Drift
	d     *Dir
	full  bool
	cur   cursor
	dirs  map[string]bool // folders with drift
	thumb []thumbnail
	adopt []plan.Owned // sorted by path
	buf   []byte
}

// thumbnail is one that changed; whether that counts is known when its whole folder was seen.
type thumbnail struct {
	rec plan.Owned
	at  int // where it belongs in adopt
}

func (c *driftCheck) drifted(path string, what What) {
	dir, _ := split(path)
	c.dirs[dir] = true
	c.Files++
	if len(c.Paths) < driftPaths {
		c.Paths = append(c.Paths, Drifted{path, what})
	}
}

func (c *driftCheck) file(rec plan.Owned) error {
	c.Checked++
	fi, err := c.cur.lstat(rec.Path)
	if notThere(err) {
		c.drifted(rec.Path, Gone)
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", rec.Path, err)
	}
	st := c.d.stat(fi)
	if st.NoModes {
		st.Exec = rec.Exec
	}
	if st.Kind != plan.File {
		c.drifted(rec.Path, Retyped)
		return nil
	}
	same := st.Size == rec.Size && st.Mtime == rec.Mtime
	if same && !c.full {
		if st.Exec != rec.Exec {
			c.drifted(rec.Path, Chmodded)
		}
		return nil
	}
	return c.content(rec, st, same)
}

// content compares a file by its bytes, and by their meaning where that counts.
func (c *driftCheck) content(rec plan.Owned, st plan.Stat, same bool) error {
	dir, name := split(rec.Path)
	n, err := c.cur.at(dir)
	var id plan.ID
	if err == nil {
		c.Hashed++
		id, err = n.id(name, c.buf)
	}
	if _, ok := errors.AsType[*irregularError](err); ok || notThere(err) {
		c.drifted(rec.Path, Modified) // it changes while we look
		return nil
	}
	if err != nil {
		return err
	}
	now := rec
	now.Have, now.Size, now.Mtime = id, st.Size, st.Mtime
	switch {
	case id == rec.Have && st.Exec != rec.Exec:
		c.drifted(rec.Path, Chmodded)
	case id == rec.Have && !same:
		c.adoptAs(now)
	case id == rec.Have:
	case name == resource.Thumbnail && st.Exec == rec.Exec:
		c.thumb = append(c.thumb, thumbnail{now, len(c.adopt)})
	case st.Exec == rec.Exec && c.d.means(n, name, now):
		c.adoptAs(now)
	default:
		c.drifted(rec.Path, Modified)
	}
	return nil
}

func (c *driftCheck) adoptAs(rec plan.Owned) {
	c.adopt = append(c.adopt, rec)
	c.Adopted++
}

// thumbnails decides on those that changed.
func (c *driftCheck) thumbnails() {
	if len(c.thumb) == 0 {
		return
	}
	merged := make([]plan.Owned, 0, len(c.adopt)+len(c.thumb))
	from := 0
	for _, t := range c.thumb {
		merged = append(merged, c.adopt[from:t.at]...)
		from = t.at
		if dir, _ := split(t.rec.Path); c.dirs[dir] {
			c.drifted(t.rec.Path, Modified)
			continue
		}
		merged = append(merged, t.rec)
		c.Adopted++
	}
	c.adopt = append(merged, c.adopt[from:]...)
}

// means reports whether the JSON file that lies at a name, and belongs to rec.Path, still means what git wanted. Where
// the wanted bytes cannot be had it says no.
func (d *Dir) means(n *node, name string, rec plan.Owned) bool {
	compare := resource.SameJSON
	switch {
	case d.o.Wanted == nil || path.Ext(rec.Path) != ".json":
		return false
	case path.Base(rec.Path) == resource.File:
		compare = resource.SameButModification
	}
	f, fi, err := n.file(name, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > maxCompared {
		return false
	}
	now, err := io.ReadAll(io.LimitReader(f, maxCompared))
	if err != nil || blobID(now) != rec.Have {
		return false
	}
	b := &limited{}
	if _, err := d.o.Wanted(b, rec.Want); err != nil {
		d.log.Debug("cannot compare by meaning", "path", n.join(name), "error", err)
		return false
	}
	same, err := compare(now, b.Bytes())
	return err == nil && same
}

// limited is a buffer for a blob of at most maxCompared bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxCompared {
		return 0, errors.New("the blob is too large to be compared by meaning")
	}
	return l.Buffer.Write(p)
}
