//go:build linux

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// newFolders returns a commit with a new project of n views, and one new view in an old project.
func newFolders(n int) tree {
	want := tree{"projects/old/project.json": {content: "old"}, "projects/old/views/b/view.json": {content: "b"}}
	for i := range n {
		v := fmt.Sprintf("projects/new/views/area/v%02d/", i)
		want[v+"view.json"], want[v+"resource.json"] = file{content: v + "view"}, file{content: v + "resource"}
	}
	want["projects/new/project.json"] = file{content: "new"}
	return want
}

// TestNewDirectoriesMoveWhole counts the renames of a sync that creates directories: one for each outermost directory.
func TestNewDirectoriesMoveWhole(t *testing.T) {
	root := seeded(t)
	renames := 0
	d := open(t, root, Options{FsyncFiles: 1, Around: func(e safe.Effect, do func() error) error {
		if e.Op == "rename" && strings.Contains(e.Path, safe.StagingDir) {
			renames++
		}
		return quick(e, do)
	}})
	apply(t, d, tree{"projects/old/project.json": {content: "old"}})
	require.Equal(t, 1, renames, "projects/old")
	want := newFolders(20)
	apply(t, d, want)
	assert.Equal(t, 1+2, renames, "projects/new, and views in projects/old")
	assertFiles(t, root, want)
	for _, dir := range []string{"projects/new", "projects/new/views/area/v07", "projects/old/views"} {
		rec, ok, err := d.manifest().Lookup(dir)
		require.NoError(t, err)
		assert.True(t, ok && rec.Dir, "the manifest owns %s", dir)
	}
	assertNoLeftovers(t, root)
}

// TestNewDirectoryAppears lets the gateway create something at the path of a directory that is staged whole.
func TestNewDirectoryAppears(t *testing.T) {
	outside := t.TempDir()
	for name, c := range map[string]struct {
		write func(t *testing.T, root string)
		kept  []string // contents that must exist afterwards
		fails bool
	}{
		"empty directory": {write: func(t *testing.T, root string) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/new"), 0o755))
		}},
		"directory with another file": {write: func(t *testing.T, root string) {
			put(t, root, "projects/new/views/mine.json", "gateway")
		}, kept: []string{"gateway"}},
		"nested directory with other bytes of a file": {write: func(t *testing.T, root string) {
			put(t, root, "projects/new/views/area/v03/view.json", "gateway")
		}, kept: []string{"gateway"}},
		"the same file": {write: func(t *testing.T, root string) {
			put(t, root, "projects/new/views/area/v03/view.json", "projects/new/views/area/v03/view")
		}},
		"file": {write: func(t *testing.T, root string) {
			put(t, root, "projects/new", "gateway")
		}, kept: []string{"gateway"}, fails: true},
		"link": {write: func(t *testing.T, root string) {
			require.NoError(t, os.Symlink(outside, filepath.Join(root, "projects/new")))
		}, fails: true},
		"nested link": {write: func(t *testing.T, root string) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/new/views"), 0o755))
			require.NoError(t, os.Symlink(outside, filepath.Join(root, "projects/new/views/area")))
		}, fails: true},
	} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plain=%v", name, plain), func(t *testing.T) {
				root, want := seeded(t), newFolders(9)
				d := open(t, root, Options{FsyncFiles: 1, Around: quick})
				apply(t, d, tree{"projects/old/project.json": {content: "old"}})
				s := staged(t, d, want)
				d.vol.NoExchange.Store(plain)
				c.write(t, root)
				before := contents(t, root)
				_, err := s.Apply(t.Context(), head(want))
				got := contents(t, root)
				if c.fails {
					require.Error(t, err)
					assert.Equal(t, before, got)
				} else {
					require.NoError(t, err)
					assertFiles(t, root, want)
				}
				all := everything(t, root)
				for _, content := range c.kept {
					assert.True(t, all[content], "%q is lost", content)
				}
				list, err := os.ReadDir(outside)
				require.NoError(t, err)
				assert.Empty(t, list, "the agent followed a link")
				assertNoLeftovers(t, root)
			})
		}
	}
}

// TestNewDirectoryInherits checks that new directories have the mode that the directory above them passes on.
func TestNewDirectoryInherits(t *testing.T) {
	for _, setgid := range []bool{false, true} {
		t.Run(fmt.Sprintf("setgid=%v", setgid), func(t *testing.T) {
			root, want := seeded(t), newFolders(3)
			d := open(t, root, Options{FsyncFiles: 1, Around: quick})
			mode := os.FileMode(0o755)
			if setgid {
				mode |= os.ModeSetgid
			}
			require.NoError(t, os.Chmod(filepath.Join(root, "projects"), mode))
			apply(t, d, want)
			for _, dir := range []string{"projects/new", "projects/new/views/area/v01"} {
				fi, err := os.Stat(filepath.Join(root, dir))
				require.NoError(t, err)
				assert.Equal(t, mode|os.ModeDir, fi.Mode(), dir)
			}
		})
	}
}

