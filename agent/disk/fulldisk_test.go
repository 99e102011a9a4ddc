//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const envChild = "DISK_TEST_CHILD"

// inChildProcess reports whether it is called in a child process that runs only this test. In the parent, it runs the test in such a
// process and returns false; the caller must then return. With namespaces, the child can mount file systems.
func inChildProcess(t *testing.T, namespaces bool) bool {
	if os.Getenv(envChild) == t.Name() {
		return true
	}
	args := []string{os.Args[0], "-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$", "-test.v", fmt.Sprintf("-test.short=%t", testing.Short())}
	if namespaces {
		if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
			t.Skipf("unshare -rm does not work here: %v", err)
		}
		args = append([]string{"unshare", "-rm"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), envChild+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// F13 of docs/internals/threats.md: the disk or its inodes run out at various points of a sync. The old commit stays. When there is
// space again, the next sync delivers the new commit.
func TestFullDisk(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	one, two := tree{}, tree{}
	for i := range 20 {
		one[fmt.Sprintf("projects/p/v%02d/view.json", i)] = file{content: strings.Repeat("1", 8<<10)}
		two[fmt.Sprintf("projects/p/v%02d/view.json", i)] = file{content: strings.Repeat("2", 8<<10)}
		two[fmt.Sprintf("projects/p/w%02d/view.json", i)] = file{content: strings.Repeat("3", 4<<10)}
	}
	every := 1
	if testing.Short() {
		every = 5 // still stops the sync in staging, at the journal and in the renames
	}
	tried, failed := 0, 0
	for _, limit := range []string{"size", "nr_inodes"} {
		for step := 0; step < 25; step += every {
			t.Run(fmt.Sprintf("%s %d", limit, step), func(t *testing.T) {
				tried++
				root := t.TempDir()
				require.NoError(t, unix.Mount("none", root, "tmpfs", 0, "size=4m,nr_inodes=1000"))
				seededIn(t, root)
				d, err := Open(root, Options{})
				require.NoError(t, err)
				apply(t, d, one)
				put(t, root, "projects/p/v00/view.json", "gateway")
				before := contents(t, root)
				var fs unix.Statfs_t
				require.NoError(t, unix.Statfs(root, &fs))
				limited := (fs.Blocks-fs.Bfree)*uint64(fs.Bsize) + uint64(step)*(16<<10) // what is used now, and more room with each step
				if limit == "nr_inodes" {
					limited = fs.Files - fs.Ffree + uint64(step)*5
				}
				require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("%s=%d", limit, limited)))
				if _, err = tryApply(t, d, two); err != nil {
					failed++
					assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
					require.Empty(t, cmp.Diff(before, contents(t, root)))
					require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, "size=8m,nr_inodes=2000"))
					assertNothingStaged(t, root)
					require.Len(t, apply(t, d, two).Saved, 1, "the gateway's file")
				}
				assertFiles(t, root, two)
				assertNoLeftovers(t, root)
				require.NoError(t, d.Close())
				// The garbage collector closes replaced manifests. Before that, the file system is busy.
				require.Eventually(t, func() bool { runtime.GC(); return unix.Unmount(root, 0) == nil }, 10*time.Second, time.Millisecond)
			})
		}
	}
	assert.Greater(t, failed, 2*tried/5, "most limits must stop the sync")
}

