package disk

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

const (
	signed   = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"a","timestamp":"t1"},"lastModificationSignature":"s1"}}`
	resigned = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"external","timestamp":"t2"},"lastModificationSignature":"s2"}}`
)

// driftWorld returns a synced directory and a Dir that can read the wanted bytes.
func driftWorld(t *testing.T) (string, *Dir) {
	want := tree{}
	for _, v := range []string{"a", "b", "c", "d"} {
		dir := "projects/p/" + v + "/"
		want[dir+"resource.json"] = file{content: signed}
		want[dir+"view.json"] = file{content: `{"k":1,"l":2}`}
		want[dir+"thumbnail.png"] = file{content: "png"}
	}
	blobs := map[plan.ID]string{}
	for _, f := range want {
		blobs[safe.BlobID([]byte(f.content))] = f.content
	}
	root := seeded(t)
	d := open(t, root, Options{Wanted: func(w io.Writer, id plan.ID) (int64, error) {
		c, ok := blobs[id]
		if !ok {
			return 0, fmt.Errorf("no blob %s", id)
		}
		n, err := io.WriteString(w, c)
		return int64(n), err
	}})
	apply(t, d, want)
	return root, d
}

func drift(t *testing.T, d *Dir, full bool) Drift {
	t.Helper()
	got, err := d.Drift(t.Context(), full)
	require.NoError(t, err)
	return got
}

// F15: the drift check reports each kind of change.
func TestDriftKinds(t *testing.T) {
	root, d := driftWorld(t)
	at := func(p string) string { return filepath.Join(root, "projects/p", p) }
	assert.Equal(t, Drift{Checked: 12}, drift(t, d, false), "nothing drifted, nothing hashed")
	assert.Equal(t, Drift{Checked: 12, Hashed: 12}, drift(t, d, true))

	put(t, root, "projects/p/a/view.json", "edited")
	require.NoError(t, os.Remove(at("b/view.json")))
	require.NoError(t, os.Chmod(at("c/view.json"), 0o755))
	require.NoError(t, os.Remove(at("c/resource.json")))
	require.NoError(t, os.Mkdir(at("c/resource.json"), 0o755))
	require.NoError(t, os.Remove(at("d/view.json")))
	require.NoError(t, os.Symlink(at("a/view.json"), at("d/view.json")))
	put(t, root, "projects/p/a/thumbnail.png", "png of the edit")
	want := Drift{Files: 6, Checked: 12, Hashed: 2, Paths: []Drifted{
		{"projects/p/a/thumbnail.png", Modified}, {"projects/p/a/view.json", Modified}, {"projects/p/b/view.json", Gone},
		{"projects/p/c/resource.json", Retyped}, {"projects/p/c/view.json", Chmodded}, {"projects/p/d/view.json", Retyped},
	}}
	want.Hashed++ // the file with the changed mode is hashed once
	assert.Equal(t, want, drift(t, d, false))
	want.Hashed--
	assert.Equal(t, want, drift(t, d, false), "looking does not change what is seen")
}

// F15: changes that the gateway makes by itself are not drift. The check adopts them once.
func TestDriftAdoptsNoise(t *testing.T) {
	root, d := driftWorld(t)
	put(t, root, "projects/p/a/resource.json", resigned)
	put(t, root, "projects/p/b/thumbnail.png", "another png")
	put(t, root, "projects/p/c/view.json", `{ "l": 2, "k": 1 }`)
	require.NoError(t, os.Chtimes(filepath.Join(root, "projects/p/d/view.json"), testTime, testTime))
	assert.Equal(t, Drift{Adopted: 4, Checked: 12, Hashed: 4}, drift(t, d, false))
	assert.Equal(t, Drift{Checked: 12}, drift(t, d, false))
	assertManifest(t, d)
	rec, ok, err := d.Manifest().Get("projects/p/a/resource.json")
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, safe.BlobID([]byte(signed)), rec.Want)
	assert.Equal(t, safe.BlobID([]byte(resigned)), rec.Have)
	assert.Equal(t, 12, d.Manifest().Header().Files)
}

