//go:build unix

package disk

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// During many syncs, a reader polls every millisecond. Each file must be there, complete, and of one commit.
func TestReaderSeesWholeFiles(t *testing.T) {
	root := seededIn(t, memory(t))
	d := open(t, root, Options{Around: quick})
	const files = 5
	commit := func(i int) tree {
		want := tree{}
		for k := range files {
			line := fmt.Sprintf("commit %d\n", i)
			want[fmt.Sprintf("projects/p/f%d.json", k)] = file{content: strings.Repeat(line, 2000)}
		}
		return want
	}
	apply(t, d, commit(0))
	stop, reads := make(chan struct{}), atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for k := range files {
				b, err := os.ReadFile(filepath.Join(root, fmt.Sprintf("projects/p/f%d.json", k)))
				if !assert.NoError(t, err, "the file always exists") {
					return
				}
				line, _, _ := strings.Cut(string(b), "\n")
				if !assert.Equal(t, strings.Repeat(line+"\n", 2000), string(b), "the file is always complete") {
					return
				}
				reads.Add(1)
			}
		}
	})
	syncs := 500
	if testing.Short() {
		syncs = 50
	}
	for i := 1; i <= syncs; i++ {
		apply(t, d, commit(i))
	}
	close(stop)
	wg.Wait()
	assert.Greater(t, reads.Load(), int64(100))
}

// After staging, the gateway writes, creates and deletes files, and replaces files with directories and links. The sync must save
// everything that the gateway wrote.
func TestWritesAfterPlan(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{Around: quick, plain: plain})
			one := text(map[string]string{
				"projects/p/written": "1", "projects/p/touched": "1", "projects/p/deleted": "1", "projects/p/dropped": "1",
				"projects/p/todir": "1", "projects/p/tolink": "1", "projects/p/gone": "1",
			})
			apply(t, d, one)
			two := text(map[string]string{
				"projects/p/written": "2", "projects/p/touched": "2", "projects/p/deleted": "2",
				"projects/p/todir": "2", "projects/p/tolink": "2", "projects/p/new": "2", "projects/p/samenew": "2",
			})
			changes := planFor(t, d, two)
			s, err := d.Stage(t.Context(), changes, nil, two.source())
			require.NoError(t, err)

			at := func(name string) string { return filepath.Join(root, "projects/p", name) }
			fi, err := os.Stat(at("written"))
			require.NoError(t, err)
			put(t, root, "projects/p/written", "W") // same size and mtime
			require.NoError(t, os.Chtimes(at("written"), fi.ModTime(), fi.ModTime()))
			require.NoError(t, os.Chtimes(at("touched"), testTime, testTime))
			require.NoError(t, os.Remove(at("deleted")))
			put(t, root, "projects/p/dropped", "D")
			require.NoError(t, os.Remove(at("gone")))
			require.NoError(t, os.Remove(at("todir")))
			require.NoError(t, os.Remove(at("tolink")))
			require.NoError(t, os.Symlink("/nowhere", at("tolink")))
			put(t, root, "projects/p/new", "N")
			put(t, root, "projects/p/samenew", "2")
			require.NoError(t, os.Mkdir(at("todir"), 0o755)) // an empty directory has nothing to save

			res, err := s.Apply(t.Context(), head(two))
			require.NoError(t, err)
			got := contents(t, root)
			assertFiles(t, root, two)
			assert.NotContains(t, got, "projects/p/dropped")
			saved := map[string]string{}
			for _, l := range res.Saved {
				path := filepath.Join(root, safe.OwnDir, lostfound.DirName, l.File)
				if fi, err := os.Lstat(path); assert.NoError(t, err) && fi.Mode().IsRegular() {
					b, err := os.ReadFile(path)
					require.NoError(t, err)
					saved[filepath.Base(l.Path)] = string(b)
				} else {
					saved[filepath.Base(l.Path)] = "link"
				}
			}
			assert.Equal(t, map[string]string{"written": "W", "dropped": "D", "new": "N", "tolink": "link"}, saved)
			assertManifest(t, d)
			assertNoLeftovers(t, root)
		})
	}
}