// F13: the disk is full when files have moved. A directory that needs another block cannot grow then, so the rollback of a large sync must not
// need a name in staging for each new file.
func TestFullDiskAfterMoves(t *testing.T) {
	root, want := seeded(t), newFolders(100)
	staging := filepath.Join(root, safe.OwnDir, safe.StagingDir)
	names := func() int {
		list, err := os.ReadDir(staging)
		require.NoError(t, err)
		return len(list)
	}
	limited, room := false, 0 // room is the number of names that the staging folder can have; 0 until the disk is full
	d := open(t, root, Options{FsyncFiles: 1, Around: func(e safe.Effect, do func() error) error {
		switch {
		case limited && room == 0 && e.Path == filepath.Join(safe.OwnDir, "manifest.new"):
			room = names() + 1
			return syscall.ENOSPC
		case limited && room > 0 && e.Op == "rename" && filepath.Dir(e.Dest) == filepath.Join(safe.OwnDir, safe.StagingDir) && names() >= room:
			return syscall.ENOSPC
		}
		return quick(e, do)
	}})
	apply(t, d, tree{"projects/old/project.json": {content: "old"}, "projects/old/views/b/view.json": {content: "a"}})
	before := contents(t, root)
	limited = true
	res, err := tryApply(t, d, want)
	require.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
	require.Positive(t, room)
	assert.False(t, res.Applied)
	assert.Empty(t, cmp.Diff(before, contents(t, root)))
	assertNothingStaged(t, root)
	limited = false
	apply(t, d, want)
	assert.Equal(t, "new", contents(t, root)["projects/new/project.json"])
	assertNoLeftovers(t, root)
}

// assertNothingStaged checks that the staging directory is empty or does not exist.
func assertNothingStaged(t *testing.T, root string) {
	list, err := os.ReadDir(filepath.Join(root, safe.OwnDir, safe.StagingDir))
	if err == nil {
		assert.Empty(t, list)
	}
}

// F13: the volume becomes read-only. The old commit stays, and the next sync on a writable volume delivers the new one.
func TestReadOnlyVolume(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root := t.TempDir()
	require.NoError(t, unix.Mount("none", root, "tmpfs", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	seededIn(t, root)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	before := readTree(t, root)
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := tryApply(t, d, text(map[string]string{"projects/p/a": "2"}))
	assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
	assert.ErrorContains(t, err, "read-only")
	assert.Equal(t, before, readTree(t, root))
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, ""))
	apply(t, d, text(map[string]string{"projects/p/a": "2"}))
}

// Files can only be renamed within a mount. So each mount in the data directory gets its own staging folder while a sync runs. No staging
// folder may be below a project, so a mount in a project is an error.
func TestSeveralMounts(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root := seeded(t)
	projects := filepath.Join(root, "projects")
	mount := func(from, at, kind string, flags uintptr) {
		require.NoError(t, unix.Mount(from, at, kind, flags, ""))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	}
	mount("none", projects, "tmpfs", 0)
	core, volume := filepath.Join(root, "config/resources/core"), t.TempDir()
	mount(volume, core, "", unix.MS_BIND) // same device, different mount
	put(t, root, "config/resources/core/config-mode.json", "{}")
	d := open(t, root, Options{})
	one := text(map[string]string{
		"projects/p/a": "1", "projects/p/gone": "1", "config/resources/core/x/c": "1", "config/resources/core/config-mode.json": "{}",
		"config/resources/other/c": "1",
	})
	apply(t, d, one)
	put(t, root, "projects/p/a", "gateway's")
	put(t, root, "config/resources/core/x/c", "gateway's too")
	two := text(map[string]string{
		"projects/p/a": "2", "projects/q/b": "2", "config/resources/core/x/c": "2", "config/resources/core/config-mode.json": "{}",
		"config/resources/other/c": "2",
	})
	staging := map[string]bool{} // directories that got a staging folder
	d.vol.Around = func(e safe.Effect, do func() error) error {
		if dir, ok := strings.CutSuffix(e.Path, "/"+safe.StagingDir); ok && e.Op == "mkdir" {
			staging[dir] = true
		}
		return do()
	}
	res := apply(t, d, two)
	assert.Equal(t, map[string]bool{".stoker": true, "projects/.stoker": true, "config/resources/core/.stoker": true}, staging)
	assert.Len(t, res.Saved, 2)
	for _, l := range res.Saved {
		assert.Contains(t, savedContent(t, root, l), "gateway's", "the gateway's file is in lost+found, on another mount")
	}
	assertFiles(t, root, two)
	assert.NoDirExists(t, filepath.Join(projects, safe.OwnDir))
	assert.NoDirExists(t, filepath.Join(core, safe.OwnDir))
	assertNoLeftovers(t, root)

	// A sync is interrupted after some of its steps. Recovery completes it or rolls it back, on all mounts alike.
	for stop := 5; stop < 90; stop += 6 {
		apply(t, d, one)
		require.NoError(t, d.Close())
		steps := 0
		d2, err := Open(root, Options{Around: func(_ safe.Effect, do func() error) error {
			if steps++; steps >= stop {
				return errCut
			}
			return do()
		}})
		if err == nil {
			_, err = tryApply(t, d2, two)
			assert.True(t, err == nil || errors.Is(err, errCut), "%v", err)
			require.NoError(t, d2.Close())
		}
		d, err = Open(root, Options{})
		require.NoError(t, err)
		want := one
		if d.Manifest().Header().Commit == two.id() {
			want = two
		}
		assertFiles(t, root, want)
		assert.NoDirExists(t, filepath.Join(projects, safe.OwnDir))
		assertNoLeftovers(t, root)
	}

	mounted := filepath.Join(projects, "p/mounted")
	require.NoError(t, os.Mkdir(mounted, 0o755))
	mount("none", mounted, "tmpfs", 0)
	two["projects/p/mounted/x"] = file{content: "x"}
	_, err := tryApply(t, d, two)
	assert.True(t, failure.Is(err, v1alpha1.ReasonUnsafePath), "%v", err)
	assert.ErrorContains(t, err, "projects/p/mounted is a mount inside a project")
	require.NoError(t, d.Close())
}