// A full volume hides no drift. The agent cannot adopt the gateway's changes then, but does so once there is space.
func TestDriftOnFullVolume(t *testing.T) {
	root, d := driftWorld(t)
	put(t, root, "projects/p/a/resource.json", resigned)
	put(t, root, "projects/p/b/view.json", "edited")
	full := true
	d.vol.Around = func(e safe.Effect, do func() error) error {
		if full && e.Op == "fill" {
			return syscall.ENOSPC
		}
		return do()
	}
	paths := []Drifted{{"projects/p/b/view.json", Modified}}
	for range 2 {
		assert.Equal(t, Drift{Files: 1, Paths: paths, Adopted: 1, Checked: 12, Hashed: 2}, drift(t, d, false))
	}
	full = false
	assert.Equal(t, Drift{Files: 1, Paths: paths, Adopted: 1, Checked: 12, Hashed: 2}, drift(t, d, false))
	assert.Equal(t, Drift{Files: 1, Paths: paths, Checked: 12, Hashed: 1}, drift(t, d, false))
	assertNoLeftovers(t, root)
}

// hide changes a file but keeps its size and mtime. Its new ctime is later than the mtime of the manifest.
func hide(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	was, err := os.Stat(path)
	require.NoError(t, err)
	man, err := os.Stat(filepath.Join(root, safe.OwnDir, manifestFile))
	require.NoError(t, err)
	for {
		put(t, root, name, content)
		require.NoError(t, os.Chtimes(path, was.ModTime(), was.ModTime()))
		is, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, []any{was.Size(), was.ModTime()}, []any{is.Size(), is.ModTime()})
		if c := safe.AttrsOf(is).Ctime; c == 0 || c > man.ModTime().UnixNano() && c > safe.AttrsOf(was).Ctime {
			return
		}
	}
}

// F15: the check finds an edit that keeps size and mtime, reports it every time, and makes it visible to a plan.
func TestDriftWithSameSizeAndMtime(t *testing.T) {
	const path = "projects/p/a/view.json"
	edited := []Drifted{{path, Modified}}
	for name, looks := range map[string]int{"before the first look": 0, "after a look": 1} {
		t.Run(name, func(t *testing.T) {
			root, d := driftWorld(t)
			for range looks {
				require.Zero(t, drift(t, d, false).Files)
			}
			hide(t, root, path, `{"k":9,"l":9}`)
			for range 3 {
				assert.Equal(t, edited, drift(t, d, false).Paths)
			}
			rec, _, err := d.Manifest().Get(path)
			require.NoError(t, err)
			st, err := d.Stat(path)
			require.NoError(t, err)
			assert.NotEqual(t, rec.Mtime, st.Mtime, "a plan goes by the record")
			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			assert.Equal(t, edited, drift(t, d, false).Paths, "after a restart, too")

			put(t, root, path, `{"k":1,"l":2}`)
			assert.Equal(t, Drift{Checked: 12, Hashed: 1, Adopted: 1}, drift(t, d, false), "what git wants is there again")
			assert.Equal(t, Drift{Checked: 12}, drift(t, d, false))
		})
	}
	t.Run("another sync meanwhile", func(t *testing.T) {
		root, d := driftWorld(t)
		require.Zero(t, drift(t, d, false).Files)
		hide(t, root, path, `{"k":9,"l":9}`)
		want := tree{}
		for rec, err := range d.Manifest().All("") {
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(root, rec.Path))
			require.NoError(t, err)
			want[rec.Path] = file{content: string(b)}
		}
		want[path] = file{content: `{"k":1,"l":2}`}
		want["projects/p/b/view.json"] = file{content: "of another commit"}
		apply(t, d, want, func(c *plan.Change) {
			if c.Path == path { // as in a real plan, which compares by stat
				c.Op, c.FoundID = plan.Adopt, c.ID
			}
		})
		assert.Equal(t, edited, drift(t, d, false).Paths)
	})
	t.Run("another ctime alone", func(t *testing.T) {
		root, d := driftWorld(t)
		require.Zero(t, drift(t, d, false).Files)
		hide(t, root, path, `{"k":1,"l":2}`)
		assert.Equal(t, Drift{Checked: 12, Hashed: 1}, drift(t, d, false))
		assert.Equal(t, Drift{Checked: 12}, drift(t, d, false), "it is read once")
	})
}

