package redundancy

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// resourceFiles distinguishes the files of a resource from files that only lie beside it, such as a README. A pair copies
// resources. Whether it copies other files is not documented, so both nodes write those.
type resourceFiles struct {
	dir     *disk.Dir
	desired *desired.Tree
	list    []plan.Change // the whole plan, sorted by path
	// git and live are the listings of the directory that was read last: most changes follow one in the same directory.
	git, live listing
}

// listing is what the resource.json of a directory lists.
type listing struct {
	dir   string
	files []string
	all   bool // every file of the directory belongs to the resource
}

func (f listing) has(name string) bool { return f.all || slices.Contains(f.files, name) }

// descriptors returns the names of the files that declare a resource, a project or a deployment mode.
func descriptors() []string {
	return []string{resource.File, unaryFile, "project.json", "config-mode.json"}
}

const unaryFile = "unary-resource.json"

// maxListing bounds a resource.json in bytes that is read for its file list.
const maxListing = 1 << 20

// copies reports whether a pair copies the file that a change writes or deletes: whether it belongs to a replicated resource
// according to git's resource.json or, if the change deletes the file, the resource.json on the disk.
func (m *resourceFiles) copies(c plan.Change) (bool, error) {
	dir, name := path.Split(c.Path)
	dir = path.Clean(dir)
	switch {
	case !c.Writes() || !Replicated(c.Path):
		return false, nil
	case slices.Contains(descriptors(), name):
		return true, nil
	case c.Op == plan.Delete:
		err := m.live.read(dir, m.onDisk)
		return m.live.has(name), err
	}
	err := m.git.read(dir, m.inGit)
	return m.git.has(name), err
}

// read reads the file lists of a directory, unless f has them. If a resource.json is invalid, it lists every file.
func (f *listing) read(dir string, read func(file string) ([]byte, error)) error {
	if f.dir == dir {
		return nil
	}
	*f = listing{}
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

func (m *resourceFiles) onDisk(file string) ([]byte, error) { return m.dir.Read(file, maxListing) }

// inGit reads git's version of a file. For a file that the plan does not change, this is the version of the last sync.
func (m *resourceFiles) inGit(file string) ([]byte, error) {
	var id plan.ID
	i, planned := slices.BinarySearchFunc(m.list, file, func(c plan.Change, file string) int { return strings.Compare(c.Path, file) })
	if planned {
		id = m.list[i].ID // zero if deleted
	} else {
		rec, owned, err := m.dir.Manifest().Get(file)
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
	out := bound.NewBuffer(maxListing, func() error {
		return failure.New(v1alpha1.ReasonLimitExceeded, "%s is larger than %d bytes", file, maxListing)
	})
	_, err := m.desired.WriteWanted(out, id)
	return out.Bytes(), err
}
