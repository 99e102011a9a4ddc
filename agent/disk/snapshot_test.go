package disk

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

var anySnapshots = Snapshots{Gateway: "site", Keep: 5, MaxBytes: 1 << 20}

// syncTo syncs with a snapshot.
func syncTo(t testing.TB, d *Dir, want tree, o Snapshots) {
	t.Helper()
	_, err := tryApplyWith(t, d, want, o)
	require.NoError(t, err)
}

// takeBack restores a snapshot, which itself takes one.
func takeBack(t testing.TB, d *Dir, id string, blobs plan.Objects) (Result, error) {
	t.Helper()
	return takeBackWith(t, d, id, blobs, anySnapshots)
}

// takeBackWith is takeBack, and takes a snapshot only if o keeps any.
func takeBackWith(t testing.TB, d *Dir, id string, blobs plan.Objects, o Snapshots) (Result, error) {
	t.Helper()
	b, err := d.PlanRestore(t.Context(), id, blobs)
	if err != nil {
		return Result{}, err
	}
	defer b.Close()
	s, err := d.Stage(t.Context(), b.Changes, nil, b.Source)
	if err != nil {
		return Result{}, err
	}
	if o.Keep > 0 {
		require.NoError(t, s.Snapshot(o))
	}
	s.RestoreManifest(b)
	return s.Apply(t.Context(), b.Header)
}

// ids returns the ids of the snapshots, oldest first.
func ids(t testing.TB, d *Dir) []string {
	t.Helper()
	list, err := d.ListSnapshots()
	require.NoError(t, err)
	var names []string
	for _, s := range list {
		names = append(names, s.ID)
	}
	return names
}

// blobMap has blobs by id, as git has them.
type blobMap map[plan.ID]string

func (b blobMap) Tree(plan.ID) ([]plan.Entry, error) { return nil, os.ErrNotExist }

func (b blobMap) Has(id plan.ID) bool {
	_, ok := b[id]
	return ok
}

func (b blobMap) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	return io.Copy(w, strings.NewReader(b[id]))
}