// A sync is interrupted, and a volume with some of its files is unmounted before recovery. The data directory opens without the volume.
// When the volume is mounted again, no file of the gateway is lost.
func TestRecoveryWithUnmountedVolume(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, volume := seeded(t), t.TempDir()
	projects := filepath.Join(root, "projects")
	mount := func() { require.NoError(t, unix.Mount(volume, projects, "", unix.MS_BIND, "")) }
	unmount := func() { require.NoError(t, unix.Unmount(projects, unix.MNT_DETACH)) }
	want := func(v string) tree {
		return text(map[string]string{"projects/p/a": v, "projects/p/b": v, "config/resources/core/c": v})
	}
	mount()
	d := open(t, root, Options{})
	apply(t, d, want("1"))
	require.NoError(t, d.Close())
	put(t, root, "projects/p/a", "the gateway's")
	interrupt(t, root, want("2"), step("exchange", "projects/p/b"))
	unmount()

	d = open(t, root, Options{})
	assert.Equal(t, want("1").id(), d.Manifest().Header().Commit)
	assert.False(t, d.Manifest().Header().Complete, "the next plan must compare every file")
	apply(t, d, want("3"))
	assertNoLeftovers(t, root)

	mount()
	apply(t, d, want("4"))
	for p, f := range want("4") {
		assert.Equal(t, f.content, contents(t, root)[p], p)
	}
	assert.True(t, everything(t, root)["the gateway's"], "the gateway's file is in lost+found")
	assert.NoDirExists(t, filepath.Join(projects, safe.OwnDir))
	assertNoLeftovers(t, root)
	unmount()
}

// F13: a limit on the file size makes a write fail halfway. The old commit stays.
func TestFileSizeLimitOfProcess(t *testing.T) {
	if !inChildProcess(t, false) {
		return
	}
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	before := readTree(t, root)
	limit := syscall.Rlimit{Cur: 100 << 10, Max: 100 << 10}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	_, err := tryApply(t, d, text(map[string]string{"projects/p/a": strings.Repeat("2", 200<<10)}))
	assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
	assert.Equal(t, before, readTree(t, root))
	assertNoLeftovers(t, root)
	apply(t, d, text(map[string]string{"projects/p/a": strconv.Itoa(2)}))
}
