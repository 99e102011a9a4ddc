package disk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

const (
	signed   = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"a","timestamp":"t1"},"lastModificationSignature":"s1"}}`
	resigned = `{"scope":"G","version":1,"files":["view.json"],"attributes":{"lastModification":{"actor":"external","timestamp":"t2"},"lastModificationSignature":"s2"}}`
)

// driftWorld is a synced directory whose Dir can read the wanted bytes.
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
		blobs[blobID([]byte(f.content))] = f.content
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

// F15: each way to change a file is told.
func TestDriftIsToldByItsKind(t *testing.T) {
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
	assert.Equal(t, want, drift(t, d, false))
	assert.Equal(t, want, drift(t, d, false), "looking does not change what is seen")
}

// F15: what the gateway does by itself is no drift, and is known from then on.
func TestNoiseIsAdoptedAndNoDrift(t *testing.T) {
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
	assert.Equal(t, blobID([]byte(signed)), rec.Want)
	assert.Equal(t, blobID([]byte(resigned)), rec.Have)
	assert.Equal(t, 12, d.Manifest().Header().Files)
}

// A volume that is full hides no drift: what the gateway rewrote cannot be adopted then, and is when there is room again.
func TestDriftIsSeenOnAFullVolume(t *testing.T) {
	root, d := driftWorld(t)
	put(t, root, "projects/p/a/resource.json", resigned)
	put(t, root, "projects/p/b/view.json", "edited")
	full := true
	d.o.around = func(e effect, do func() error) error {
		if full && e.op == "fill" {
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

// An edit that leaves size and mtime as they were is found by the full check.
func TestFullCheckFindsWhatStatHides(t *testing.T) {
	root, d := driftWorld(t)
	path := filepath.Join(root, "projects/p/a/view.json")
	fi, err := os.Stat(path)
	require.NoError(t, err)
	put(t, root, "projects/p/a/view.json", `{"k":9,"l":9}`)
	require.NoError(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
	assert.Zero(t, drift(t, d, false).Files)
	assert.Equal(t, []Drifted{{"projects/p/a/view.json", Modified}}, drift(t, d, true).Paths)
}

// F15: a burst of writes by the gateway changes what is reported, and never a file.
func TestDriftCheckNeverChangesAFile(t *testing.T) {
	root, d := driftWorld(t)
	for i := range 50 {
		put(t, root, "projects/p/a/view.json", fmt.Sprintf(`{"n":%d}`, i))
		before := snapshot(t, root)
		assert.Equal(t, 1, drift(t, d, i%2 == 0).Files)
		assert.Equal(t, before, snapshot(t, root))
	}
}