func TestSnapshots(t *testing.T) {
	one := text(map[string]string{"projects/p/project.json": "{}", "projects/p/a": "a1", "projects/p/b": "b1", "projects/p/dir/x": "x1"})
	two := text(map[string]string{"projects/p/project.json": "{}", "projects/p/a": "a2", "projects/p/c": "c2", "projects/p/dir": "file"})
	begin := func(t *testing.T) (string, *Dir) {
		root := seeded(t)
		d := open(t, root, Options{Now: fixed})
		syncTo(t, d, one, anySnapshots)
		assert.Empty(t, ids(t, d), "the first sync takes no snapshot")
		return root, d
	}
	t.Run("describes the sync", func(t *testing.T) {
		_, d := begin(t)
		syncTo(t, d, two, anySnapshots)
		list, err := d.ListSnapshots()
		require.NoError(t, err)
		assert.Equal(t, []Snapshot{{
			ID: "site-20261120-063000", Time: testTime, Ref: "main", Commit: one.id(), To: two.id(), Files: 3, Bytes: 6,
		}}, list)
	})
	t.Run("restores files and records", func(t *testing.T) {
		root, d := begin(t)
		before := readTree(t, root)
		syncTo(t, d, two, anySnapshots)
		after := readTree(t, root)
		_, err := takeBack(t, d, "site-20261120-063000", nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(before, readTree(t, root)))
		assert.Equal(t, one.id(), d.Manifest().Header().Commit)
		assert.Equal(t, len(one), d.Manifest().Header().Files)
		assertManifest(t, d)
		assert.Empty(t, planFor(t, d, one).List)

		assert.Equal(t, []string{"site-20261120-063000", "site-20261120-063001"}, ids(t, d))
		_, err = takeBack(t, d, "site-20261120-063001", nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(after, readTree(t, root)), "a restore can be undone like a sync")
		assert.Empty(t, planFor(t, d, two).List)
	})
	t.Run("restores several syncs at once", func(t *testing.T) {
		root, d := begin(t)
		before := readTree(t, root)
		three := text(map[string]string{"projects/q/project.json": "q", "projects/p/a": "a3", "projects/p/b": "b3"})
		syncTo(t, d, two, anySnapshots)
		syncTo(t, d, three, anySnapshots)
		syncTo(t, d, two, anySnapshots)
		_, err := takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(before, readTree(t, root)))
		assertManifest(t, d)
	})
	t.Run("restores the gateway's versions", func(t *testing.T) {
		root, d := begin(t)
		put(t, root, "projects/p/a", "edited")
		put(t, root, "projects/p/c", "mine")
		before := contents(t, root)
		syncTo(t, d, two, anySnapshots)
		_, err := takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(before, contents(t, root)))
		rec, owned, err := d.Manifest().Get("projects/p/a")
		require.NoError(t, err)
		assert.True(t, owned)
		assert.Equal(t, plan.BlobID([]byte("a1")), rec.Have, "the next sync sees a change on the gateway")
		_, owned, err = d.Manifest().Get("projects/p/c")
		require.NoError(t, err)
		assert.False(t, owned)
		res := apply(t, d, two)
		assert.Len(t, res.Saved, 2)
	})
	t.Run("an edit since goes to lost+found", func(t *testing.T) {
		root, d := begin(t)
		before := contents(t, root)
		syncTo(t, d, two, anySnapshots)
		put(t, root, "projects/p/a", "edited later")
		put(t, root, "projects/p/c", "edited, too")
		put(t, root, "projects/p/untouched", "new")
		res, err := takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		before["projects/p/untouched"] = "new"
		assert.Empty(t, cmp.Diff(before, contents(t, root)))
		assert.Len(t, res.Saved, 2)
		all := everything(t, root)
		assert.True(t, all["edited later"] && all["edited, too"])
	})
	t.Run("a user's file at the path of a delivered one stays", func(t *testing.T) {
		root, d := begin(t)
		syncTo(t, d, two, anySnapshots) // brings c
		syncTo(t, d, one, anySnapshots) // removes it
		put(t, root, "projects/p/c", "mine")
		_, err := takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		assert.Equal(t, "mine", contents(t, root)["projects/p/c"])
	})
	t.Run("a failed sync leaves no snapshot", func(t *testing.T) {
		root, d := begin(t)
		s := staged(t, d, two)
		require.NoError(t, s.Snapshot(anySnapshots))
		s.RefuseForeign()
		put(t, root, "projects/p/a", "at the last moment")
		_, err := s.Apply(t.Context(), head(two))
		require.Error(t, err)
		assert.Empty(t, ids(t, d))
	})
	t.Run("a sync without a snapshot removes all", func(t *testing.T) {
		_, d := begin(t)
		syncTo(t, d, two, anySnapshots)
		apply(t, d, one)
		assert.Empty(t, ids(t, d), "older snapshots cannot be restored without a later one")
	})
	t.Run("retention", func(t *testing.T) {
		for name, tt := range map[string]struct {
			o    Snapshots
			want int
		}{
			"count":               {Snapshots{Gateway: "site", Keep: 3, MaxBytes: 1 << 20}, 3},
			"size of two":         {Snapshots{Gateway: "site", Keep: 5, MaxBytes: 16}, 2},
			"size of the largest": {Snapshots{Gateway: "site", Keep: 5, MaxBytes: 8}, 1},
		} {
			t.Run(name, func(t *testing.T) {
				_, d := begin(t)
				for i := range 6 {
					syncTo(t, d, []tree{two, one}[i%2], tt.o)
				}
				assert.Len(t, ids(t, d), tt.want)
				_, err := takeBack(t, d, ids(t, d)[0], nil)
				require.NoError(t, err)
			})
		}
	})
	t.Run("a sync that replaces more than maxSize fails", func(t *testing.T) {
		root, d := begin(t)
		before := readTree(t, root)
		_, err := tryApplyWith(t, d, two, Snapshots{Gateway: "site", Keep: 5, MaxBytes: 5})
		assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		assert.Empty(t, cmp.Diff(before, readTree(t, root)))
	})
	t.Run("a clock that is set back", func(t *testing.T) {
		now := testTime
		d := open(t, seeded(t), Options{Now: func() time.Time { return now }})
		syncTo(t, d, one, anySnapshots)
		syncTo(t, d, two, anySnapshots)
		now = now.Add(-time.Hour)
		syncTo(t, d, one, anySnapshots)
		assert.Equal(t, []string{"site-20261120-063000", "site-20261120-063001"}, ids(t, d))
	})
	// F28: a program of the gateway makes up ids that are more than a day ahead.
	t.Run("ids in the future", func(t *testing.T) {
		const future = "site-99991231-235959"
		root, d := begin(t)
		before := readTree(t, root)
		syncTo(t, d, two, anySnapshots)
		require.NoError(t, os.Mkdir(filepath.Join(root, ".stoker/snapshots", future), 0o700))
		put(t, root, ".stoker/backups/"+future+".gwbk", "x")
		assert.Equal(t, []string{"site-20261120-063000"}, ids(t, d))
		assert.Empty(t, backedUp(t, d))
		syncTo(t, d, one, anySnapshots)
		assert.Equal(t, []string{"site-20261120-063000", "site-20261120-063001"}, ids(t, d))
		assert.DirExists(t, filepath.Join(root, ".stoker/snapshots", future+".damaged"))
		assert.FileExists(t, filepath.Join(root, ".stoker/backups", future+".gwbk.damaged"))
		t.Run("without snapshots", func(t *testing.T) {
			root, d := begin(t)
			put(t, root, ".stoker/backups/"+future+".gwbk", "x")
			syncTo(t, d, two, anySnapshots)
			assert.FileExists(t, filepath.Join(root, ".stoker/backups", future+".gwbk.damaged"))
		})
		t.Run("complete", func(t *testing.T) { // the older ones would need it
			all := filepath.Join(root, ".stoker/snapshots")
			require.NoError(t, os.CopyFS(filepath.Join(all, future), os.DirFS(filepath.Join(all, "site-20261120-063001")))) //nolint:forbidigo // a snapshot has no symbolic links
			assert.Empty(t, ids(t, d))
			syncTo(t, d, two, anySnapshots)
			assert.Equal(t, []string{"site-20261120-063000"}, ids(t, d))
			require.NoError(t, d.Close())
			d = open(t, root, Options{Now: fixed})
			_, err := takeBack(t, d, "site-20261120-063000", nil)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(before, readTree(t, root)))
		})
	})
	// F20: the bytes of a damaged file come from git. If git does not have them, the restore changes nothing.
	t.Run("damage", func(t *testing.T) {
		blob := plan.BlobID([]byte("a1"))
		for name, damage := range map[string]func(t *testing.T, file string){
			"missing": func(t *testing.T, file string) { require.NoError(t, os.Remove(file)) },
			"changed": func(t *testing.T, file string) { require.NoError(t, os.WriteFile(file, []byte("other"), 0o600)) },
			"a link": func(t *testing.T, file string) {
				require.NoError(t, os.Remove(file))
				require.NoError(t, os.Symlink("/etc/passwd", file))
			},
		} {
			t.Run(name, func(t *testing.T) {
				root, d := begin(t)
				before := readTree(t, root)
				syncTo(t, d, two, anySnapshots)
				after := readTree(t, root)
				files, err := filepath.Glob(filepath.Join(root, safe.OwnDir, snapshot.DirName, "*", "*-"+blob.String()))
				require.NoError(t, err)
				require.Len(t, files, 1)
				damage(t, files[0])
				_, err = takeBack(t, d, ids(t, d)[0], blobMap{})
				require.True(t, failure.Is(err, v1alpha1.ReasonSnapshotFailed), "%v", err)
				assert.Contains(t, err.Error(), blob.String())
				assert.Empty(t, cmp.Diff(after, readTree(t, root)), "a failed restore changes nothing")

				_, err = takeBack(t, d, ids(t, d)[0], blobMap{blob: "a1"})
				require.NoError(t, err)
				assert.Empty(t, cmp.Diff(before, readTree(t, root)))
			})
		}
	})
	t.Run("stray files in a snapshot", func(t *testing.T) {
		root, d := begin(t)
		before := contents(t, root)
		syncTo(t, d, two, anySnapshots)
		stray := plan.BlobID([]byte("stray")).String()
		list, err := os.ReadDir(filepath.Join(root, safe.OwnDir, snapshot.DirName, ids(t, d)[0]))
		require.NoError(t, err)
		for _, e := range list {
			number, _, kept := strings.Cut(e.Name(), "-")
			names := []string{"-1-" + stray, "99999999999-" + stray, "2147483647-" + stray, "x"}
			if kept {
				names = append(names, "00"+number+"-"+stray)
			}
			for _, name := range names {
				put(t, root, filepath.Join(safe.OwnDir, snapshot.DirName, ids(t, d)[0], name), "stray")
			}
		}
		_, err = takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(before, contents(t, root)))
	})
	t.Run("unknown id", func(t *testing.T) {
		_, d := begin(t)
		for _, id := range []string{"", "..", "site-20261120-063000", "site-20261399-063000", "../site-20261120-063000"} {
			t.Run(id, func(t *testing.T) {
				_, err := takeBack(t, d, id, nil)
				assert.True(t, failure.Is(err, v1alpha1.ReasonSnapshotFailed), "%v", err)
			})
		}
	})
	t.Run("a volume without hard links copies", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{Now: fixed, Around: func(e safe.Effect, do func() error) error {
			if e.Op == "link" && strings.Contains(e.Dest, snapshot.DirName) {
				return &os.LinkError{Op: "link", Err: os.ErrPermission}
			}
			return do()
		}})
		one := maps.Clone(one)
		one["projects/p/run.sh"] = file{"#!", true}
		syncTo(t, d, one, anySnapshots)
		before := readTree(t, root)
		syncTo(t, d, two, anySnapshots)
		_, err := takeBack(t, d, ids(t, d)[0], nil)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(before, readTree(t, root)))
	})
}

