package offline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/internal/bound"
)

// Tree is the content of a gateway after a sync of one commit, as the data directory and the agent's manifest, its list of the files that it
// wrote, would have it. The zero Tree is a gateway that was never synced. Sizes and times of files are unknown and 0.
type Tree struct {
	Commit        plan.ID
	desired       *desired.Tree
	header        plan.Header
	files         map[string]plan.Owned
	paths         []string // sorted
	dirs          map[string]bool
	refuseSecrets bool // embedded secrets are an error
}

var (
	_ plan.Manifest = (*Tree)(nil)
	_ plan.State    = (*Tree)(nil)
)

// record stores the files that a sync writes to an empty gateway.
func (t *Tree) record(changes *plan.Changes, ref string) {
	t.files, t.paths, t.dirs = make(map[string]plan.Owned, len(changes.List)), nil, map[string]bool{}
	for _, c := range changes.List {
		want, signed := changes.Signed[c.Path] // git's blob of a file that the plan signs again
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
	t.header = plan.Header{
		Ref: ref, Commit: t.Commit, Rules: t.desired.Rules().Fingerprint(), Mappings: changes.Mappings,
		Files: len(t.paths), Complete: true,
	}
}

// Header implements plan.Manifest.
func (t *Tree) Header() plan.Header { return t.header }

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
		return plan.Stat{Kind: plan.File, Exec: f.Exec}, nil
	}
	if t.dirs[name] {
		return plan.Stat{Kind: plan.Dir}, nil
	}
	return plan.Stat{}, nil
}

// Blocked implements plan.State. It returns the file at the path of a directory above name.
func (t *Tree) Blocked(name string) (string, plan.Kind, error) {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		if _, ok := t.files[name[:i]]; ok {
			return name[:i], plan.File, nil
		}
	}
	return "", plan.Missing, nil
}

// BlobID implements plan.State.
func (t *Tree) BlobID(name string) (plan.ID, error) {
	f, ok := t.files[name]
	if !ok {
		return plan.ID{}, missing(name)
	}
	return f.Have, nil
}

// Read implements plan.State.
func (t *Tree) Read(name string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	err := t.CopyFile(bound.NewWriter(&b, limit, func() error { return errors.New("the file is larger than the limit") }), name)
	return b.Bytes(), err
}

// CopyFile implements plan.State. If there is no such file, the error wraps fs.ErrNotExist.
func (t *Tree) CopyFile(w io.Writer, name string) error {
	f, ok := t.files[name]
	if !ok {
		return missing(name)
	}
	_, err := t.desired.WriteBlob(w, f.Have)
	return err
}

// WriteFiles writes the files of changes to a directory, which must be new or empty.
func (t *Tree) WriteFiles(dir string, changes *plan.Changes) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // only a directory handle
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: use a new directory", dir)
	}
	for _, f := range changes.List {
		if err := t.writeFileBelow(root, f); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) writeFileBelow(root *os.Root, f plan.Change) error {
	if err := root.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if f.Exec {
		mode = 0o755
	}
	out, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(t.CopyFile(out, f.Path), out.Close())
}

func missing(name string) error {
	return fmt.Errorf("there is no file %s: %w", name, fs.ErrNotExist)
}

// Walk implements plan.State.
func (t *Tree) Walk(dir string) iter.Seq2[plan.Found, error] {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	return func(yield func(plan.Found, error) bool) {
		for f, err := range t.All(prefix) {
			if !yield(plan.Found{Path: f.Path, Stat: plan.Stat{Kind: plan.File, Exec: f.Exec}}, err) {
				return
			}
		}
	}
}