// F15: if ctime gives no hint, the check reads every file within a day, spread evenly over the checks.
func TestDriftReadsEveryFileDaily(t *testing.T) {
	const n = 500
	want := tree{}
	for i := range n {
		want[fmt.Sprintf("projects/p/v%03d", i)] = file{content: "1"}
	}
	now := testTime
	root := seeded(t)
	d := open(t, root, Options{around: quick, Now: func() time.Time { return now }})
	apply(t, d, want)
	require.Zero(t, drift(t, d, false).Hashed)
	read := 0
	for range 24 * 60 {
		now = now.Add(time.Minute)
		got := drift(t, d, false)
		assert.LessOrEqual(t, got.Hashed, 1)
		read += got.Hashed
	}
	assert.InDelta(t, 2*n, read, 0.2*n)

	for i := range n { // as if no ctime had changed
		p := fmt.Sprintf("projects/p/v%03d", i)
		hide(t, root, p, "2")
		fi, err := os.Stat(filepath.Join(root, p))
		require.NoError(t, err)
		d.looked.ctimes[i] = safe.AttrsOf(fi).Ctime
	}
	for range 24 {
		now = now.Add(time.Hour)
		drift(t, d, false)
	}
	assert.Equal(t, n, drift(t, d, false).Files)
}

// A chown of all files makes all of them suspects. Each check reads a bounded part of them.
func TestDriftReadsBoundedBytes(t *testing.T) {
	want := tree{}
	for i := range 5 {
		want[fmt.Sprintf("projects/p/v%d", i)] = file{content: fmt.Sprint(i)}
	}
	root := seeded(t)
	d := open(t, root, Options{around: quick})
	apply(t, d, want)
	require.Zero(t, drift(t, d, false).Files)
	for p := range want {
		hide(t, root, p, "x")
		require.NoError(t, os.Truncate(filepath.Join(root, p), maxSuspects/2))
	}
	for _, rec := range slices.Collect(owned(t, d)) {
		fi, err := os.Stat(filepath.Join(root, rec.Path))
		require.NoError(t, err)
		rec.Size, rec.Mtime = fi.Size(), fi.ModTime().UnixNano()
		(&driftCheck{d: d, adopt: []plan.Owned{rec}}).record(d.Manifest().Header())
	}
	d.looked = looked{m: d.manifest(), ctimes: make([]int64, len(want))}
	for _, files := range []int{2, 4, 5, 5} {
		assert.Equal(t, files, drift(t, d, false).Files)
	}
}

func owned(t *testing.T, d *Dir) iter.Seq[plan.Owned] {
	return func(yield func(plan.Owned) bool) {
		for rec, err := range d.Manifest().All("") {
			require.NoError(t, err)
			if !yield(rec) {
				return
			}
		}
	}
}

// F11: the agent does not hash a file above the size limit, and canceling the context stops a hash.
func TestHashingStopsWithContext(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{MaxBlob: 1 << 20})
	const path = "projects/p/a"
	apply(t, d, text(map[string]string{path: "1"}))
	require.NoError(t, os.Truncate(filepath.Join(root, path), 1<<40))
	began := time.Now()
	id, err := d.BlobID(path)
	require.NoError(t, err)
	assert.True(t, id.IsZero())
	assert.Equal(t, []Drifted{{path, Modified}}, drift(t, d, true).Paths)
	assert.Less(t, time.Since(began), 20*time.Second)

	d.o.MaxBlob = 0
	ctx, cancel := context.WithCancel(t.Context())
	state := d.Within(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := state.BlobID(path)
		done <- err
	}()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	_, err = state.Stat(path)
	require.ErrorIs(t, err, context.Canceled)
	for _, err := range state.Walk("projects") {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// A file above the size limit goes to lost+found without being hashed.
func TestTooLargeFileIsKept(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{MaxBlob: 10})
	const path = "projects/p/thumbnail.png"
	apply(t, d, text(map[string]string{path: "1"}))
	large := strings.Repeat("x", 11)
	put(t, root, path, large)
	res := apply(t, d, text(map[string]string{path: "2"}), func(c *plan.Change) { c.Conflict = false })
	assert.Equal(t, 1, res.Saved)
	assert.Equal(t, "2", contents(t, root)[path])
	assert.Contains(t, everything(t, root), large)
}

// F15: the drift check reports a burst of gateway writes and changes no file.
func TestDriftCheckNeverChangesAFile(t *testing.T) {
	root, d := driftWorld(t)
	for i := range 50 {
		put(t, root, "projects/p/a/view.json", fmt.Sprintf(`{"n":%d}`, i))
		before := snapshot(t, root)
		assert.Equal(t, 1, drift(t, d, i%2 == 0).Files)
		assert.Equal(t, before, snapshot(t, root))
	}
}