// If the gateway creates a non-empty directory where git has a file, the sync fails and changes nothing.
func TestDirectoryInUse(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	two := text(map[string]string{"projects/p/a": "2", "projects/p/b": "2"})
	s := staged(t, d, two)
	put(t, root, "projects/p/b/theirs", "x")
	before := readTree(t, root)
	_, err := s.Apply(t.Context(), head(two))
	require.ErrorContains(t, err, "projects/p/b/theirs")
	assert.Equal(t, before, readTree(t, root), "a failed sync changes nothing")
	assertNoLeftovers(t, root)
}

// A replaced file keeps its mode and owner. A new file gets the owner of its directory.
func TestModeAndOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for chown")
	}
	root := seeded(t)
	put(t, root, "projects/p/a.sh", "1")
	a, p := filepath.Join(root, "projects/p/a.sh"), filepath.Join(root, "projects/p")
	require.NoError(t, os.Chmod(a, 0o660))
	require.NoError(t, os.Chown(a, 1234, 1235))
	require.NoError(t, os.Chown(p, 2003, 2004))
	require.NoError(t, os.Chmod(p, 0o2775|os.ModeSetgid))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	d := open(t, root, Options{})
	apply(t, d, tree{"projects/p/a.sh": {"2", true}, "projects/p/new/deep/b": {content: "b"}})
	check := func(path, mode string, uid, gid uint32) {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		st := safe.AttrsOf(fi)
		assert.Equal(t, mode, fi.Mode().String(), path)
		assert.Equal(t, [2]uint32{uid, gid}, [2]uint32{st.UID, st.GID}, path)
	}
	check(a, "-rwxrwx---", 1234, 1235)
	check(p+"/new/deep", "dgrwxr-xr-x", 2003, 2004)
	check(p+"/new/deep/b", "-rw-r--r--", 2003, 2004)
}

// Canceling the context before an apply changes nothing. Canceling it later does not stop the apply halfway.
func TestCanceledContext(t *testing.T) {
	root := seeded(t)
	ctx, cancel := context.WithCancel(t.Context())
	d := open(t, root, Options{})
	want := text(map[string]string{"projects/p/a": "1", "projects/p/b": "1"})
	before := readTree(t, root)
	s := staged(t, d, want)
	cancel()
	_, err := s.Apply(ctx, head(want))
	require.ErrorIs(t, err, ctx.Err())
	assert.Equal(t, before, readTree(t, root))
	assertNoLeftovers(t, root)

	ctx, cancel = context.WithCancel(t.Context())
	d.vol.Around = func(e safe.Effect, do func() error) error {
		if e.Op == "rename" && e.Dest == "projects/p/a" {
			cancel()
		}
		return do()
	}
	s, err = d.Stage(ctx, planFor(t, d, want), nil, want.source())
	require.NoError(t, err)
	_, err = s.Apply(ctx, head(want))
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	assert.Equal(t, "1", contents(t, root)["projects/p/b"])
}

func TestEmptyPlan(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	want := text(map[string]string{"projects/p/a": "1"})
	apply(t, d, want)
	assert.Equal(t, Result{Applied: true, Committed: true}, apply(t, d, want))
	h := head(want)
	h.Ref = "other"
	s := staged(t, d, want)
	_, err := s.Apply(t.Context(), h)
	require.NoError(t, err)
	assert.Equal(t, "other", d.Manifest().Header().Ref, "a changed header is written")
	_, err = s.Apply(t.Context(), h)
	require.Error(t, err, "a stage can be applied only once")
}

func TestNotes(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	b, err := d.Note("example")
	require.NoError(t, err)
	assert.Nil(t, b)
	require.NoError(t, d.SetNote("example", []byte("scan")))
	require.NoError(t, d.Close())
	d = open(t, root, Options{})
	b, err = d.Note("example")
	require.NoError(t, err)
	assert.Equal(t, "scan", string(b))
	require.NoError(t, d.SetNote("example", nil))
	require.NoError(t, d.SetNote("example", nil))
	b, err = d.Note("example")
	require.NoError(t, err)
	assert.Nil(t, b)
	require.Error(t, d.SetNote("../x", []byte("x")))
	require.Error(t, d.SetNote("x", make([]byte, records.MaxNote+1)))
}

