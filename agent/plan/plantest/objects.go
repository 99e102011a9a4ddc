// Package plantest has small, real in-memory implementations of plan's interfaces for tests: a store of git objects, a
// data directory, a manifest, and an Apply that carries out a plan between them.
package plantest

import (
	"crypto/sha1"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// Objects is a git object store with git's ids.
type Objects struct {
	mu    sync.Mutex
	trees map[plan.ID][]plan.Entry
	blobs map[plan.ID][]byte
	// Reads counts the trees that were read, BlobReads the blobs.
	Reads, BlobReads int
	// Missed counts the reads of missing blobs.
	Missed int
}

// NewObjects returns an empty store.
func NewObjects() *Objects {
	return &Objects{trees: make(map[plan.ID][]plan.Entry), blobs: make(map[plan.ID][]byte)}
}

// File is an entry of a tree that is not a directory.
type File struct {
	Content string
	Mode    plan.Mode // zero is plan.Regular
	// ID is the commit of a Submodule.
	ID plan.ID
}

// Files maps paths to files.
type Files map[string]File

// Text returns Files with the given contents by path.
func Text(content map[string]string) Files {
	f := make(Files, len(content))
	for path, text := range content {
		f[path] = File{Content: text}
	}
	return f
}

// Pairs returns Files with the given pairs of path and content.
func Pairs(pairs ...string) Files {
	files := make(Files)
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = File{Content: pairs[i+1]}
	}
	return files
}

// BlobID returns the git blob id of content, computed without plan.BlobID.
func BlobID(content []byte) plan.ID { return hash("blob", content) }

func hash(kind string, content []byte) plan.ID {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", kind, len(content))
	h.Write(content)
	return plan.ID(h.Sum(nil))
}

// Blob adds a blob.
func (o *Objects) Blob(content []byte) plan.ID {
	id := BlobID(content)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blobs[id] = slices.Clone(content)
	return id
}

// Commit adds the trees and blobs of files and returns the id of the root tree. There is no commit object.
func (o *Objects) Commit(files Files) plan.ID {
	dirs := make(map[string]Files)
	var top []plan.Entry
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f := files[path]
		name, rest, deep := strings.Cut(path, "/")
		if deep {
			if dirs[name] == nil {
				dirs[name] = make(Files)
			}
			dirs[name][rest] = f
			continue
		}
		e := plan.Entry{Name: name, Mode: f.Mode, ID: f.ID}
		if f.Mode == 0 {
			e.Mode = plan.Regular
		}
		if f.Mode != plan.Submodule {
			e.ID = o.Blob([]byte(f.Content))
		}
		top = append(top, e)
	}
	for name, below := range dirs {
		top = append(top, plan.Entry{Name: name, Mode: plan.Directory, ID: o.Commit(below)})
	}
	return o.TreeOf(top)
}

// TreeOf adds one tree, sorted as git does. Its entries may be ones that git would refuse.
func (o *Objects) TreeOf(entries []plan.Entry) plan.ID {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b plan.Entry) int { return strings.Compare(key(a), key(b)) })
	return o.RawTree(entries)
}

// RawTree adds one tree with its entries as they are.
func (o *Objects) RawTree(entries []plan.Entry) plan.ID {
	id := hash("tree", treeBytes(entries))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trees[id] = slices.Clone(entries)
	return id
}

func treeBytes(entries []plan.Entry) []byte {
	var text []byte
	modes := map[plan.Mode]string{
		plan.Regular: "100644", plan.Executable: "100755", plan.Directory: "40000", plan.Symlink: "120000",
		plan.Submodule: "160000",
	}
	for _, e := range entries {
		text = fmt.Appendf(text, "%s %s\x00%s", modes[e.Mode], e.Name, e.ID[:])
	}
	return text
}

// TreeBytes returns a tree in git's form.
func (o *Objects) TreeBytes(id plan.ID) ([]byte, error) {
	entries, err := o.Tree(id)
	return treeBytes(entries), err
}

func key(e plan.Entry) string {
	if e.Mode == plan.Directory {
		return e.Name + "/"
	}
	return e.Name
}

// Tree implements plan.Objects.
func (o *Objects) Tree(id plan.ID) ([]plan.Entry, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Reads++
	t, ok := o.trees[id]
	if !ok {
		return nil, fmt.Errorf("tree %s is not in the store", id)
	}
	return t, nil
}

// Has implements plan.Objects.
func (o *Objects) Has(id plan.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.blobs[id] != nil || o.trees[id] != nil
}

// WriteBlob implements plan.Objects.
func (o *Objects) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	o.mu.Lock()
	b, ok := o.blobs[id]
	o.BlobReads++
	if !ok {
		o.Missed++
	}
	o.mu.Unlock()
	if !ok {
		return 0, fmt.Errorf("blob %s is not in the store", id)
	}
	n, err := w.Write(b)
	return int64(n), err
}

// Forget removes an object, as if the store had been rebuilt.
func (o *Objects) Forget(id plan.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.trees, id)
	delete(o.blobs, id)
}

// Content returns a blob.
func (o *Objects) Content(t testing.TB, id plan.ID) []byte {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	b, ok := o.blobs[id]
	if !ok {
		t.Fatalf("blob %s is not in the store", id)
	}
	return b
}

// Manifest implements plan.Manifest in memory. The zero value is the manifest of a data directory before its first
// sync.
type Manifest struct {
	Head    plan.Header
	Records map[string]plan.Owned
}

// Header implements plan.Manifest.
func (m *Manifest) Header() plan.Header { return m.Head }

// Get implements plan.Manifest.
func (m *Manifest) Get(path string) (plan.Owned, bool, error) {
	r, ok := m.Records[path]
	return r, ok, nil
}

// All implements plan.Manifest.
func (m *Manifest) All(prefix string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		for _, path := range slices.Sorted(maps.Keys(m.Records)) {
			if strings.HasPrefix(path, prefix) && !yield(m.Records[path], nil) {
				return
			}
		}
	}
}

// Rules validates rules as ParseRules does.
func Rules(t testing.TB, r plan.Rules) plan.Rules {
	t.Helper()
	r, err := plan.NewRules(r)
	require.NoError(t, err)
	return r
}

// Mappings returns a mapping for each pair of source and destination.
func Mappings(t testing.TB, pairs ...string) []plan.Mapping {
	t.Helper()
	var list []plan.Mapping
	for i := 0; i < len(pairs); i += 2 {
		source, err := plan.ParsePath(pairs[i])
		require.NoError(t, err)
		destination, err := plan.ParsePath(pairs[i+1])
		require.NoError(t, err)
		list = append(list, plan.Mapping{Source: source, Destination: destination})
	}
	return list
}

// Excludes compiles patterns.
func Excludes(t testing.TB, patterns ...string) plan.Excludes {
	t.Helper()
	x, err := plan.NewExcludes(patterns)
	require.NoError(t, err)
	return x
}

// Facts returns the facts of a gateway.
func Facts() plan.Facts {
	return plan.Facts{
		GatewayName: "line-1", PodName: "line-1-0", Namespace: "north", CRName: "plant", Ref: "main",
		Commit: "0123456789abcdef0123456789abcdef01234567", Labels: map[string]string{"hostile": ".git", "site": "7"},
	}
}
