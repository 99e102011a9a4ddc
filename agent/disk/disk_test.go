package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/single"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
)

// file is the wanted file at a path.
type file struct {
	content string
	exec    bool
}

// tree is a commit: the wanted files by path.
type tree map[string]file

// text returns a commit of files that are not executable.
func text(content map[string]string) tree {
	t := tree{}
	for p, c := range content {
		t[p] = file{content: c}
	}
	return t
}

func (t tree) id() plan.ID {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(t)) {
		fmt.Fprintf(&b, "%s %v %q\n", p, t[p].exec, t[p].content)
	}
	return plan.BlobID([]byte(b.String()))
}

func (t tree) source() Source {
	return func(w io.Writer, c plan.Change) error {
		_, err := io.WriteString(w, t[c.Path].content)
		return err
	}
}

// seeded returns a data directory as the gateway leaves it after its first start.
func seeded(t testing.TB) string {
	t.Helper()
	return seededIn(t, t.TempDir())
}

func seededIn(t testing.TB, root string) string {
	t.Helper()
	put(t, root, ".ignition-seed-complete", "")
	put(t, root, "ignition.conf", "wrapper")
	put(t, root, "config/resources/core/config-mode.json", "{}")
	put(t, root, "projects/.resources/cafe", "blob")
	return root
}

func put(t testing.TB, root, path, content string) {
	t.Helper()
	p := filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(t, os.WriteFile(p, []byte(content), 0o644))
}

func open(t testing.TB, root string, o Options) *Dir {
	t.Helper()
	d, err := Open(root, o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	return d
}

// planFor is a minimal planner: it returns the changes that turn the directory into want.
func planFor(t testing.TB, d *Dir, want tree, mods ...func(*plan.Change)) *plan.Changes {
	t.Helper()
	owned := map[string]plan.Owned{}
	for rec, err := range d.Manifest().All("") {
		require.NoError(t, err)
		owned[rec.Path] = rec
	}
	paths := maps.Clone(want)
	for p := range owned {
		paths[p] = file{}
	}
	ch := &plan.Changes{From: d.Manifest().Header().Commit, To: want.id(), Full: true, Total: len(want)}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		rec, has := owned[p]
		f, wanted := want[p]
		st, err := d.Stat(p)
		require.NoError(t, err)
		c := plan.Change{Path: p, Found: st, Owned: has, Exec: f.exec}
		if wanted {
			c.ID = plan.BlobID([]byte(f.content))
		}
		if st.Kind == plan.File {
			c.FoundID, err = d.BlobID(p)
			require.NoError(t, err)
		}
		c.Conflict = st.Kind != plan.Missing && st.Kind != plan.Dir && (!has || c.FoundID != rec.Have)
		switch {
		case !wanted && st.Kind != plan.File:
			c.Op = plan.Release
		case !wanted:
			c.Op = plan.Delete
		case st.Kind == plan.Missing || st.Kind == plan.Dir:
			c.Op = plan.Create
		case c.FoundID != c.ID || st.Exec != f.exec:
			c.Op = plan.Update
		case !has || rec.Want != c.ID || rec.Have != c.FoundID || rec.Mtime != st.Mtime || rec.Exec != c.Exec:
			c.Op = plan.Adopt
		default:
			ch.Unchanged++
			continue
		}
		for _, mod := range mods {
			mod(&c)
		}
		ch.List = append(ch.List, c)
	}
	return ch
}

// head returns the header of the manifest after a sync to want.
func head(want tree) plan.Header {
	return plan.Header{Ref: "main", Commit: want.id(), Rules: "r1", Complete: true}
}

// staged stages a sync of the directory to want.
func staged(t testing.TB, d *Dir, want tree) *Staged {
	t.Helper()
	s, err := d.Stage(t.Context(), planFor(t, d, want), nil, want.source())
	require.NoError(t, err)
	return s
}

// apply syncs the directory to want.
func apply(t testing.TB, d *Dir, want tree, mods ...func(*plan.Change)) Result {
	t.Helper()
	res, err := tryApply(t, d, want, mods...)
	require.NoError(t, err)
	return res
}

func tryApply(t testing.TB, d *Dir, want tree, mods ...func(*plan.Change)) (Result, error) {
	t.Helper()
	return tryApplyWith(t, d, want, Snapshots{}, mods...)
}

// byID orders files as a store does: not by their paths.
func byID(id plan.ID) int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 1) }

// tryApplyWith is tryApply with a snapshot, if o keeps any.
func tryApplyWith(t testing.TB, d *Dir, want tree, o Snapshots, mods ...func(*plan.Change)) (Result, error) {
	t.Helper()
	s, err := d.Stage(t.Context(), planFor(t, d, want, mods...), byID, want.source())
	if err == nil && o.Keep > 0 {
		err = s.Snapshot(o)
	}
	if err != nil {
		return Result{}, err
	}
	return s.Apply(t.Context(), head(want))
}

