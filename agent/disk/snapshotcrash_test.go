//go:build linux

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/single"
	"stoker.io/stoker/agent/plan"
)

// The tests in this file interrupt the removal of snapshots, restore files of lost+found, and change single files.

// fiveSnapshots makes a data directory with five snapshots of one file. It returns their ids, the oldest first.
func fiveSnapshots(t *testing.T) (root string, names []string) {
	t.Helper()
	root = seeded(t)
	d := open(t, root, Options{Around: quick})
	for i := range 6 { // the first sync replaces nothing and takes no snapshot
		syncTo(t, d, tree{"projects/p/a": {content: fmt.Sprint(i)}}, anySnapshots)
	}
	names = ids(t, d)
	require.Len(t, names, 5)
	require.NoError(t, d.Close())
	return root, names
}

// F14: a snapshot needs all later ones. Whenever the power fails while snapshots are removed, those that are left have no gap.
func TestCrashDuringSnapshotRemoval(t *testing.T) {
	for name, o := range map[string]Snapshots{"retention": {Gateway: "site", Keep: 2, MaxBytes: 1 << 20}, "disabled": {}} {
		for stop, done := 1, false; !done; stop += shortStride(1) {
			for _, strict := range []bool{false, true} {
				ok := t.Run(fmt.Sprintf("%s strict=%v %d", name, strict, stop), func(t *testing.T) {
					root, names := fiveSnapshots(t)
					c := newPowerCut(t, root)
					c.stop, c.strict = stop, strict
					if d, err := Open(root, Options{Around: c.around}); err == nil {
						_, _ = tryApplyWith(t, d, tree{"projects/p/a": {content: "new"}}, o)
						_ = d.Close()
					}
					done = !c.dead
					c.cut()
					d := open(t, root, Options{Around: quick})
					left := ids(t, d)
					for _, id := range left {
						if at := slices.Index(names, id); at >= 0 {
							assert.Subset(t, left, names[at:], "%s remain of %s", left, names)
						}
					}
					syncTo(t, d, tree{"projects/p/a": {content: "newer"}}, anySnapshots)
					assert.Subset(t, ids(t, d), left[max(0, len(left)-4):], "the next sync keeps the newest four")
				})
				if !ok {
					return
				}
			}
		}
	}
}

// F14, F20: a power cut during a restore that takes no snapshot leaves all snapshots, or those up to the restored one.
func TestCrashDuringRestoreWithoutSnapshot(t *testing.T) {
	ends := map[string]int{}
	for stop, done := 1, false; !done; stop += shortStride(1) {
		for _, strict := range []bool{false, true} {
			ok := t.Run(fmt.Sprintf("strict=%v %d", strict, stop), func(t *testing.T) {
				root, names := fiveSnapshots(t)
				c := newPowerCut(t, root)
				c.stop, c.strict = stop, strict
				if d, err := Open(root, Options{Around: c.around}); err == nil {
					_, _ = takeBackWith(t, d, names[1], nil, Snapshots{}) // only the files matter
					_ = d.Close()
				}
				done = !c.dead
				c.cut()
				d := open(t, root, Options{Around: quick})
				is := contents(t, root)["projects/p/a"]
				ends[is]++
				assert.Equal(t, map[string][]string{"1": names[:2], "5": names}[is], ids(t, d))
				_, err := takeBack(t, d, names[1], nil)
				require.NoError(t, err)
				assert.Equal(t, "1", contents(t, root)["projects/p/a"])
			})
			if !ok {
				return
			}
		}
	}
	assert.Positive(t, ends["1"])
	assert.Positive(t, ends["5"])
}

