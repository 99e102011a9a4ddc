//go:build linux

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The gateway keeps replacing a file while the agent syncs it. Each version that the gateway did not replace itself must be live or in
// lost+found.
func TestBusyGateway(t *testing.T) {
	root := seededIn(t, memory(t))
	d := open(t, root, Options{Around: quick, LostFoundMax: 1 << 30})
	path := filepath.Join(root, "projects/p/busy.json")
	apply(t, d, text(map[string]string{"projects/p/busy.json": "git 0"}))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wrote, replaced := map[string]bool{}, map[string]bool{} // contents that the gateway wrote, and those that it replaced itself
	wg.Go(func() {
		tmp := filepath.Join(root, "busy.tmp")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			content := fmt.Sprintf("gateway %d", i)
			if !assert.NoError(t, os.WriteFile(tmp, []byte(content), 0o644)) ||
				!assert.NoError(t, unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)) {
				return
			}
			wrote[content] = true
			old, err := os.ReadFile(tmp)
			if !assert.NoError(t, err) || !assert.NoError(t, os.Remove(tmp)) {
				return
			}
			if strings.HasPrefix(string(old), "gateway") {
				replaced[string(old)] = true
			}
		}
	})
	begin, saved := time.Now(), 0
	enough := func() bool { return time.Since(begin) > shortRace(2*time.Second) && saved > 0 }
	for n := 1; !enough() && time.Since(begin) < 30*time.Second; n++ {
		want := text(map[string]string{"projects/p/busy.json": fmt.Sprintf("git %d", n)})
		s, err := d.Stage(t.Context(), changesFor(want), nil, want.source())
		require.NoError(t, err)
		res, err := s.Apply(t.Context(), head(want))
		require.NoError(t, err)
		saved += len(res.Saved)
	}
	close(stop)
	wg.Wait()
	require.Positive(t, saved)
	all := everything(t, root)
	for v := range wrote {
		if !replaced[v] {
			assert.Contains(t, all, v)
		}
	}
}

// F2: a directory is exchanged with a symbolic link, again and again, while the agent writes below it. No write may follow the link.
func TestDirectoryExchangedWithLink(t *testing.T) {
	root, canary := seededIn(t, memory(t)), t.TempDir()
	put(t, canary, "p/v/view.json", "canary")
	put(t, root, "projects/sibling/v/view.json", "sibling")
	put(t, root, "projects/p/v/theirs", "theirs")
	sibling := filepath.Join(root, "projects/sibling")
	before, beside := readTree(t, canary), readTree(t, sibling)
	d := open(t, root, Options{Around: quick})

	dir := filepath.Join(root, "projects/p")
	links := []string{dir + ".in", dir + ".out"}
	require.NoError(t, os.Symlink("sibling", links[0])) // os.Root follows this link, because it stays inside the root
	require.NoError(t, os.Symlink(canary+"/p", links[1]))
	stop := make(chan struct{})
	flips := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ; flips++ {
			select {
			case <-stop:
				return
			default:
			}
			for range 2 { // the first exchange makes dir a link, the second makes it a directory again
				err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, links[flips%2], unix.RENAME_EXCHANGE)
				if !assert.NoError(t, err) {
					return
				}
			}
		}
	})
	begin := time.Now()
	applied, refused := 0, 0
	enough := func() bool { return time.Since(begin) > shortRace(2*time.Second) && applied > 0 && refused > 0 }
	for i := 0; !enough() && time.Since(begin) < 30*time.Second; i++ {
		want := text(map[string]string{"projects/p/v/view.json": fmt.Sprint(i), "projects/p/v/other.json": fmt.Sprint(i)})
		if b, err := d.Read("projects/p/v/view.json", 1<<20); err == nil {
			require.NotContains(t, []string{"canary", "sibling"}, string(b))
		}
		s, err := d.Stage(t.Context(), changesFor(want), nil, want.source())
		if err == nil {
			_, err = s.Apply(t.Context(), head(want))
		}
		if err == nil {
			applied++
		} else {
			refused++
		}
	}
	close(stop)
	wg.Wait()
	assert.Greater(t, flips, 100)
	assert.Positive(t, applied)
	assert.Positive(t, refused)
	assert.Equal(t, before, readTree(t, canary))
	assert.Equal(t, beside, readTree(t, sibling))
}