// TestChainOfSnapshots syncs to random trees, with edits of the gateway in between, and restores any snapshot that remains: the
// files are those from before its sync.
func TestChainOfSnapshots(t *testing.T) {
	for seed := range uint64(shortChains(60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 1))
			root := seededIn(t, memory(t))
			now := testTime
			d := open(t, root, Options{Around: quick, Now: func() time.Time { return now }})
			o := Snapshots{Gateway: "site", Keep: 1 + chance.IntN(5), MaxBytes: 1 << 20}
			states, blobs := map[string]map[string]string{}, blobMap{}
			first := randomTree(chance)
			for _, f := range first {
				blobs[plan.BlobID([]byte(f.content))] = f.content
			}
			syncTo(t, d, first, o)
			for range 3 + chance.IntN(8) {
				now = now.Add(time.Duration(chance.IntN(3)) * time.Second)
				names, want := ids(t, d), randomTree(chance)
				back := len(names) > 0 && chance.IntN(4) == 0
				was := contents(t, root)
				if !back && chance.IntN(3) == 0 {
					for _, c := range planFor(t, d, want).List {
						if !c.Owned || c.Conflict || c.Found.Kind != plan.File || c.Op == plan.Adopt || chance.IntN(3) > 0 {
							continue
						}
						if c.Op == plan.Update && chance.IntN(2) == 0 {
							require.NoError(t, os.Remove(filepath.Join(root, c.Path))) // the sync writes it again
						} else {
							put(t, root, c.Path, fmt.Sprint("edit ", chance.IntN(1000))) // the sync replaces it
						}
					}
				}
				before := contents(t, root)
				for _, f := range want {
					blobs[plan.BlobID([]byte(f.content))] = f.content
				}
				if back {
					_, err := takeBackWith(t, d, names[chance.IntN(len(names))], blobs, []Snapshots{o, {}}[chance.IntN(2)])
					require.NoError(t, err)
				} else if _, err := tryApplyWith(t, d, want, o); err != nil {
					require.True(t, failure.Is(err, v1alpha1.ReasonPathCollision), "%v", err) // with an edit that has returned
					require.Equal(t, names, ids(t, d))
					require.Equal(t, before, contents(t, root))
					for p, content := range was {
						put(t, root, p, content)
					}
				}
				names = ids(t, d)
				maps.DeleteFunc(states, func(id string, _ map[string]string) bool { return !slices.Contains(names, id) })
				if len(names) > 0 {
					if _, known := states[names[len(names)-1]]; !known {
						states[names[len(names)-1]] = before
					}
				}
			}
			names := ids(t, d)
			if len(names) == 0 {
				return
			}
			id := names[chance.IntN(len(names))]
			_, err := takeBack(t, d, id, blobs)
			require.NoError(t, err)
			got := contents(t, root)
			assert.Empty(t, cmp.Diff(states[id], got), "%s of %s", id, names)
			assert.Equal(t, "blob", got["projects/.resources/cafe"], "a file that is not owned stays")
		})
	}
}