// F14: the snapshot of a sync that is rolled back is removed durably, so that a power cut does not cost the older ones.
func TestCrashAfterRollbackKeepsSnapshots(t *testing.T) {
	want := tree{"projects/p/a": {content: "new"}}
	root, _ := fiveSnapshots(t)
	c := newPowerCut(t, root)
	d := open(t, root, Options{Around: c.around})
	syncTo(t, d, want, anySnapshots)
	rollbacks := 0
	for fail := 1; fail <= c.steps; fail++ {
		ok := t.Run(fmt.Sprint(fail), func(t *testing.T) {
			root, names := fiveSnapshots(t)
			c := newPowerCut(t, root)
			c.fail, c.err, c.strict = fail, syscall.ENOSPC, true
			d, err := Open(root, Options{Around: c.around})
			if err != nil {
				return
			}
			s, err := d.Stage(t.Context(), planFor(t, d, want), nil, want.source())
			if err == nil {
				err = s.Snapshot(anySnapshots)
			}
			if err == nil {
				var res Result
				if res, err = s.Apply(t.Context(), head(want)); err != nil && !res.Applied {
					rollbacks++
				}
			}
			require.NoError(t, d.Close())
			c.cut()
			if err == nil {
				return
			}
			d = open(t, root, Options{Around: quick})
			syncTo(t, d, want, anySnapshots)
			assert.Subset(t, ids(t, d), names[1:])
		})
		if !ok {
			return
		}
	}
	assert.Positive(t, rollbacks)
}

// lost returns the entries of lost+found.
func lost(t *testing.T, d *Dir) []Lost {
	t.Helper()
	l, err := d.LostAndFound()
	require.NoError(t, err)
	return l
}

// savedContent returns the content of an entry of lost+found.
func savedContent(t *testing.T, root string, l Lost) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, safe.OwnDir, lostfound.DirName, l.File))
	require.NoError(t, err)
	return string(b)
}

func TestRestoreToEachMount(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root := seeded(t)
	for _, dir := range []string{"projects", "config/resources/core"} {
		at := filepath.Join(root, dir)
		require.NoError(t, unix.Mount("none", at, "tmpfs", 0, ""))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	}
	d := open(t, root, Options{})
	files := []string{"config/resources/core/x/c", "config/resources/other/c", "projects/p/deep/a"}
	one, two := tree{}, tree{}
	for _, f := range files {
		one[f], two[f] = file{content: "1"}, file{content: "2"}
	}
	apply(t, d, one)
	for _, f := range files {
		t.Run(f, func(t *testing.T) {
			put(t, root, f, "the gateway's "+f)
			require.NoError(t, os.Chmod(filepath.Join(root, f), 0o640))
		})
	}
	require.Len(t, apply(t, d, two).Saved, len(files))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "projects/p")))

	entries := lost(t, d)
	for _, l := range entries {
		require.NoError(t, d.RestoreLost(l))
		fi, err := os.Stat(filepath.Join(root, l.Path))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o640), fi.Mode().Perm(), "a copy on another mount keeps the mode, too: %s", l.Path)
		assert.Equal(t, "the gateway's "+l.Path, contents(t, root)[l.Path])
	}
	assert.NoDirExists(t, filepath.Join(root, "projects", safe.OwnDir))
	assert.NoDirExists(t, filepath.Join(root, "config/resources/core", safe.OwnDir))

	d.vol.Around = func(e safe.Effect, do func() error) error {
		if e.Op == "chmod" && strings.Contains(e.Path, lostfound.DirName) { // some file systems have no modes
			return unix.EPERM
		}
		return do()
	}
	assert.Len(t, apply(t, d, one).Saved, len(files), "a failed chmod does not lose the file")

	// Restore must not remove the staging folder of an interrupted sync.
	staging := filepath.Join(root, "projects", safe.OwnDir, safe.StagingDir)
	require.NoError(t, os.MkdirAll(staging, 0o700))
	require.NoError(t, d.RestoreLost(entries[2]))
	assert.DirExists(t, staging)
	assertNoLeftovers(t, root)
}

// A restored file keeps its mode: a private key stays private, and a script stays executable.
func TestRestoreKeepsMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o644, 0o755, 0o400} {
		t.Run(mode.String(), func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			apply(t, d, text(map[string]string{"projects/p/a": "1"}))
			put(t, root, "projects/p/a", "of the gateway")
			require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/a"), mode))
			require.Len(t, apply(t, d, text(map[string]string{"projects/p/a": "2"})).Saved, 1)
			require.NoError(t, d.RestoreLost(lost(t, d)[0]))
			fi, err := os.Stat(filepath.Join(root, "projects/p/a"))
			require.NoError(t, err)
			assert.Equal(t, mode, fi.Mode().Perm())
			assert.Equal(t, "of the gateway", contents(t, root)["projects/p/a"])
		})
	}
}