// A rollback keeps what the gateway wrote during the sync. Everything else is as before.
func TestGatewayWritesDuringRollback(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{plain: plain})
			one := text(map[string]string{"projects/p/a": "1", "projects/p/b": "1", "projects/p/c": "1", "projects/p/d": "1"})
			apply(t, d, one)
			at := func(name string) string { return filepath.Join(root, "projects/p", name) }
			d.vol.Around = func(e safe.Effect, do func() error) error {
				if e.Op != "syncdir" || e.Path != "projects/p" {
					return do()
				}
				// All files are in place.
				put(t, root, "projects/p/a", "written into")
				require.NoError(t, os.Remove(at("b")))
				put(t, root, "projects/p/b", "replaced")
				require.NoError(t, os.Remove(at("c")))
				put(t, root, "projects/p/d", "came back")
				put(t, root, "projects/p/new", "written into new")
				d.vol.Around = nil
				return syscall.EIO
			}
			two := text(map[string]string{"projects/p/a": "2", "projects/p/b": "2", "projects/p/c": "2", "projects/p/new": "2"})
			res, err := tryApply(t, d, two)
			require.ErrorIs(t, err, syscall.EIO)
			assert.False(t, res.Applied)
			got := contents(t, root)
			assert.Equal(t, "written into", got["projects/p/a"])
			assert.Equal(t, "replaced", got["projects/p/b"])
			assert.Equal(t, "1", got["projects/p/c"])
			assert.Equal(t, "came back", got["projects/p/d"])
			assert.Equal(t, "written into new", got["projects/p/new"])
			assert.Empty(t, lost(t, d), "git has every file that was removed")
			assert.Equal(t, one.id(), d.Manifest().Header().Commit)
			assertNoLeftovers(t, root)
		})
	}
}

// The agent never removes a directory that it did not create, even one created after the plan. If a directory replaced a file that
// the sync deletes, the directory stays.
func TestGatewayDirectoriesStay(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/old": "1"}))
	two := text(map[string]string{"projects/p/theirs/ours/f": "2"})
	s := staged(t, d, two)
	theirs := filepath.Join(root, "projects/p/theirs")
	require.NoError(t, os.Mkdir(theirs, 0o755))
	require.NoError(t, os.Remove(filepath.Join(root, "projects/p/old")))
	put(t, root, "projects/p/old/x", "x")
	_, err := s.Apply(t.Context(), head(two))
	require.NoError(t, err)
	apply(t, d, tree{})
	assert.DirExists(t, theirs)
	assert.NoDirExists(t, filepath.Join(theirs, "ours"))
	assert.Equal(t, "x", contents(t, root)["projects/p/old/x"])
}

// The gateway writes just before a file is rolled back, and then the process dies. The restart must save that write.
func TestWriteBeforeCrashInRollback(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	if d.vol.NoExchange.Load() {
		t.Skip("this file system cannot exchange two names")
	}
	failed, dead := false, false
	d.vol.Around = func(e safe.Effect, do func() error) error {
		switch {
		case dead:
			return syscall.EIO
		case e.Op == "syncdir" && e.Path == "projects/p" && !failed:
			failed = true
			return syscall.EIO
		case failed && e.Op == "exchange":
			put(t, root, "projects/p/a", "at the last moment")
			dead = true
		}
		return do()
	}
	res, err := tryApply(t, d, text(map[string]string{"projects/p/a": "2"}))
	require.ErrorIs(t, err, syscall.EIO)
	assert.True(t, res.Applied, "the outcome is unknown, so the sync counts as applied")
	require.NoError(t, d.Close())
	d = open(t, root, Options{})
	assert.False(t, d.Recovered().Forward)
	assert.Equal(t, []string{"projects/p/a"}, d.Recovered().Paths)
	assert.Equal(t, "1", contents(t, root)["projects/p/a"])
	assert.True(t, everything(t, root)["at the last moment"])
	assert.Len(t, d.Recovered().Saved, 1)
	assertNoLeftovers(t, root)
}