// TestNewDirectoryVanishes lets a directory appear before the sync and vanish after a crash, which came before the move of its file from the
// slot.
func TestNewDirectoryVanishes(t *testing.T) {
	const name = "projects/new/project.json"
	root, want := seeded(t), newFolders(0)
	d, err := Open(root, Options{FsyncFiles: 1, Around: dies(step("rename", name))})
	require.NoError(t, err)
	apply(t, d, tree{"projects/old/project.json": {content: "old"}})
	s := staged(t, d, want)
	require.NoError(t, os.Mkdir(filepath.Join(root, "projects/new"), 0o755))
	_, err = s.Apply(t.Context(), head(want))
	require.ErrorIs(t, err, errCut)
	require.NoError(t, d.Close())
	require.NoError(t, os.RemoveAll(filepath.Join(root, "projects/new")))
	d = open(t, root, Options{FsyncFiles: 1, Around: quick})
	assertFiles(t, root, want)
	assert.True(t, d.Manifest().Header().Complete)
	assertNoLeftovers(t, root)
}

// If staging fails, nothing changes. A large run writes files while its source reads the next ones.
func TestStaging(t *testing.T) {
	for name, fsyncFiles := range map[string]int{"small": 1000, "large": 1} {
		t.Run(name, func(t *testing.T) { testStaging(t, fsyncFiles) })
	}
}

func testStaging(t *testing.T, fsyncFiles int) {
	const last = "projects/p/099"
	want := tree{}
	for i := range 100 {
		// The sizes grow. The files from 041 on are larger than safe.MaxSmallBlob.
		want[fmt.Sprintf("projects/p/%03d", i)] = file{content: strings.Repeat(string(rune('a'+i%26)), i*i*40)}
	}
	bySize := map[plan.ID]int64{}
	for _, f := range want {
		bySize[plan.BlobID([]byte(f.content))] = int64(len(f.content))
	}
	order := func(id plan.ID) int64 { return bySize[id] }
	stage := func(t *testing.T, o Options, src Source) (*Staged, string, error) {
		root := seeded(t)
		o.FsyncFiles = fsyncFiles
		d := open(t, root, o)
		s, err := d.Stage(t.Context(), planFor(t, d, want), order, src)
		return s, root, err
	}
	t.Run("all files", func(t *testing.T) {
		s, root, err := stage(t, Options{}, want.source())
		require.NoError(t, err)
		_, err = s.Apply(t.Context(), head(want))
		require.NoError(t, err)
		got := readTree(t, root)
		for path, f := range want {
			assert.True(t, strings.HasSuffix(got[path], f.content), path)
		}
	})
	failed := errors.New("no more")
	for name, src := range map[string]Source{
		"the source fails": func(w io.Writer, c plan.Change) error {
			if c.Path == last {
				return failed
			}
			return want.source()(w, c)
		},
		"the source fails in a large file": func(w io.Writer, c plan.Change) error {
			err := want.source()(w, c)
			if c.Path == last {
				return failed
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, root, err := stage(t, Options{}, src)
			require.ErrorIs(t, err, failed)
			assertNoLeftovers(t, root)
		})
	}
	t.Run("other bytes", func(t *testing.T) {
		_, root, err := stage(t, Options{}, func(w io.Writer, c plan.Change) error {
			if c.Path == "projects/p/010" {
				_, err := io.WriteString(w, "other")
				return err
			}
			return want.source()(w, c)
		})
		require.ErrorContains(t, err, "stage projects/p/010: expected blob")
		assertNoLeftovers(t, root)
	})
	t.Run("the disk is full", func(t *testing.T) {
		var files, read atomic.Int32
		full := make(chan struct{})
		_, _, err := stage(t, Options{Around: func(e safe.Effect, do func() error) error {
			if e.Op == "fill" {
				if files.Add(1) == 5 {
					defer close(full)
					return syscall.ENOSPC
				}
			}
			return do()
		}}, func(w io.Writer, c plan.Change) error {
			if read.Add(1) > 40 { // the first batch is being written
				<-full
				time.Sleep(10 * time.Millisecond) // 600 ms until the end
			}
			return want.source()(w, c)
		})
		require.ErrorIs(t, err, syscall.ENOSPC)
		assert.Less(t, int(read.Load()), len(want), "the source must not be read to its end")
	})
	t.Run("canceled", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{FsyncFiles: fsyncFiles})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := d.Stage(ctx, planFor(t, d, want), order, func(w io.Writer, c plan.Change) error {
			if c.Path == "projects/p/050" {
				cancel()
			}
			return want.source()(w, c)
		})
		require.ErrorIs(t, err, context.Canceled)
		assertNoLeftovers(t, root)
	})
}
