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
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// resource.json as in git, and as a gateway writes it when it signs the resource again.
const (
	signed   = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"a","timestamp":"t1"},"lastModificationSignature":"s1"}}`
	resigned = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"external","timestamp":"t2"},"lastModificationSignature":"s2"}}`
)

// syncedViews returns a data directory with four synced views of three files each. Its Dir can read the bytes from git, so that it can
// compare JSON by meaning.
func syncedViews(t *testing.T) (string, *Dir) {
	want := tree{}
	for _, v := range []string{"a", "b", "c", "d"} {
		dir := "projects/p/" + v + "/"
		want[dir+"resource.json"] = file{content: signed}
		want[dir+"view.json"] = file{content: `{"k":1,"l":2}`}
		want[dir+"thumbnail.png"] = file{content: "png"}
	}
	blobs := map[plan.ID]string{} // in git
	for _, f := range want {
		blobs[plan.BlobID([]byte(f.content))] = f.content
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

// drift runs a drift check. A full check hashes every file.
func drift(t *testing.T, d *Dir, full bool) Drift {
	t.Helper()
	got, err := d.Drift(t.Context(), full)
	require.NoError(t, err)
	return got
}

// F15 of docs/internals/threats.md: the drift check reports each kind of change.
func TestDriftKinds(t *testing.T) {
	root, d := syncedViews(t)
	at := func(p string) string { return filepath.Join(root, "projects/p", p) }
	assert.Equal(t, Drift{Checked: 12}, drift(t, d, false), "no drift, so no file is hashed")
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
	want.Hashed++ // the first check also hashes the file with the changed mode
	before := readTree(t, root)
	assert.Equal(t, want, drift(t, d, false))
	want.Hashed--
	assert.Equal(t, want, drift(t, d, false), "a second check reports the same")
	want.Hashed = 9 // a full check reads all regular files
	assert.Equal(t, want, drift(t, d, true))
	assert.Equal(t, before, readTree(t, root), "a check changes no file")
}

// F15: Unchanged reports false for each kind of change that Drift finds, and true again once Drift has adopted a rewrite.
func TestUnchanged(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, root, path string){
		"content": func(t *testing.T, root, path string) { put(t, root, path, "edited") },
		"missing": func(t *testing.T, root, path string) { require.NoError(t, os.Remove(filepath.Join(root, path))) },
		"mode":    func(t *testing.T, root, path string) { require.NoError(t, os.Chmod(filepath.Join(root, path), 0o755)) },
		"same size and mtime": func(t *testing.T, root, path string) {
			fi, err := os.Stat(filepath.Join(root, path))
			require.NoError(t, err)
			time.Sleep(20 * time.Millisecond) // only the change time differs, and some kernels advance it every ten milliseconds
			require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(`{"k":3,"l":2}`), 0o644))
			require.NoError(t, os.Chtimes(filepath.Join(root, path), fi.ModTime(), fi.ModTime()))
		},
		"link": func(t *testing.T, root, path string) {
			require.NoError(t, os.Remove(filepath.Join(root, path)))
			require.NoError(t, os.Symlink(filepath.Join(root, "projects/p/a/resource.json"), filepath.Join(root, path)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, d := syncedViews(t)
			require.True(t, d.Unchanged(t.Context()))
			change(t, root, "projects/p/d/view.json")
			assert.False(t, d.Unchanged(t.Context()))
			assert.Equal(t, 1, drift(t, d, false).Files)
		})
	}
	t.Run("adopted", func(t *testing.T) {
		root, d := syncedViews(t)
		put(t, root, "projects/p/a/resource.json", resigned)
		assert.False(t, d.Unchanged(t.Context()))
		assert.Equal(t, 1, drift(t, d, false).Adopted)
		assert.True(t, d.Unchanged(t.Context()))
	})
	t.Run("canceled", func(t *testing.T) {
		_, d := syncedViews(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.False(t, d.Unchanged(ctx))
	})
	t.Run("no manifest", func(t *testing.T) {
		assert.True(t, open(t, seeded(t), Options{}).Unchanged(t.Context()))
	})
}

// F15: changes that the gateway makes by itself are not drift. The first check records them in the manifest, and the next one finds nothing.
func TestDriftAdoptsGatewayRewrites(t *testing.T) {
	root, d := syncedViews(t)
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
	assert.Equal(t, plan.BlobID([]byte(signed)), rec.Want)
	assert.Equal(t, plan.BlobID([]byte(resigned)), rec.Have)
	assert.Equal(t, 12, d.Manifest().Header().Files)
}

// If the volume is full, the check still reports drift, but cannot record the files that the gateway rewrote. It does so when there is
// space again.
func TestDriftOnFullVolume(t *testing.T) {
	root, d := syncedViews(t)
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

// writeKeepingMtime writes a file but keeps its size and mtime. It repeats that until the ctime of the file is later than the mtime of the
// manifest.
func writeKeepingMtime(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	before, err := os.Stat(path)
	require.NoError(t, err)
	manifest, err := os.Stat(filepath.Join(root, manifestPath))
	require.NoError(t, err)
	for {
		put(t, root, name, content)
		require.NoError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
		after, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, []any{before.Size(), before.ModTime()}, []any{after.Size(), after.ModTime()})
		if c := safe.AttrsOf(after).Ctime; c == 0 || c > manifest.ModTime().UnixNano() && c > safe.AttrsOf(before).Ctime {
			return
		}
	}
}

// F15: the check finds an edit that keeps size and mtime, because ctime changes. It reports the edit every time, and changes the record in
// the manifest so that the next plan compares the file.
func TestDriftWithSameSizeAndMtime(t *testing.T) {
	const path = "projects/p/a/view.json"
	edited := []Drifted{{path, Modified}}
	assertStale := func(d *Dir, path string) {
		rec, _, err := d.Manifest().Get(path)
		require.NoError(t, err)
		st, err := d.Stat(path)
		require.NoError(t, err)
		assert.NotEqual(t, rec.Mtime, st.Mtime, "the next plan compares the file")
	}
	for name, checks := range map[string]int{"before the first check": 0, "after a check": 1} {
		t.Run(name, func(t *testing.T) {
			root, d := syncedViews(t)
			for range checks {
				require.Zero(t, drift(t, d, false).Files)
			}
			writeKeepingMtime(t, root, path, `{"k":9,"l":9}`)
			for range 3 {
				assert.Equal(t, edited, drift(t, d, false).Paths)
			}
			assertStale(d, path)
			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			assert.Equal(t, edited, drift(t, d, false).Paths, "after a restart of the agent, too")

			put(t, root, path, `{"k":1,"l":2}`)
			assert.Equal(t, Drift{Checked: 12, Hashed: 1, Adopted: 1}, drift(t, d, false), "the file is as in git again")
			assert.Equal(t, Drift{Checked: 12}, drift(t, d, false))
		})
	}
	t.Run("thumbnail of a drifted folder", func(t *testing.T) {
		const thumbnail = "projects/p/a/thumbnail.png"
		root, d := syncedViews(t)
		put(t, root, path, "edited")
		writeKeepingMtime(t, root, thumbnail, "PNG")
		for i := range 4 {
			full := i < 2 // then the manifest cannot be written
			d.vol.Around = func(e safe.Effect, do func() error) error {
				if full && e.Op == "fill" {
					return syscall.ENOSPC
				}
				return do()
			}
			assert.Equal(t, []Drifted{{thumbnail, Modified}, {path, Modified}}, drift(t, d, false).Paths)
		}
		assertStale(d, thumbnail)
	})
	t.Run("edit before another sync", func(t *testing.T) {
		root, d := syncedViews(t)
		require.Zero(t, drift(t, d, false).Files)
		writeKeepingMtime(t, root, path, `{"k":9,"l":9}`)
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
			if c.Path == path { // as a real plan decides, because it compares only size and mtime
				c.Op, c.FoundID = plan.Adopt, c.ID
			}
		})
		assert.Equal(t, edited, drift(t, d, false).Paths)
	})
	t.Run("only the ctime changed", func(t *testing.T) {
		root, d := syncedViews(t)
		require.Zero(t, drift(t, d, false).Files)
		writeKeepingMtime(t, root, path, `{"k":1,"l":2}`)
		assert.Equal(t, Drift{Checked: 12, Hashed: 1}, drift(t, d, false))
		assert.Equal(t, Drift{Checked: 12}, drift(t, d, false), "the file is read only once")
	})
}