// readTree returns kind, mode and content by path, without .stoker.
func readTree(t testing.TB, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || rel == "." {
			return err
		}
		if e.Name() == safe.OwnDir {
			return fs.SkipDir
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			m[rel+"/"] = fi.Mode().Perm().String()
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			m[rel] = "-> " + to
			return err
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(p)
			m[rel] = fi.Mode().Perm().String() + " " + string(b)
			return err
		default:
			m[rel] = fi.Mode().String()
		}
		return nil
	}))
	return m
}

// contents returns the content of each file by path, without .stoker.
func contents(t testing.TB, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for p, v := range readTree(t, root) {
		if !strings.HasSuffix(p, "/") {
			_, v, _ = strings.Cut(v, " ")
			m[p] = v
		}
	}
	return m
}

// assertFiles checks the contents of the files of want.
func assertFiles(t testing.TB, root string, want tree) {
	t.Helper()
	got := contents(t, root)
	for p, f := range want {
		assert.Equal(t, f.content, got[p], p)
	}
}

func TestSyncDeliversTwoCommits(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	one := text(map[string]string{
		"projects/p/project.json": "{}", "projects/p/v/view.json": "1", "projects/p/v/resource.json": "r",
		"config/resources/core/x/config.json": "c",
	})
	one["projects/p/run.sh"] = file{"#!", true}
	res := apply(t, d, one)
	assert.Equal(t, Result{Applied: true, Committed: true}, res)
	got := readTree(t, root)
	assert.Equal(t, "-rw-r--r-- 1", got["projects/p/v/view.json"])
	assert.Equal(t, "-rwxr-xr-x #!", got["projects/p/run.sh"])
	assert.Equal(t, "-rwxr-xr-x", got["projects/p/v/"])
	assert.Equal(t, "-rw-r--r-- blob", got["projects/.resources/cafe"])

	two := maps.Clone(one)
	two["projects/p/v/view.json"] = file{content: "22"}
	two["projects/p/run.sh"] = file{"#!", false}
	delete(two, "config/resources/core/x/config.json")
	two["projects/q/project.json"] = file{content: "{}"}
	res = apply(t, d, two)
	assert.Equal(t, Result{Applied: true, Committed: true}, res)
	got = readTree(t, root)
	assert.Equal(t, "-rw-r--r-- 22", got["projects/p/v/view.json"])
	assert.Equal(t, "-rw-r--r-- #!", got["projects/p/run.sh"])
	assert.NotContains(t, got, "config/resources/core/x/", "an empty directory that the agent created is removed")
	assert.Contains(t, got, "config/resources/core/")
	assert.Equal(t, 5, d.Manifest().Header().Files)
	assert.Equal(t, two.id(), d.Manifest().Header().Commit)
	assert.Empty(t, planFor(t, d, two).List)
	assertNoLeftovers(t, root)
}

// assertNoLeftovers checks INV3: .stoker has no journal, no staging and no other leftovers of a sync.
func assertNoLeftovers(t testing.TB, root string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(root, safe.OwnDir))
	require.NoError(t, err)
	for _, e := range list {
		assert.Contains(t, []string{lock.FileName, manifestFile, lostfound.DirName, snapshot.DirName}, e.Name())
	}
}

// assertManifest checks INV4: each record matches the file on disk.
func assertManifest(t testing.TB, d *Dir) {
	t.Helper()
	for rec, err := range d.Manifest().All("") {
		require.NoError(t, err)
		st, err := d.Stat(rec.Path)
		require.NoError(t, err)
		assert.Equal(t, plan.Stat{Kind: plan.File, Size: rec.Size, Mtime: rec.Mtime, Exec: rec.Exec}, st, rec.Path)
		id, err := d.BlobID(rec.Path)
		require.NoError(t, err)
		assert.Equal(t, rec.Have, id, rec.Path)
	}
}

var testTime = time.Date(2026, 11, 20, 6, 30, 0, 0, time.UTC)

func fixed() time.Time { return testTime }

// quick skips all syncs to disk, for directories that need not survive the test.
func quick(e safe.Effect, do func() error) error {
	if strings.HasPrefix(e.Op, "sync") {
		return nil
	}
	return do()
}

// memory returns a directory in memory, or a temporary one if there is no /dev/shm.
func memory(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "disk-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// everything returns the contents of all files, including those in .stoker.
func everything(t testing.TB, root string) map[string]bool {
	all := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			b, rerr := os.ReadFile(p)
			all[string(b)], err = true, rerr
		}
		return err
	}))
	return all
}