// File names on Linux may be any bytes, but JSON strings must be UTF-8.
func TestRestoreOfNonUTF8Names(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	names := []string{"projects/p/caf\xe8.txt", "projects/p/caf\xe9.txt", "projects/p/caf\ufffd.txt"}
	changes := &plan.Changes{To: text(map[string]string{"x": "y"}).id()}
	// setup: one conflict for each name
	for _, name := range names {
		put(t, root, name, "the only copy of "+name)
		st, err := d.Stat(name)
		require.NoError(t, err)
		id, err := d.BlobID(name)
		require.NoError(t, err)
		changes.List = append(changes.List, plan.Change{Op: plan.Delete, Path: name, Found: st, FoundID: id, Conflict: true})
	}
	s, err := d.Stage(t.Context(), changes, nil, func(io.Writer, plan.Change) error { return nil })
	require.NoError(t, err)
	res, err := s.Apply(t.Context(), d.Manifest().Header())
	require.NoError(t, err)
	entries := lost(t, d)
	require.Len(t, entries, len(names))
	for i, l := range entries {
		assert.Equal(t, names[i], l.Path)
		assert.Equal(t, res.Saved[i].File, l.File)
		f, err := d.OpenLost(l)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Equal(t, "the only copy of "+names[i], string(b))
		require.NoError(t, d.RestoreLost(l))
		assert.Equal(t, string(b), contents(t, root)[names[i]])
	}
}

// The gateway saves a file just before the agent replaces it, and perhaps again just before the agent undoes that. Its last version stays or goes to
// lost+found, also on a file system that cannot exchange, and if the undo fails.
func TestSingleFileWrittenMeanwhile(t *testing.T) {
	const key, owned = "config/resources/core/ignition/api-token/k/config.json", "projects/p/a"
	for _, fs := range []struct{ plain, links bool }{{false, true}, {true, true}, {true, false}} {
		plain := fs.plain
		for name, c := range map[string]struct {
			saves []string // by the gateway before each move of the file; "between both" saves between the two moves of a write
			fails int      // the move that fails; 0 if none does
			stays string   // the content that is live in the end; "" if it is the agent's
			lost  []string // the contents that go to lost+found
		}{
			"once":         {[]string{"first"}, 0, "first", nil},
			"twice":        {[]string{"first", "second"}, 0, "first", []string{"second"}},
			"undo fails":   {[]string{"first"}, 2, "", []string{"first"}},
			"between both": {[]string{"first"}, 0, "first", nil},
		} {
			if name == "between both" && !plain { // an exchange is one move
				continue
			}
			t.Run(fmt.Sprintf("plain=%t links=%t %s", plain, fs.links, name), func(t *testing.T) {
				root, path, moves := seeded(t), "", 0
				d := open(t, root, Options{plain: plain, Around: func(e safe.Effect, do func() error) error {
					if e.Op == "link" && !fs.links {
						return unix.EPERM
					}
					if path == "" || e.Op != "exchange" && e.Op != "rename" && e.Op != "link" || e.Path != path && e.Dest != path {
						return do()
					}
					moves++
					n, first := moves, moves > 0
					if plain { // a write has two moves
						n, first = (moves+1)/2, moves%2 == 1
					}
					save := func(during bool) {
						if first && n <= len(c.saves) && during == (name == "between both") {
							put(t, root, path+".tmp", c.saves[n-1])
							require.NoError(t, os.Rename(filepath.Join(root, path+".tmp"), filepath.Join(root, path)))
						}
					}
					save(false)
					if n > 0 && n == c.fails {
						return unix.EIO
					}
					err := do()
					save(true)
					return err
				}})
				edit := func(to string) error {
					_, err := d.Edit(key, 1<<10, "", func([]byte) ([]byte, error) { return []byte(to), nil })
					return err
				}
				check := func(agents string, before int) {
					want, list := c.stays, lost(t, d)[before:]
					if want == "" {
						want = agents
					}
					assert.Equal(t, want, contents(t, root)[path])
					require.Len(t, list, len(c.lost))
					for i, l := range list {
						f, err := d.OpenLost(l)
						require.NoError(t, err)
						b, err := io.ReadAll(f)
						require.NoError(t, errors.Join(err, f.Close()))
						assert.Equal(t, c.lost[i], string(b))
						assert.Equal(t, path, l.Path)
					}
				}
				require.NoError(t, edit("1"))
				require.NoError(t, edit("2"))
				assert.Equal(t, "2", contents(t, root)[key])
				path = key
				require.Error(t, edit("3"))
				check("3", 0)

				path, moves = "", 0
				if fs.links { // a restore first tries whether the name is free
					moves = -1
				}
				apply(t, d, text(map[string]string{owned: "1"}))
				put(t, root, owned, "lost")
				apply(t, d, text(map[string]string{owned: "2"}))
				before := lost(t, d)
				path = owned
				require.Error(t, d.RestoreLost(before[len(before)-1]))
				check("lost", len(before))
				assertNoLeftovers(t, root)
			})
		}
	}
}