// F15: on a volume without a useful ctime, the checks still read every file about twice a day, spread evenly.
func TestDriftReadsEveryFileDaily(t *testing.T) {
	n := 500
	if testing.Short() {
		n = 100 // at most one file a minute is read either way
	}
	want := tree{}
	for i := range n {
		want[fmt.Sprintf("projects/p/v%03d", i)] = file{content: "1"}
	}
	now := testTime
	root := seeded(t)
	d := open(t, root, Options{Around: quick, Now: func() time.Time { return now }})
	apply(t, d, want)
	require.Zero(t, drift(t, d, false).Hashed)
	read := 0
	for range 24 * 60 {
		now = now.Add(time.Minute)
		got := drift(t, d, false)
		assert.LessOrEqual(t, got.Hashed, 1)
		read += got.Hashed
	}
	assert.InDelta(t, 2*n, read, 0.2*float64(n))

	for i := range n { // edit every file as if its ctime had not changed
		p := fmt.Sprintf("projects/p/v%03d", i)
		writeKeepingMtime(t, root, p, "2")
		fi, err := os.Stat(filepath.Join(root, p))
		require.NoError(t, err)
		d.compared.ctimes[i] = safe.AttrsOf(fi).Ctime
	}
	for range 24 {
		now = now.Add(time.Hour)
		drift(t, d, false)
	}
	assert.Equal(t, n, drift(t, d, false).Files)
}