// A reader must never see a resource.json without its files. The sync creates the files before resource.json and removes them after
// it.
func TestResourceIsCompleteAtAnyStep(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	view := func(dir, v string) tree {
		return text(map[string]string{dir + "a.bin": v, dir + "resource.json": v, dir + "view.json": v, dir + "sub/project.json": v, dir + "sub/z": v})
	}
	read := func(p string) string {
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return ""
		}
		return string(b)
	}
	check := func() {
		// sequence: each step of a sync checks all files
		for _, dir := range []string{"projects/p/", "projects/q/"} {
			for lead, files := range map[string][]string{"resource.json": {"a.bin", "view.json"}, "sub/project.json": {"sub/z"}} {
				for _, f := range files {
					if l := read(dir + lead); l != "" {
						assert.GreaterOrEqual(t, read(dir+f), l, "%s beside %s", dir+f, lead)
					}
				}
			}
		}
	}
	d.vol.Around = func(_ safe.Effect, do func() error) error {
		check()
		return do()
	}
	apply(t, d, view("projects/p/", "1"))
	apply(t, d, view("projects/p/", "2"))
	apply(t, d, view("projects/q/", "1"))
	check()
}

// The agent caches an open directory only briefly, because the gateway may replace the directory.
func TestReplacedDirectoryIsSeen(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	put(t, root, "projects/p/v/a", "1")
	b, err := d.Read("projects/p/v/a", 10)
	require.NoError(t, err)
	assert.Equal(t, "1", string(b))
	require.NoError(t, os.Rename(filepath.Join(root, "projects/p"), filepath.Join(root, "projects/gone")))
	put(t, root, "projects/p/v/a", "2")
	d.cur.Opened = d.cur.Opened.Add(-2 * safe.ReopenAfter)
	b, err = d.Read("projects/p/v/a", 10)
	require.NoError(t, err)
	assert.Equal(t, "2", string(b))
}

// Stage requests the bytes in the order that its caller gives. In a sync, that is the order of the store.
func TestStagingOrder(t *testing.T) {
	d := open(t, seeded(t), Options{})
	want := text(map[string]string{"projects/a": "3", "projects/b": "1", "projects/c": "2"})
	rank := map[plan.ID]int64{}
	for _, f := range want {
		rank[plan.BlobID([]byte(f.content))] = int64(f.content[0])
	}
	asked := ""
	s, err := d.Stage(t.Context(), planFor(t, d, want), func(id plan.ID) int64 { return rank[id] }, func(w io.Writer, c plan.Change) error {
		asked += want[c.Path].content
		return want.source()(w, c)
	})
	require.NoError(t, err)
	assert.Equal(t, "123", asked)
	require.NoError(t, s.Discard())
	require.NoError(t, s.Discard())
}

// A newer stage replaces an older one, which keeps no directory open.
func TestNewerStage(t *testing.T) {
	d := open(t, seeded(t), Options{})
	want := text(map[string]string{"projects/a": "1"})
	older := staged(t, d, want)
	newer := staged(t, d, want)
	assert.Nil(t, older.run.staging.In(""))
	require.NoError(t, older.Discard())
	_, err := newer.Apply(t.Context(), head(want))
	require.NoError(t, err)
	assertFiles(t, d.path, want)
}

// If a sync is interrupted after its journal is written, the next start finishes it and reports the written paths.
func TestInterruptedSyncIsRecovered(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	assert.Nil(t, d.Recovered())
	require.NoError(t, d.Close())
	want := text(map[string]string{"projects/a": "1", "projects/b": "1"})
	interrupt(t, root, want, step("rename", "projects/b"))
	look := open(t, root, Options{ReadOnly: true})
	assert.Equal(t, plan.ID{}, look.Manifest().Header().Commit, "a read-only Dir does not finish the sync")
	d = open(t, root, Options{})
	assert.Equal(t, &Recovery{Commit: want.id(), Ref: "main", Forward: true, Counts: plan.Counts{Added: 2}, Paths: []string{"projects/a", "projects/b"}}, d.Recovered())
	assert.Equal(t, want.id(), d.Manifest().Header().Commit)
	assertManifest(t, d)
	assertNoLeftovers(t, root)
}
