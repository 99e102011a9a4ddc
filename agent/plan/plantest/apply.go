package plantest

import (
	"io"
	"maps"
	"strings"
	"testing"

	"stoker.io/stoker/agent/plan"
)

// Blobs writes the content that a plan wants. Objects has the content of git, a plan.Desired also that of rendered files.
type Blobs interface {
	WriteBlob(w io.Writer, id plan.ID) (int64, error)
}

// Apply applies a plan in memory: it changes disk, and returns the new manifest and the files that went to lost+found, by path.
// It fails the test if the plan contradicts the disk.
func Apply(t testing.TB, c *plan.Changes, rules plan.Rules, wanted Blobs, disk *Disk, m *Manifest) (*Manifest, map[string]string) {
	t.Helper()
	next := &Manifest{Records: maps.Clone(m.Records)}
	if next.Records == nil {
		next.Records = make(map[string]plan.Owned)
	}
	lost := make(map[string]string)
	for _, x := range c.List {
		if x.Conflict {
			if content, ok := disk.Content(x.Path); ok {
				lost[x.Path] = content
			}
		}
		if x.Op == plan.Delete {
			disk.delete(t, x.Path)
		}
	}
	for _, x := range c.List {
		if x.Op == plan.Create || x.Op == plan.Update {
			disk.write(t, x, wanted)
		}
		record(next, x, disk)
		if git, ok := c.Signed[x.Path]; ok { // written with another signature than git's
			r := next.Records[x.Path]
			r.Want = git
			next.Records[x.Path] = r
		}
	}
	next.Head = plan.Header{
		Commit: c.To, Rules: rules.Fingerprint(), Mappings: c.Mappings, Files: len(next.Records), Complete: true,
	}
	if len(next.Records) != c.Total {
		t.Errorf("the plan says that the agent will own %d files, but it owns %d", c.Total, len(next.Records))
	}
	return next, lost
}

// delete removes a file and the directories that become empty.
func (d *Disk) delete(t testing.TB, path string) {
	t.Helper()
	if d.nodes[path].kind != plan.File {
		t.Errorf("the plan deletes %s, which is not a file", path)
	}
	delete(d.nodes, path)
	for dir := parent(path); dir != "" && d.empty(dir); dir = parent(dir) {
		delete(d.nodes, dir)
	}
}

func (d *Disk) empty(dir string) bool {
	for p := range d.nodes {
		if parent(p) == dir {
			return false
		}
	}
	return true
}

// onlyDirs reports whether the tree below a path has no files.
func (d *Disk) onlyDirs(path string) bool {
	for at, n := range d.nodes {
		if n.kind != plan.Dir && strings.HasPrefix(at, path+"/") {
			return false
		}
	}
	return true
}

func (d *Disk) write(t testing.TB, x plan.Change, wanted Blobs) {
	t.Helper()
	if at, _, _ := d.Blocked(x.Path); at != "" {
		t.Errorf("the plan writes %s, but %s is in the way", x.Path, at)
	}
	switch was := d.nodes[x.Path]; {
	case was.kind == plan.Dir && d.onlyDirs(x.Path):
		d.Remove(x.Path)
	case was.kind == plan.Dir:
		t.Errorf("the plan writes %s, but there is a directory with files", x.Path)
	case (was.kind == plan.Missing) != (x.Op == plan.Create):
		t.Errorf("the plan has operation %d for %s, but the disk has kind %d there", x.Op, x.Path, was.kind)
	}
	if x.Op == plan.Update && x.FoundID == x.ID {
		d.Chmod(x.Path, x.Exec)
		return
	}
	var content strings.Builder
	if _, err := wanted.WriteBlob(&content, x.ID); err != nil {
		t.Fatalf("the plan writes %s: %v", x.Path, err)
	}
	if id := BlobID([]byte(content.String())); id != x.ID {
		t.Errorf("the plan wants blob %s at %s, but its content is blob %s", x.ID, x.Path, id)
	}
	d.put(x.Path, plan.File, content.String(), x.Exec)
}

// record creates, updates or deletes the manifest's record of a path.
func record(m *Manifest, x plan.Change, disk *Disk) {
	switch x.Op {
	case plan.Delete, plan.Release:
		delete(m.Records, x.Path)
	case plan.Keep:
		if r, ok := m.Records[x.Path]; ok {
			r.Want, r.Exec, r.Origin = x.ID, x.Exec, x.Origin
			m.Records[x.Path] = r
		}
	default:
		st, _ := disk.Stat(x.Path)
		r := plan.Owned{
			Path: x.Path, Want: x.ID, Have: x.ID, Size: st.Size, Mtime: st.Mtime, Exec: x.Exec, Origin: x.Origin,
		}
		if x.Op == plan.Adopt {
			r.Have = x.FoundID
		}
		m.Records[x.Path] = r
	}
}