// Each file is read once a cycle, however few there are and however rarely the agent compares.
func TestShareToRead(t *testing.T) {
	// sequence: a clock
	for _, n := range []int{1, 2, 3, 100} {
		// sequence: a clock
		for _, step := range []time.Duration{time.Minute, 7 * time.Hour, cycle - time.Minute, cycle} {
			reads := make([]int, n)
			for at := testTime; at.Before(testTime.Add(20 * cycle)); at = at.Add(step) {
				due := shareToRead(n, at, at.Add(step))
				for i := range reads {
					if due(i) {
						reads[i]++
					}
				}
			}
			for i, k := range reads {
				assert.InDelta(t, 20, k, 1.5, "file %d of %d, compared each %s", i, n, step)
			}
		}
	}
}

// A chown changes the ctime of every file, so the check suspects that each was edited. To spare the disk, one check reads at most
// maxSuspectBytes bytes of such files. Here all five files were edited, and each is half as large as that limit. So the first check reads and
// reports two of them, and the later ones find the rest. Short mode has three files, so that it hashes half as many bytes.
func TestDriftReadsBoundedBytes(t *testing.T) {
	want, found := tree{}, []int{2, 4, 5, 5}
	if testing.Short() {
		found = []int{2, 3, 3}
	}
	for i := range found[len(found)-1] {
		want[fmt.Sprintf("projects/p/v%d", i)] = file{content: fmt.Sprint(i)}
	}
	root := seeded(t)
	d := open(t, root, Options{Around: quick})
	apply(t, d, want)
	require.Zero(t, drift(t, d, false).Files)
	for p := range want {
		writeKeepingMtime(t, root, p, "x")
		require.NoError(t, os.Truncate(filepath.Join(root, p), maxSuspectBytes/2))
	}
	for _, rec := range slices.Collect(owned(t, d)) { // record the new sizes, so that only the ctime differs
		fi, err := os.Stat(filepath.Join(root, rec.Path))
		require.NoError(t, err)
		rec.Size, rec.Mtime = fi.Size(), fi.ModTime().UnixNano()
		(&driftCheck{d: d, newRecords: []plan.Owned{rec}}).record(d.Manifest().Header())
	}
	d.compared = knownCtimes{manifest: d.manifest(), ctimes: make([]int64, len(want))}
	for _, files := range found {
		assert.Equal(t, files, drift(t, d, false).Files)
	}
}

// owned iterates over the records of the manifest.
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

// F11: the agent does not hash a file above the size limit. Without a limit, canceling the context stops the hashing.
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

	d.maxBlob = 0
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

// A sync moves a file above the size limit to lost+found. A snapshot has the file, too, also if the gateway appends to it during each
// sync, unless it grows by more than that limit.
func TestTooLargeFileGoesToLostFound(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{MaxBlob: 10})
	const path = "projects/p/thumbnail.png"
	apply(t, d, text(map[string]string{path: "1"}))
	large := strings.Repeat("x", 11)
	put(t, root, path, large)
	unnoticed := func(c *plan.Change) { c.Conflict = false }
	res := apply(t, d, text(map[string]string{path: "2"}), unnoticed)
	assert.Len(t, res.Saved, 1)
	assert.Equal(t, "2", contents(t, root)[path])
	assert.Contains(t, everything(t, root), large)

	put(t, root, path, large)
	two := text(map[string]string{path: "3"})
	s, err := d.Stage(t.Context(), planFor(t, d, two, unnoticed), nil, two.source())
	require.NoError(t, err)
	require.NoError(t, s.Snapshot(anySnapshots))
	grown := large + strings.Repeat("x", 11)
	put(t, root, path, grown)
	_, err = s.Apply(t.Context(), head(two))
	require.True(t, failure.Is(err, v1alpha1.ReasonSnapshotFailed), "%v", err)
	assert.Equal(t, grown, contents(t, root)[path])
	s, err = d.Stage(t.Context(), planFor(t, d, two, unnoticed), nil, two.source())
	require.NoError(t, err)
	require.NoError(t, s.Snapshot(anySnapshots))
	put(t, root, path, grown+"x")
	res, err = s.Apply(t.Context(), head(two))
	require.NoError(t, err)
	assert.Len(t, res.Saved, 1)
	_, err = takeBack(t, d, ids(t, d)[0], nil)
	require.NoError(t, err)
	assert.Equal(t, grown+"x", contents(t, root)[path])
}

// F29: a file of another size that is too large to be compared by meaning is not read.
func TestDriftOfLargeFile(t *testing.T) {
	root, d := syncedViews(t)
	require.NoError(t, os.Truncate(filepath.Join(root, "projects/p/a/view.json"), resource.MaxCompared+1))
	found := drift(t, d, false)
	assert.Equal(t, []Drifted{{"projects/p/a/view.json", Modified}}, found.Paths)
	assert.Zero(t, found.Hashed)
}
