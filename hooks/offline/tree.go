package offline

import (
	"bytes"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
)

// Tree is the content of a gateway after a sync of one commit, in the form of the agent's manifest and disk. Its zero value is
// a gateway that was never synced.
type Tree struct {
	Commit  plan.ID
	desired *desired.Tree
	head    plan.Header
	files   map[string]plan.Owned
	paths   []string // sorted
	dirs    map[string]bool
	refuse  bool // embedded secrets
}

var (
	_ plan.Manifest = (*Tree)(nil)
	_ plan.State    = (*Tree)(nil)
)

// record stores the files that a sync writes to an empty gateway.
func (t *Tree) record(changes *plan.Changes, ref string) {
	t.files, t.dirs = make(map[string]plan.Owned, len(changes.List)), map[string]bool{}
	for _, c := range changes.List {
		want, signed := changes.Signed[c.Path]
		if !signed {
			want = c.ID
		}
		t.files[c.Path] = plan.Owned{Path: c.Path, Want: want, Have: c.ID, Exec: c.Exec, Origin: c.Origin}
		t.paths = append(t.paths, c.Path)
		for dir := path.Dir(c.Path); dir != "." && !t.dirs[dir]; dir = path.Dir(dir) {
			t.dirs[dir] = true
		}
	}
	slices.Sort(t.paths)
	t.head = plan.Header{
		Ref: ref, Commit: t.Commit, Rules: t.desired.Rules().Fingerprint(), Mappings: changes.Mappings,
		Files: len(t.paths), Complete: true,
	}
}

// Header implements plan.Manifest.
func (t *Tree) Header() plan.Header { return t.head }

// Get implements plan.Manifest.
func (t *Tree) Get(name string) (plan.Owned, bool, error) {
	f, ok := t.files[name]
	return f, ok, nil
}

// All implements plan.Manifest.
func (t *Tree) All(prefix string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		from, _ := slices.BinarySearch(t.paths, prefix)
		for _, name := range t.paths[from:] {
			if !strings.HasPrefix(name, prefix) || !yield(t.files[name], nil) {
				return
			}
		}
	}
}

// Stat implements plan.State.
func (t *Tree) Stat(name string) (plan.Stat, error) {
	if f, ok := t.files[name]; ok {
		return plan.Stat{Size: f.Size, Mtime: f.Mtime, Kind: plan.File, Exec: f.Exec}, nil
	}
	if t.dirs[name] {
		return plan.Stat{Kind: plan.Dir}, nil
	}
	return plan.Stat{}, nil
}

// Blocked implements plan.State.
func (t *Tree) Blocked(name string) (string, plan.Kind, error) {
	for i := range len(name) {
		if _, ok := t.files[name[:i]]; ok && name[i] == '/' {
			return name[:i], plan.File, nil
		}
	}
	return "", plan.Missing, nil
}

// BlobID implements plan.State.
func (t *Tree) BlobID(name string) (plan.ID, error) {
	f, ok := t.files[name]
	if !ok {
		return plan.ID{}, fmt.Errorf("there is no file %s", name)
	}
	return f.Have, nil
}

// Read implements plan.State.
func (t *Tree) Read(name string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	there, err := t.Write(&atMost{&b, limit}, name)
	if err == nil && !there {
		err = fmt.Errorf("there is no file %s", name)
	}
	return b.Bytes(), err
}

// Walk implements plan.State.
func (t *Tree) Walk(dir string) iter.Seq2[plan.Found, error] {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	return func(yield func(plan.Found, error) bool) {
		for f, err := range t.All(prefix) {
			stat := plan.Stat{Size: f.Size, Mtime: f.Mtime, Kind: plan.File, Exec: f.Exec}
			if !yield(plan.Found{Path: f.Path, Stat: stat}, err) {
				return
			}
		}
	}
}

// atMost fails once more than left bytes are written.
type atMost struct {
	to   *bytes.Buffer
	left int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, fmt.Errorf("the file is larger than the limit")
	}
	return a.to.Write(p)
}
