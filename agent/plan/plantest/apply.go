package plantest

import (
	"io"
	"maps"
	"strings"
	"testing"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// Blobs writes the content of blobs. Objects (the blobs of git) and desired.Tree (also rendered files) implement it.
type Blobs interface {
	WriteBlob(w io.Writer, id plan.ID) (int64, error)
}

// Apply applies a plan in memory: it changes disk, and returns the new manifest and the files that went to lost+found, by path.
// It fails the test if the plan contradicts the disk.
func Apply(t testing.TB, changes *plan.Changes, rules plan.Rules, wanted Blobs, disk *Disk, manifest *Manifest) (*Manifest, map[string]string) {
	t.Helper()
	next := &Manifest{Records: maps.Clone(manifest.Records)}
	if next.Records == nil {
		next.Records = make(map[string]plan.Owned)
	}
	lost := make(map[string]string)
	// Deletions come first, because a new file can replace a deleted directory.
	for _, c := range changes.List {
		if c.Conflict {
			if content, ok := disk.Content(c.Path); ok {
				lost[c.Path] = content
			}
		}
		if c.Op == plan.Delete {
			disk.delete(t, c.Path)
		}
	}
	for _, c := range changes.List {
		if c.Op == plan.Create || c.Op == plan.Update {
			disk.write(t, c, wanted)
		}
		record(next, c, disk)
		if git, ok := changes.Signed[c.Path]; ok { // c.ID has a new signature of the resource, and Want is the blob of git
			r := next.Records[c.Path]
			r.Want = git
			next.Records[c.Path] = r
		}
	}
	next.Head = plan.Header{
		Commit: changes.To, Rules: rules.Fingerprint(), Mappings: changes.Mappings, Files: len(next.Records), Complete: true,
	}
	if len(next.Records) != changes.Total {
		t.Errorf("the plan says that the agent will own %d files, but it owns %d", changes.Total, len(next.Records))
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
	for dir := relpath.Parent(path); dir != "" && d.empty(dir); dir = relpath.Parent(dir) {
		delete(d.nodes, dir)
	}
}

func (d *Disk) empty(dir string) bool {
	for p := range d.nodes {
		if relpath.Parent(p) == dir {
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

func (d *Disk) write(t testing.TB, c plan.Change, wanted Blobs) {
	t.Helper()
	if parent, _, _ := d.Blocked(c.Path); parent != "" {
		t.Errorf("the plan writes %s, but %s is in the way", c.Path, parent)
	}
	switch was := d.nodes[c.Path]; {
	case was.kind == plan.Dir && d.onlyDirs(c.Path):
		d.Remove(c.Path)
	case was.kind == plan.Dir:
		t.Fatalf("the plan writes %s, but there is a directory with files", c.Path)
	case (was.kind == plan.Missing) != (c.Op == plan.Create):
		t.Errorf("the plan has operation %d for %s, but the disk has kind %d there", c.Op, c.Path, was.kind)
	}
	if c.Op == plan.Update && c.FoundID == c.ID { // only the mode differs
		d.Chmod(c.Path, c.Exec)
		return
	}
	var content strings.Builder
	if _, err := wanted.WriteBlob(&content, c.ID); err != nil {
		t.Fatalf("the plan writes %s: %v", c.Path, err)
	}
	if id := BlobID([]byte(content.String())); id != c.ID {
		t.Errorf("the plan wants blob %s at %s, but its content is blob %s", c.ID, c.Path, id)
	}
	d.put(c.Path, plan.File, content.String(), c.Exec)
}

// record creates, updates or deletes the manifest's record of a path.
func record(m *Manifest, c plan.Change, disk *Disk) {
	switch c.Op {
	case plan.Delete, plan.Release:
		delete(m.Records, c.Path)
	case plan.Keep:
		if r, ok := m.Records[c.Path]; ok {
			r.Want, r.Exec, r.Origin = c.ID, c.Exec, c.Origin
			m.Records[c.Path] = r
		}
	default:
		st, _ := disk.Stat(c.Path)
		r := plan.Owned{
			Path: c.Path, Want: c.ID, Have: c.ID, Size: st.Size, Mtime: st.Mtime, Exec: c.Exec, Origin: c.Origin,
		}
		if c.Op == plan.Adopt {
			r.Have = c.FoundID
		}
		m.Records[c.Path] = r
	}
}