// bind mounts a file or directory over another one until the test ends.
func bind(t *testing.T, what, over string) {
	t.Helper()
	require.NoError(t, unix.Mount(what, over, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(over, 0)) })
}

func TestMountsListsFilesOnly(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, other := seeded(t), t.TempDir()
	secret := filepath.Join(other, "secret")
	for _, p := range []string{"config/a b\\c", "config/dir/x", "projects/p/x"} {
		put(t, root, p, "beneath")
	}
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	require.NoError(t, os.WriteFile(root+"-beside", nil, 0o600))
	bind(t, secret, filepath.Join(root, "config/a b\\c"))
	bind(t, other, filepath.Join(root, "config/dir"))
	bind(t, secret, root+"-beside")
	link := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Symlink(root, link))
	for _, at := range []string{root, link, root + "/"} {
		t.Run(at, func(t *testing.T) {
			got, err := Mounts(at)
			require.NoError(t, err)
			assert.Equal(t, []string{`config/a b\c`}, got)
		})
	}
}

// If a file becomes a mount between the plan and the sync, the sync rolls back and the error names the likely cause.
func TestMountOverFileDuringSyncRollsBack(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, one := seeded(t), text(map[string]string{"config/x": "1", "projects/p/a": "1"})
	d := open(t, root, Options{})
	apply(t, d, one)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	t.Run("mounted", func(t *testing.T) {
		bind(t, secret, filepath.Join(root, "config/x"))
		res, err := tryApply(t, d, text(map[string]string{"config/x": "2", "projects/p/a": "2"}))
		require.ErrorIs(t, err, syscall.EBUSY)
		require.ErrorContains(t, err, "config/x")
		require.ErrorContains(t, err, "a volume was mounted there")
		assert.False(t, res.Applied)
		assert.Equal(t, "1", contents(t, root)["projects/p/a"])
	})
	assert.Equal(t, "1", contents(t, root)["config/x"], "the file below the mount is unchanged")
	assertNoLeftovers(t, root)
}

// An empty directory that the agent created stays if it is a mount point.
func TestDirectoryBecomesMount(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, volume := seeded(t), t.TempDir()
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"config/mine/x": "1", "projects/p/a": "1"}))
	put(t, volume, "x", "1")
	t.Run("mounted", func(t *testing.T) {
		bind(t, volume, filepath.Join(root, "config/mine"))
		two := text(map[string]string{"projects/p/a": "2"})
		apply(t, d, two)
		assert.Equal(t, "2", contents(t, root)["projects/p/a"])
		assert.NoFileExists(t, filepath.Join(volume, "x"))
		assert.DirExists(t, filepath.Join(root, "config/mine"))
		require.NoError(t, d.Close()) // it holds a file descriptor of the mount
	})
}

// access returns how a file is open: for reading, for writing, or for both.
func access(t testing.TB, f *os.File) int {
	t.Helper()
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	return flags & unix.O_ACCMODE
}

// Linux emulates flock on NFS with byte-range locks. An exclusive one needs a file that is open for writing.
func TestLockOnNFS(t *testing.T) {
	for name, refusal := range map[string]unix.Errno{"NFSv4": unix.EBADF, "some others": unix.EIO} {
		t.Run(name, func(t *testing.T) {
			o := Options{flock: func(f *os.File) error {
				if access(t, f) == unix.O_RDONLY {
					return os.NewSyscallError("flock", refusal)
				}
				return lock.Flock(f)
			}}
			root := seeded(t)
			d := open(t, root, o)
			assert.Equal(t, unix.O_RDWR, access(t, d.lock.File))
			_, err := Open(root, o)
			require.ErrorIs(t, err, ErrLocked)
			assert.Contains(t, err.Error(), "process ")
			require.NoError(t, d.Close())
			open(t, root, o)
		})
	}
}

// If the retry with a writable file also fails, Open returns the kernel's error and closes the lock file.
func TestLockRefused(t *testing.T) {
	root := seeded(t)
	for _, refusal := range []unix.Errno{unix.EBADF, unix.EIO, unix.EINVAL} {
		t.Run(refusal.Error(), func(t *testing.T) {
			_, err := Open(root, Options{flock: func(*os.File) error { return os.NewSyscallError("flock", refusal) }})
			require.ErrorIs(t, err, refusal)
		})
	}
	for _, name := range openFiles(t) {
		assert.NotEqual(t, filepath.Join(root, safe.OwnDir, lock.FileName), name)
	}
}

