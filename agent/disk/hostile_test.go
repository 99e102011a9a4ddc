package disk

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lock"
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

// shortRace shortens tests that wait for a race in short mode.
func shortRace(d time.Duration) time.Duration {
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

// F14: if the data directory was moved or replaced, the agent stops writing to it. After it is opened again, syncs continue.
func TestReplacedDataDirectory(t *testing.T) {
	one, two := text(map[string]string{"projects/a": "1"}), text(map[string]string{"projects/a": "2"})
	for name, move := range map[string]func(t *testing.T, root string){
		"another directory": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root, root+".broken"))
			seededIn(t, root)
			put(t, root, "projects/a", "1")
		},
		"no own folder": func(t *testing.T, root string) {
			require.NoError(t, os.RemoveAll(filepath.Join(root, safe.OwnDir)))
		},
		"another own folder": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(filepath.Join(root, safe.OwnDir), filepath.Join(root, "old")))
			require.NoError(t, os.Mkdir(filepath.Join(root, safe.OwnDir), 0o700))
		},
		"another lock": func(t *testing.T, root string) {
			lock := filepath.Join(root, safe.OwnDir, lock.FileName)
			require.NoError(t, os.Remove(lock))
			require.NoError(t, os.WriteFile(lock, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "data")
			d := open(t, seededIn(t, root), Options{})
			apply(t, d, one)
			require.NoError(t, d.CheckOpen())
			plan := planFor(t, d, two)
			staged, err := d.Stage(t.Context(), plan, nil, two.source())
			require.NoError(t, err)

			move(t, root)
			require.ErrorIs(t, d.CheckOpen(), ErrMoved)
			res, err := staged.Apply(t.Context(), head(two))
			require.ErrorIs(t, err, ErrMoved)
			assert.False(t, res.Applied)
			_, err = d.Stage(t.Context(), plan, nil, two.source())
			require.ErrorIs(t, err, ErrMoved)
			_, err = d.Drift(t.Context(), false)
			require.ErrorIs(t, err, ErrMoved)
			require.ErrorIs(t, d.SetNote("x", []byte("x")), ErrMoved)
			assert.Equal(t, "1", contents(t, root)["projects/a"])

			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			require.NoError(t, d.CheckOpen())
			apply(t, d, two)
			assert.Equal(t, "2", contents(t, root)["projects/a"])
			assertNoLeftovers(t, root)
		})
	}
}

// A copy over the files of .stoker keeps every inode, but the manifest may now be older, damaged or missing. The agent must neither
// plan with a stale manifest nor overwrite the one on disk.
func TestOverwrittenManifest(t *testing.T) {
	one, two, three := text(map[string]string{"projects/a": "1"}), text(map[string]string{"projects/a": "2"}), text(map[string]string{"projects/a": "3"})
	for name, c := range map[string]struct {
		over func(t *testing.T, path string, older []byte)
		late bool    // detected only by reading it
		want plan.ID // the commit of the manifest after a restart; zero if it cannot be used
	}{
		"older manifest": {over: func(t *testing.T, path string, older []byte) {
			require.NoError(t, os.WriteFile(path, older, 0o600))
			require.NoError(t, os.Chtimes(path, testTime, testTime))
		}, want: one.id()},
		"truncated manifest": {over: func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 40)) }},
		"no manifest":        {over: func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path)) }},
		"damaged block": {over: func(t *testing.T, path string, _ []byte) {
			fi, err := os.Stat(path)
			require.NoError(t, err)
			flip(t, path, func(int) int { return 20 })
			require.NoError(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
		}, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			path := filepath.Join(root, manifestPath)
			d := open(t, root, Options{})
			require.NoError(t, d.CheckOpen(), "no manifest exists, and none was read")
			apply(t, d, one)
			older, err := os.ReadFile(path)
			require.NoError(t, err)
			apply(t, d, two)
			require.NoError(t, d.CheckOpen(), "the agent wrote the manifest itself")
			changes := planFor(t, d, three)
			staged, err := d.Stage(t.Context(), changes, nil, three.source())
			require.NoError(t, err)

			c.over(t, path, older)
			_, err = d.Drift(t.Context(), false)
			if c.late {
				require.ErrorIs(t, err, safe.ErrDamaged)
			}
			require.ErrorIs(t, d.CheckOpen(), ErrMoved)
			_, err = d.Drift(t.Context(), false)
			require.ErrorIs(t, err, ErrMoved)
			res, err := staged.Apply(t.Context(), head(three))
			require.ErrorIs(t, err, ErrMoved)
			assert.False(t, res.Applied)
			_, err = d.Stage(t.Context(), changes, nil, three.source())
			require.ErrorIs(t, err, ErrMoved)
			assert.Equal(t, "2", contents(t, root)["projects/a"])

			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			require.NoError(t, d.CheckOpen())
			assert.Equal(t, c.want, d.Manifest().Header().Commit)
			apply(t, d, three)
			assert.Equal(t, "3", contents(t, root)["projects/a"])
		})
	}
}

func TestManifestOfAnotherProgram(t *testing.T) {
	from, root := seeded(t), seeded(t)
	one := text(map[string]string{"projects/a": "1"})
	apply(t, open(t, from, Options{}), one)
	d := open(t, root, Options{})
	b, err := os.ReadFile(filepath.Join(from, safe.OwnDir, manifestFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, manifestPath), b, 0o600))
	_, err = tryApply(t, d, one)
	require.ErrorIs(t, err, ErrMoved)
	require.ErrorContains(t, err, "manifest was created by another program")

	looking, err := Open(root, Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(root, manifestPath)))
	assert.NoError(t, looking.CheckOpen(), "a read-only Dir keeps the manifest that it opened")
	require.NoError(t, looking.Close())
}

func TestMovedDataDirectory(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	d := open(t, seededIn(t, root), Options{ReadOnly: true})
	require.NoError(t, d.CheckOpen())
	require.NoError(t, os.Rename(root, root+".broken"))
	require.ErrorIs(t, d.CheckOpen(), ErrMoved)
}