// shortChains returns a smaller number in short mode.
func shortChains(n int) int {
	if testing.Short() {
		return n / 6
	}
	return n
}

// randomTree returns a few files, some of which are directories in other trees.
func randomTree(chance *rand.Rand) tree {
	paths := []string{"projects/p/a", "projects/p/b", "projects/p/b/c", "projects/p/b/d", "projects/q/e", "projects/q/f/g/h", "config/resources/core/x/y.json"}
	want := tree{}
	for _, p := range paths {
		if chance.IntN(3) > 0 {
			want[p] = file{fmt.Sprint(p, chance.IntN(3)), chance.IntN(5) == 0}
		}
	}
	if _, dir := want["projects/p/b"]; dir {
		delete(want, "projects/p/b/c")
		delete(want, "projects/p/b/d")
	}
	if len(want) == 0 {
		want["projects/p/z"] = file{content: "z"}
	}
	return want
}

// F20: a damaged journal restores nothing.
func TestSnapshotJournal(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{Now: fixed})
	syncTo(t, d, text(map[string]string{"projects/p/a": "1"}), anySnapshots)
	syncTo(t, d, text(map[string]string{"projects/p/a": "2"}), anySnapshots)
	id := ids(t, d)[0]
	file := filepath.Join(root, safe.OwnDir, snapshot.DirName, id, journalFile)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	for i := range raw {
		if i%7 > 0 {
			continue
		}
		bad := bytes.Clone(raw)
		bad[i] ^= 0x40
		require.NoError(t, os.WriteFile(file, bad, 0o600))
		_, err := d.PlanRestore(t.Context(), id, nil)
		require.True(t, failure.Is(err, v1alpha1.ReasonSnapshotFailed), "byte %d: %v", i, err)
	}
}

// A sync that takes a snapshot makes two more directories durable, whatever its size: the folder of the snapshot, and that of all snapshots.
func TestSnapshotSyncs(t *testing.T) {
	for name, files := range map[string]int{"one file": 1, "a hundred files": 100} {
		t.Run(name, func(t *testing.T) {
			calls := func(o Snapshots) []string {
				var made []string
				d := open(t, seeded(t), Options{Around: func(e safe.Effect, do func() error) error {
					if strings.HasPrefix(e.Op, "sync") {
						made = append(made, e.Op)
					}
					return quick(e, do)
				}})
				want := tree{}
				for i := range 300 {
					want[fmt.Sprintf("projects/p/views/%03d/view.json", i)] = file{content: strings.Repeat("view ", i)}
				}
				apply(t, d, want)
				other := maps.Clone(want)
				for i, p := range slices.Sorted(maps.Keys(want)) {
					if i < files {
						other[p] = file{content: "other"}
					}
				}
				syncTo(t, d, other, o)
				syncTo(t, d, want, o)
				made = nil
				syncTo(t, d, other, o)
				return made
			}
			assert.Len(t, calls(anySnapshots), len(calls(Snapshots{}))+2)
		})
	}
}
