package sync

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// members tells the files that are part of a resource from those that only lie beside one (a README): a gateway knows the
// first, and whether a pair copies the others is not known. So those are written on both nodes.
type members struct {
	s    *run
	list []plan.Change // the whole plan
	// What was read last: changes come sorted, so that a directory is read once.
	wanted, live found
}

// found is what the resource.json of a directory lists.
type found struct {
	dir   string
	files []string
	all   bool // every file of the directory is part of the resource
}

func (f found) has(name string) bool { return f.all || slices.Contains(f.files, name) }

// marks are the files that make a resource, a project or a deployment mode.
func marks() []string { return []string{resource.File, unaryFile, "project.json", "config-mode.json"} }

const unaryFile = "unary-resource.json"

// maxListing bounds a resource.json that is read for its list of files.
const maxListing = 1 << 20

// has reports whether the gateway knows the file of a change: by the resource.json that git wants beside it, or for a file
// that goes by the one that lies there.
func (m *members) has(c plan.Change) (bool, error) {
	dir, name := path.Split(c.Path)
	dir = path.Clean(dir)
	switch {
	case slices.Contains(marks(), name):
		return true, nil
	case c.Op == plan.Delete:
		err := m.live.read(dir, m.lying)
		return m.live.has(name), err
	}
	err := m.wanted.read(dir, m.inGit)
	return m.wanted.has(name), err
}

// read reads the lists of a directory. A resource.json that makes no sense makes every file count: it is waited for.
func (f *found) read(dir string, read func(file string) ([]byte, error)) error {
	if f.dir == dir {
		return nil
	}
	*f = found{}
	for _, name := range []string{resource.File, unaryFile} {
		raw, err := read(dir + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var doc struct {
			Files []string `json:"files"`
		}
		f.all = f.all || name == unaryFile || json.Unmarshal(raw, &doc) != nil
		f.files = append(f.files, doc.Files...)
	}
	f.dir = dir
	return nil
}

func (m *members) lying(file string) ([]byte, error) { return m.s.dir.Read(file, maxListing) }

// inGit reads what git wants at a path. A file that the plan does not name is as it was at the last sync.
func (m *members) inGit(file string) ([]byte, error) {
	var id plan.ID
	i, named := slices.BinarySearchFunc(m.list, file, func(c plan.Change, file string) int { return strings.Compare(c.Path, file) })
	if named {
		id = m.list[i].ID // zero where it goes
	} else {
		rec, owned, err := m.s.dir.Manifest().Get(file)
		if err != nil {
			return nil, err
		}
		if owned {
			id = rec.Want
		}
	}
	if id.IsZero() {
		return nil, fs.ErrNotExist
	}
	out := &bytes.Buffer{}
	_, err := m.s.desired.WriteWanted(&bounded{w: out, left: maxListing, limit: maxListing, path: file}, id)
	return out.Bytes(), err
}
