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

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const envInside = "DISK_TEST_INSIDE"

// inside reruns the test in its own process, optionally in namespaces that allow mounts. It returns true in that process and false
// in the parent.
func inside(t *testing.T, namespaces bool) bool {
	if os.Getenv(envInside) == t.Name() {
		return true
	}
	args := []string{os.Args[0], "-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$", "-test.v"}
	if namespaces {
		if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
			t.Skipf("unshare -rm does not work here: %v", err)
		}
		args = append([]string{"unshare", "-rm"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), envInside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// F13: the disk or its inodes run out at various points of a sync. The old commit stays, and once there is space, the next sync
// delivers.
func TestFullDiskKeepsTheLastGoodCommit(t *testing.T) {
	if !inside(t, true) {
		return
	}
	one, two := tree{}, tree{}
	for i := range 20 {
		one[fmt.Sprintf("projects/p/v%02d/view.json", i)] = file{content: strings.Repeat("1", 8<<10)}
		two[fmt.Sprintf("projects/p/v%02d/view.json", i)] = file{content: strings.Repeat("2", 8<<10)}
		two[fmt.Sprintf("projects/p/w%02d/view.json", i)] = file{content: strings.Repeat("3", 4<<10)}
	}
	failed := 0
	for _, limit := range []string{"size", "nr_inodes"} {
		for step := range 25 {
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
			room := (fs.Blocks-fs.Bfree)*uint64(fs.Bsize) + uint64(step)*(16<<10)
			if limit == "nr_inodes" {
				room = fs.Files - fs.Ffree + uint64(step)*5
			}
			require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("%s=%d", limit, room)))
			if _, err = tryApply(t, d, two); err != nil {
				failed++
				assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
				require.Empty(t, cmp.Diff(before, contents(t, root)))
				require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, "size=8m,nr_inodes=2000"))
				assertNothingStaged(t, root)
				require.Equal(t, 1, apply(t, d, two).Saved)
			}
			for p, f := range two {
				require.Equal(t, f.content, contents(t, root)[p])
			}
			assertNoLeftovers(t, root)
			require.NoError(t, d.Close())
			// A replaced manifest is closed by the garbage collector.
			require.Eventually(t, func() bool { runtime.GC(); return unix.Unmount(root, 0) == nil }, 10*time.Second, time.Millisecond)
		}
	}
	assert.Greater(t, failed, 20)
}

func assertNothingStaged(t *testing.T, root string) {
	list, err := os.ReadDir(filepath.Join(root, safe.OwnDir, stagingDir))
	if err == nil {
		assert.Empty(t, list)
	}
}

// F13: a volume becomes read-only.
func TestReadOnlyVolumeKeepsTheLastGoodCommit(t *testing.T) {
	if !inside(t, true) {
		return
	}
	root := t.TempDir()
	require.NoError(t, unix.Mount("none", root, "tmpfs", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	seededIn(t, root)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	before := snapshot(t, root)
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := tryApply(t, d, text(map[string]string{"projects/p/a": "2"}))
	assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
	assert.ErrorContains(t, err, "read-only")
	assert.Equal(t, before, snapshot(t, root))
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, ""))
	apply(t, d, text(map[string]string{"projects/p/a": "2"}))
}

// Each mount in the data directory gets its own staging folder, never below a project. All of these folders are removed afterwards.
func TestFilesOfSeveralMountsAreSynced(t *testing.T) {
	if !inside(t, true) {
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
	stages := map[string]bool{}
	d.vol.Around = func(e safe.Effect, do func() error) error {
		if dir, ok := strings.CutSuffix(e.Path, "/"+stagingDir); ok && e.Op == "mkdir" {
			stages[dir] = true
		}
		return do()
	}
	res := apply(t, d, two)
	assert.Equal(t, map[string]bool{".stoker": true, "projects/.stoker": true, "config/resources/core/.stoker": true}, stages)
	assert.Equal(t, 2, res.Saved)
	for _, l := range res.Lost {
		b, err := os.ReadFile(filepath.Join(root, safe.OwnDir, lostfound.DirName, l.File))
		require.NoError(t, err)
		assert.Contains(t, string(b), "gateway's", "saved across mounts")
	}
	for p, f := range two {
		assert.Equal(t, f.content, contents(t, root)[p])
	}
	assert.NoDirExists(t, filepath.Join(projects, safe.OwnDir))
	assert.NoDirExists(t, filepath.Join(core, safe.OwnDir))
	assertNoLeftovers(t, root)

	// Recovery completes or undoes an interrupted sync on all mounts.
	for stop := 5; stop < 90; stop += 6 {
		apply(t, d, one)
		require.NoError(t, d.Close())
		c := &powerCut{t: t, root: root, side: t.TempDir(), dirty: map[uint64]*os.File{}, stop: stop}
		d2, err := Open(root, Options{around: func(_ safe.Effect, do func() error) error {
			if c.steps++; c.steps >= c.stop {
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
		for p, f := range want {
			assert.Equal(t, f.content, contents(t, root)[p], "%s after %d steps", p, stop)
		}
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

// A volume with half of an interrupted sync is unmounted. The data directory opens without it, and when the volume returns, no file
// of the gateway is lost.
func TestRecoveryWithUnmountedVolume(t *testing.T) {
	if !inside(t, true) {
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
	interrupt(t, root, want("2"), func(e safe.Effect) bool { return e.Op == "exchange" && e.Dest == "projects/p/b" })
	unmount()

	d = open(t, root, Options{})
	assert.Equal(t, want("1").id(), d.Manifest().Header().Commit)
	assert.False(t, d.Manifest().Header().Complete, "the next plan has to compare every file")
	apply(t, d, want("3"))
	assertNoLeftovers(t, root)

	mount()
	apply(t, d, want("4"))
	for p, f := range want("4") {
		assert.Equal(t, f.content, contents(t, root)[p], p)
	}
	assert.True(t, everything(t, root)["the gateway's"], "saved")
	assert.NoDirExists(t, filepath.Join(projects, safe.OwnDir))
	assertNoLeftovers(t, root)
	unmount()
}

// F13: RLIMIT_FSIZE makes a write fail halfway.
func TestFileSizeLimitKeepsTheLastGoodCommit(t *testing.T) {
	if !inside(t, false) {
		return
	}
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	before := snapshot(t, root)
	limit := syscall.Rlimit{Cur: 100 << 10, Max: 100 << 10}
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	_, err := tryApply(t, d, text(map[string]string{"projects/p/a": strings.Repeat("2", 200<<10)}))
	assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
	assert.Equal(t, before, snapshot(t, root))
	assertNoLeftovers(t, root)
	apply(t, d, text(map[string]string{"projects/p/a": strconv.Itoa(2)}))
}