// A lock file open for writing would prevent a remount of the volume as read-only.
func TestLockFileIsOpenForReading(t *testing.T) {
	d := open(t, seeded(t), Options{})
	assert.Equal(t, unix.O_RDONLY, access(t, d.lock.File))
}

// A child process holds the open files of its parent until exec. Close must release the lock anyway.
func TestCloseReleasesLockOfChildProcesses(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	child, err := unix.FcntlInt(d.lock.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { assert.NoError(t, unix.Close(child)) }()
	require.NoError(t, d.Close())
	open(t, root, Options{})
}

// Open and CheckSeeded leave no open file to the garbage collector, because open files keep the volume mounted.
func TestOpenFilesAreClosed(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := len(openFiles(t))
	for range 10 {
		require.NoError(t, d.CheckSeeded())
	}
	assert.Len(t, openFiles(t), before, "CheckSeeded")
	for range 10 {
		r, err := Open(root, Options{ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	assert.Len(t, openFiles(t), before, "Open")
}

func openFiles(t testing.TB) (names []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // otherwise closed in the meantime
			names = append(names, name)
		}
	}
	return names
}

// F14, F18: if the agent may not access one file or folder, the sync changes nothing and names it. It succeeds once access is
// restored. A file whose mode changes after staging counts as changed on the gateway: the sync saves it, and succeeds.
func TestInaccessiblePath(t *testing.T) {
	unprivileged(t)
	one, two := tree{}, tree{}
	for _, name := range []string{"a", "b/c", "b/d", "e/f", "g"} {
		one["projects/p/"+name], two["projects/p/"+name] = file{content: "1"}, file{content: "2"}
	}
	one["projects/p/h/gone"] = file{content: "1"}
	cases := map[string]struct {
		path string
		mode os.FileMode
	}{
		"a file that is replaced":       {"projects/p/b/d", 0},
		"a file that is deleted":        {"projects/p/h/gone", 0o200},
		"a folder that is not writable": {"projects/p/b", 0o555},
		"a folder that is not readable": {"projects/p/e", 0},
		"the parent folder":             {"projects/p", 0o555},
	}
	for name, c := range cases {
		for when, late := range map[string]bool{"before the sync": false, "after it was staged": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				root := seeded(t)
				d := open(t, root, Options{Around: quick})
				apply(t, d, one)
				at := filepath.Join(root, c.path)
				fi, err := os.Stat(at)
				require.NoError(t, err)
				t.Cleanup(func() { _ = os.Chmod(at, fi.Mode()) }) // for the removal of the directory
				changes := planFor(t, d, two)
				var s *Staged
				if late {
					s, err = d.Stage(t.Context(), changes, nil, two.source())
					require.NoError(t, err)
				}
				require.NoError(t, os.Chmod(at, c.mode))
				if !late {
					s, err = d.Stage(t.Context(), changes, nil, two.source())
				}
				if err == nil {
					_, err = s.Apply(t.Context(), head(two))
				}
				if late && fi.Mode().IsRegular() { // it may hold changes of the gateway, so it is saved and the sync succeeds
					require.NoError(t, err)
					saved := lost(t, d)
					require.Len(t, saved, 1)
					assert.Equal(t, c.path, saved[0].Path)
					return
				}
				require.Error(t, err)
				assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
				assert.ErrorContains(t, err, c.path)
				require.NoError(t, os.Chmod(at, fi.Mode()))
				assertFiles(t, root, one)
				assert.Equal(t, one.id(), d.Manifest().Header().Commit)
				apply(t, d, two)
				assertFiles(t, root, two)
				assertNoLeftovers(t, root)
			})
		}
	}
}

// A file that became unreadable is reported as mode drift and hides no other drift.
func TestDriftOfUnreadableFile(t *testing.T) {
	unprivileged(t)
	root := seeded(t)
	d := open(t, root, Options{Around: quick})
	apply(t, d, text(map[string]string{"projects/p/a": "1", "projects/p/b": "1"}))
	require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/a"), 0))
	put(t, root, "projects/p/b", "22")
	got := drift(t, d, true)
	assert.Equal(t, []Drifted{{"projects/p/a", Chmodded}, {"projects/p/b", Modified}}, got.Paths)
}
