package plantest

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// Disk is a data directory in memory. Every write gets a new mtime.
type Disk struct {
	nodes map[string]node
	clock int64
	// Hashed counts the files read by BlobID.
	Hashed int
	// NoModes makes the disk a volume that does not store modes.
	NoModes bool
}

type node struct {
	kind    plan.Kind
	content string
	mtime   int64
	exec    bool
}

// NewDisk returns a data directory with files.
func NewDisk(files map[string]string) *Disk {
	d := &Disk{nodes: make(map[string]node)}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		d.Write(path, files[path])
	}
	return d
}

// Write writes a file as the gateway would, with the missing directories.
func (d *Disk) Write(path, content string) { d.put(path, plan.File, content, false) }

// Put adds a link, an empty directory or anything else that is not a regular file.
func (d *Disk) Put(path string, kind plan.Kind) { d.put(path, kind, "", false) }

// Chmod sets the executable bit.
func (d *Disk) Chmod(path string, exec bool) {
	n := d.nodes[path]
	n.exec = exec
	d.nodes[path] = n
}

// Touch gives a file a new mtime.
func (d *Disk) Touch(path string) {
	n := d.nodes[path]
	d.clock++
	n.mtime = d.clock
	d.nodes[path] = n
}

func (d *Disk) put(path string, kind plan.Kind, content string, exec bool) {
	d.clock++
	d.nodes[path] = node{kind: kind, content: content, mtime: d.clock, exec: exec}
	for dir := relpath.Parent(path); dir != ""; dir = relpath.Parent(dir) {
		if _, ok := d.nodes[dir]; !ok {
			d.nodes[dir] = node{kind: plan.Dir}
		}
	}
}

// Remove removes a path and everything below it.
func (d *Disk) Remove(path string) {
	for p := range d.nodes {
		if p == path || strings.HasPrefix(p, path+"/") {
			delete(d.nodes, p)
		}
	}
}

// Content returns a file's content; ok is false if there is no file.
func (d *Disk) Content(path string) (content string, ok bool) {
	n := d.nodes[path]
	return n.content, n.kind == plan.File
}

// Files returns the content of all files by path.
func (d *Disk) Files() map[string]string {
	files := make(map[string]string)
	for path, n := range d.nodes {
		if n.kind == plan.File {
			files[path] = n.content
		}
	}
	return files
}

// Stat implements plan.State.
func (d *Disk) Stat(path string) (plan.Stat, error) {
	if at, _, _ := d.Blocked(path); at != "" {
		return plan.Stat{}, nil
	}
	n, ok := d.nodes[path]
	if !ok {
		return plan.Stat{}, nil
	}
	return plan.Stat{Kind: n.kind, Size: int64(len(n.content)), Mtime: n.mtime, Exec: n.exec, NoModes: d.NoModes}, nil
}

// Blocked implements plan.State.
func (d *Disk) Blocked(path string) (string, plan.Kind, error) {
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		if n, ok := d.nodes[path[:i]]; ok && n.kind != plan.Dir {
			return path[:i], n.kind, nil
		}
	}
	return "", plan.Missing, nil
}

// BlobID implements plan.State.
func (d *Disk) BlobID(path string) (plan.ID, error) {
	h := plan.NewBlob(int64(len(d.nodes[path].content)))
	if err := d.CopyFile(h, path); err != nil {
		return plan.ID{}, err
	}
	d.Hashed++
	return plan.ID(h.Sum(nil)), nil
}

// Read implements plan.State.
func (d *Disk) Read(path string, limit int64) ([]byte, error) {
	n := d.nodes[path]
	if n.kind != plan.File || int64(len(n.content)) > limit {
		return nil, fmt.Errorf("%s is not a file, or larger than %d bytes", path, limit)
	}
	return []byte(n.content), nil
}

// CopyFile implements plan.State.
func (d *Disk) CopyFile(w io.Writer, path string) error {
	n := d.nodes[path]
	if n.kind != plan.File {
		return fmt.Errorf("%s is not a file", path)
	}
	_, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(n.content)}) // in pieces
	return err
}

// Walk implements plan.State.
func (d *Disk) Walk(dir string) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		for _, path := range slices.Sorted(maps.Keys(d.nodes)) {
			n := d.nodes[path]
			if n.kind == plan.Dir || !strings.HasPrefix(path, dir+"/") && dir != "" || isAgents(path) {
				continue
			}
			st, _ := d.Stat(path)
			if st.Kind == plan.Missing { // below a link
				continue
			}
			if !yield(plan.Found{Path: path, Stat: plan.Stat{Kind: st.Kind}}, nil) {
				return
			}
		}
	}
}

// isAgents reports whether a path belongs to the agent.
func isAgents(path string) bool {
	return slices.Contains(strings.Split(path, "/"), ".stoker")
}

// Forge changes a file's content and keeps its mtime.
func (d *Disk) Forge(path, content string) {
	n := d.nodes[path]
	n.content = content
	d.nodes[path] = n
}
