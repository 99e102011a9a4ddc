package sync

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// members tells the files that are part of a resource from those that only lie beside one (a README): a gateway knows the
// first, and whether a pair copies the others is not known. So those are written on both nodes.
type members struct {
	s   *run
	dir string // looked at last
	// files are what resource.json lists there; all says that every file of the directory is part of the resource.
	git, live listing
}

type listing struct {
	files []string
	all   bool
}

func (l listing) has(name string) bool { return l.all || slices.Contains(l.files, name) }

// maxListing bounds a resource.json that is read for its list of files.
const maxListing = 1 << 20

// has reports whether the gateway knows the file of a change: by git's resource.json, or for one that goes by the one that
// lies there.
func (m *members) has(c plan.Change) (bool, error) {
	dir, name := path.Split(c.Path)
	if slices.Contains([]string{resource.File, "unary-resource.json", "project.json", "config-mode.json"}, name) {
		return true, nil
	}
	if dir = path.Clean(dir); dir != m.dir {
		if err := m.look(dir); err != nil {
			return false, err
		}
	}
	if c.Op == plan.Delete {
		return m.live.has(name), nil
	}
	return m.git.has(name), nil
}

func (m *members) look(dir string) error {
	m.dir, m.git, m.live = dir, listing{}, listing{}
	for _, name := range []string{resource.File, "unary-resource.json"} {
		file := dir + "/" + name
		want, ok, err := m.s.desired.Lookup(file)
		if err != nil {
			return err
		}
		if ok {
			out := &bytes.Buffer{}
			if _, err := m.s.desired.WriteBlob(&bounded{w: out, left: maxListing, limit: maxListing, path: file}, want.ID); err != nil {
				return err
			}
			m.git = listed(name, out.Bytes())
		}
		raw, err := m.s.dir.Read(file, maxListing)
		if err == nil {
			m.live = listed(name, raw)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// listed is what a resource.json says of its files. One that cannot be read makes every file count: it is waited for.
func listed(name string, raw []byte) listing {
	if name != resource.File {
		return listing{all: true}
	}
	var doc struct {
		Files []string `json:"files"`
	}
	return listing{all: json.Unmarshal(raw, &doc) != nil, files: doc.Files}
}