// In git, a file becomes a directory or vice versa, and the parent directories, which the agent created, contain nothing else. The sync must not
// remove these parents, and a rollback must restore the previous state.
func TestFileDirectorySwap(t *testing.T) {
	inner := "projects/p/ignition/scripts"
	for name, change := range map[string]struct{ from, to []string }{
		"a directory becomes a file":                {[]string{inner + "/code.py"}, []string{inner}},
		"a deep directory becomes a file":           {[]string{inner + "/a/b/code.py", inner + "/a/c"}, []string{inner}},
		"a file becomes a directory":                {[]string{inner}, []string{inner + "/code.py"}},
		"a file becomes a deep directory":           {[]string{inner}, []string{inner + "/a/b/code.py"}},
		"both ways":                                 {[]string{inner, "projects/p/x/y/z"}, []string{inner + "/code.py", "projects/p/x/y"}},
		"a directory becomes a file, another stays": {[]string{inner + "/code.py", "projects/p/ignition/a/b"}, []string{inner}},
	} {
		t.Run(name, func(t *testing.T) {
			root := seededIn(t, memory(t))
			fail := ""
			d := open(t, root, Options{Around: func(e safe.Effect, do func() error) error {
				if e.Op == "create" && e.Path == fail {
					return errors.New("not now")
				}
				return quick(e, do)
			}})
			start := readTree(t, root)
			of := func(paths []string, content string) tree {
				m := map[string]string{}
				for _, p := range paths {
					m[p] = content
				}
				return text(m)
			}
			one, two := of(change.from, "1"), of(change.to, "2")
			apply(t, d, one)
			before := readTree(t, root)

			fail = safe.OwnDir + "/" + manifestFile + ".new"
			_, err := tryApply(t, d, two)
			require.ErrorContains(t, err, "not now")
			assert.Equal(t, before, readTree(t, root), "the failed sync is rolled back")

			fail = ""
			apply(t, d, two)
			assertFiles(t, root, two)
			assert.Empty(t, planFor(t, d, two).List)
			assertManifest(t, d)
			assertNoLeftovers(t, root)
			apply(t, d, tree{})
			assert.Equal(t, start, readTree(t, root), "all created directories are removed")
		})
	}
}

// TestNamesAreDocumented compares the names in .stoker that the code declares with the package comment and the documentation.
func TestNamesAreDocumented(t *testing.T) {
	names := declared(t, ".", `\w*(?:File|FileName|Dir|DirName|Staged)`)
	var notes []string
	for _, note := range declared(t, "..", `[a-z]\w*Note(?:Name)?`) {
		notes = append(notes, records.NotePrefix+note)
	}
	require.Contains(t, names, areasFile)
	require.Contains(t, notes, "note-unloaded")
	t.Run("threats.md", func(t *testing.T) {
		table := section(t, "../../docs/internals/threats.md", "### The files of .stoker", "\n## ")
		var listed []string
		for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
			listed = append(listed, m[1])
		}
		assert.ElementsMatch(t, slices.Concat(names, notes), listed)
	})
	// The other lists name restore.new, like each file that is being written, as *.new.
	names[slices.Index(names, single.Staged)] = "*.new"
	t.Run("package comment", func(t *testing.T) {
		var listed []string
		for _, m := range regexp.MustCompile(`(?m)^//\t(\S+)`).FindAllStringSubmatch(section(t, "doc.go", "// # Files in .stoker", "// # "), -1) {
			listed = append(listed, strings.TrimSuffix(m[1], "/"))
		}
		assert.ElementsMatch(t, append(names, records.NotePrefix+"*"), listed)
	})
	t.Run("files.md", func(t *testing.T) {
		page := section(t, "../../docs/reference/files.md", "## In `.stoker/`", "\n## ")
		want := slices.Concat(names, notes, []string{"*.damaged", "*.damaged-*"})
		var listed []string
		for _, row := range regexp.MustCompile("(?m)^\\| (`.*?)$").FindAllString(page, -1) {
			columns := strings.Split(row, "|")
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[1], -1) {
				listed = append(listed, strings.TrimSuffix(m[1], "/"))
			}
		}
		// The rows of journal and staging name these two in their text.
		assert.ElementsMatch(t, want, append(listed, undoFile, areasFile))
		assert.Contains(t, page, "`"+undoFile+"`")
		assert.Contains(t, page, "`"+areasFile+"`")
	})
}

// declared returns the values of the string constants below a folder, of those whose name matches.
func declared(t *testing.T, dir, name string) (values []string) {
	t.Helper()
	constant := regexp.MustCompile(`(?m)^\s*(?:const )?` + name + `\s+= "([a-z][^"]*)"`)
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range constant.FindAllStringSubmatch(string(b), -1) {
			values = append(values, m[1])
		}
		return err
	}))
	return values
}

// section returns the text of a file from a heading to the next one.
func section(t *testing.T, file, heading, next string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	_, text, found := strings.Cut(string(b), heading)
	require.True(t, found, "%s has no %q", file, heading)
	text, _, _ = strings.Cut(text, next)
	return text
}
