package disk

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// F2: the agent never follows links in the data directory.
func TestPlantedLinks(t *testing.T) {
	root, canary := seeded(t), t.TempDir()
	put(t, canary, "x.json", "canary")
	put(t, root, "inside/real.json", "inside")
	require.NoError(t, os.Symlink(canary, filepath.Join(root, "projects/out")))
	require.NoError(t, os.Symlink("../inside", filepath.Join(root, "projects/in")))
	require.NoError(t, os.Symlink(filepath.Join(canary, "x.json"), filepath.Join(root, "projects/x.json")))
	d := open(t, root, Options{})
	before := readTree(t, canary)

	for _, link := range []string{"projects/out", "projects/in"} {
		t.Run(link, func(t *testing.T) {
			st, err := d.Stat(link + "/x.json")
			require.NoError(t, err)
			assert.Equal(t, plan.Stat{}, st)
			at, kind, err := d.Blocked(link + "/deep/x.json")
			require.NoError(t, err)
			assert.Equal(t, link, at)
			assert.Equal(t, plan.Link, kind)
			_, err = d.Read(link+"/real.json", 100)
			require.Error(t, err)
			_, err = tryApply(t, d, text(map[string]string{link + "/new.json": "1"}))
			assert.True(t, failure.Is(err, v1alpha1.ReasonUnsafePath), "%v", err)
			assert.ErrorContains(t, err, link)
		})
	}
	_, err := d.BlobID("projects/x.json")
	require.Error(t, err)
	for f, err := range d.Walk("projects") {
		require.NoError(t, err)
		assert.NotContains(t, f.Path, "/in/")
		assert.NotContains(t, f.Path, "/out/")
	}
	res := apply(t, d, text(map[string]string{"projects/x.json": "git"}))
	assert.Len(t, res.Saved, 1, "the link is replaced and saved")
	assert.Equal(t, "git", contents(t, root)["projects/x.json"])
	assert.Equal(t, before, readTree(t, canary))
}

// race shortens tests that wait for a race in short mode.
func race(d time.Duration) time.Duration {
	if testing.Short() {
		return d / 10
	}
	return d
}

// changesFor returns a plan for an empty directory.
func changesFor(want tree) *plan.Changes {
	ch := &plan.Changes{To: want.id()}
	for _, p := range slices.Sorted(maps.Keys(want)) {
		ch.List = append(ch.List, plan.Change{Op: plan.Create, Path: p, ID: plan.BlobID([]byte(want[p].content))})
	}
	return ch
}

// F3: no path may leave the data directory.
func TestPathsOutsideDataDirectory(t *testing.T) {
	root, canary := seeded(t), t.TempDir()
	put(t, canary, "x", "canary")
	for link, to := range map[string]string{
		"dirlink": canary, "filelink": canary + "/x", "up": "..", "chain1": "chain2", "chain2": canary, "loop": "loop",
	} {
		t.Run(link, func(t *testing.T) {
			require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
		})
	}
	d := open(t, root, Options{})
	before := readTree(t, canary)
	for _, p := range []string{
		"../x", "a/../../x", "/etc/passwd", "dirlink/x", "dirlink/new/deep/x", "filelink/x", "up/x", "chain1/x", "loop/x",
		"a//b", "a/./b", "a/", "", ".", "..", "a\x00b", ".stoker/manifest", "projects/.stoker/staging/1", ".STOKER/lock",
	} {
		t.Run(p, func(t *testing.T) {
			want := tree{p: {content: "evil"}}
			_, err := d.Stage(t.Context(), changesFor(want), nil, want.source())
			require.Error(t, err, "%q", p)
			_, err = d.Read(p, 10)
			require.Error(t, err, "%q", p)
			_, err = d.BlobID(p)
			require.Error(t, err, "%q", p)
		})
	}
	assert.Equal(t, before, readTree(t, canary))
	assertNoLeftovers(t, root)
}

// The agent does not touch an unseeded volume, because Ignition seeds only an empty one.
func TestUnseededDirectory(t *testing.T) {
	for name, path := range map[string]string{"empty": "", "lost+found of the file system": "lost+found/x", "projects alone": "projects/p/project.json"} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if path != "" {
				put(t, root, path, "x")
			}
			before := readTree(t, root)
			_, err := Open(root, Options{})
			assert.True(t, failure.Is(err, v1alpha1.ReasonWaitingForGateway), "%v", err)
			assert.Equal(t, before, readTree(t, root))
			assert.NoDirExists(t, filepath.Join(root, safe.OwnDir))
			open(t, root, Options{AllowUnseeded: true})
		})
	}
}

func TestSeededDirectory(t *testing.T) {
	for _, paths := range [][]string{
		{".ignition-seed-complete"}, {"ignition.conf"}, {"gateway.xml"}, {"gateway.xml_clean"},
		{"config/resources/core/config-mode.json"}, {"db/config.idb", "projects/p/project.json"}, {".stoker/manifest"},
	} {
		root := t.TempDir()
		for _, p := range paths {
			put(t, root, p, "")
		}
		_ = open(t, root, Options{})
	}
}

// The error for a second agent on the same volume names the process that holds the lock.
func TestSecondAgent(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	_, err := Open(root, Options{})
	require.ErrorIs(t, err, ErrLocked)
	host, herr := os.Hostname()
	require.NoError(t, herr)
	assert.ErrorContains(t, err, fmt.Sprintf("process %d on %s", os.Getpid(), host))
	_, err = open(t, root, Options{ReadOnly: true}).Stage(t.Context(), &plan.Changes{}, nil, nil)
	require.ErrorIs(t, err, ErrReadOnly, "a read-only Dir needs no lock")
	require.NoError(t, d.Close())
	_ = open(t, root, Options{})
}

func TestReadOnlyLeavesNoTrace(t *testing.T) {
	root := seeded(t)
	before := readTree(t, root)
	d := open(t, root, Options{ReadOnly: true})
	assert.Empty(t, d.Manifest().Header())
	assert.NoDirExists(t, filepath.Join(root, safe.OwnDir))
	assert.Equal(t, before, readTree(t, root))
	_, err := d.Drift(t.Context(), true)
	require.NoError(t, err)
	require.ErrorIs(t, d.SetNote("x", nil), ErrReadOnly)
}

// If a source fails or returns bytes that do not match the commit, nothing changes.
func TestFailingSource(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	before := readTree(t, root)
	want := text(map[string]string{"projects/p/a.json": "1", "projects/p/b.json": "2"})
	refused := failure.New(v1alpha1.ReasonConfigSyntaxError, "projects/p/b.json:1: no JSON")
	_, err := d.Stage(t.Context(), planFor(t, d, want), nil, func(w io.Writer, c plan.Change) error {
		if c.Path == "projects/p/b.json" {
			return refused
		}
		return want.source()(w, c)
	})
	require.ErrorIs(t, err, refused)
	assert.Equal(t, before, readTree(t, root))
	assertNoLeftovers(t, root)

	_, err = d.Stage(t.Context(), planFor(t, d, want), nil, func(w io.Writer, _ plan.Change) error {
		_, err := w.Write([]byte("other"))
		return err
	})
	require.ErrorContains(t, err, "expected blob")
	assert.Equal(t, before, readTree(t, root))
	assertNoLeftovers(t, root)
	apply(t, d, want)
}