// The agent is killed after any step of a write, on a file system that cannot exchange. With hard links, the file is always there; without, it is
// there after the next start.
func TestSingleFileKilled(t *testing.T) {
	const path = "config/resources/core/ignition/security-properties/config.json"
	for _, links := range []bool{true, false} {
		for stop, done := 1, false; !done; stop++ {
			ok := t.Run(fmt.Sprintf("links=%t %d", links, stop), func(t *testing.T) {
				root, left := seeded(t), stop
				put(t, root, path, "old")
				around := func(e safe.Effect, do func() error) error {
					if left--; left < 0 {
						return errors.New("killed")
					}
					if e.Op == "link" && !links {
						return unix.EPERM
					}
					return do()
				}
				edit := func(d *Dir) error {
					_, err := d.Edit(path, 1<<10, "", func([]byte) ([]byte, error) { return []byte("new"), nil })
					return err
				}
				if d, err := Open(root, Options{plain: true, Around: around}); err == nil {
					_ = edit(d)
					require.NoError(t, d.Close())
				}
				done = left >= 0
				if links {
					assert.Contains(t, []string{"old", "new"}, contents(t, root)[path])
				}
				left = 1 << 20
				d := open(t, root, Options{plain: true, Around: around})
				assert.Contains(t, []string{"old", "new"}, contents(t, root)[path])
				require.NoError(t, edit(d))
				assert.Equal(t, "new", contents(t, root)[path])
				assert.NoFileExists(t, filepath.Join(root, ".stoker/restore.path"))
			})
			if !ok {
				return
			}
		}
	}
}

// An edit by the agent begins while another process restores a file of lost+found. No file gets the content of the other.
func TestSingleFilesAtTheSameTime(t *testing.T) {
	const key, path = "config/resources/core/ignition/api-token/k/config.json", "projects/p/a"
	root := seeded(t)
	moves := func(e safe.Effect) bool { return e.Op == "rename" && filepath.Base(e.Path) == single.Staged }
	reached, finish, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	d := open(t, root, Options{Around: func(e safe.Effect, do func() error) error {
		if moves(e) {
			close(reached)
			<-finish
		}
		return do()
	}})
	edit := func() error {
		_, err := d.Edit(key, 1<<10, "", func([]byte) ([]byte, error) { return []byte("agent"), nil })
		return err
	}
	apply(t, d, text(map[string]string{path: "1"}))
	put(t, root, path, "lost")
	apply(t, d, text(map[string]string{path: "2"}))
	require.NoError(t, os.Remove(filepath.Join(root, path)))
	reader := open(t, root, Options{ReadOnly: true, Around: func(e safe.Effect, do func() error) error {
		if moves(e) {
			go func() { result <- edit() }()
			select {
			case <-reached:
			case err := <-result:
				require.ErrorContains(t, err, "try again")
				result <- nil
			}
		}
		return do()
	}})
	require.NoError(t, reader.RestoreLost(lost(t, d)[0]))
	close(finish)
	assert.Equal(t, "lost", contents(t, root)[path])
	require.NoError(t, <-result)
	require.NoError(t, edit())
	assert.Equal(t, "agent", contents(t, root)[key])
	assertNoLeftovers(t, root)
}
