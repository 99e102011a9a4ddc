//go:build linux

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The gateway keeps replacing a file while the agent syncs it. Each version that the agent replaced must be in lost+found.
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
	enough := func() bool { return time.Since(begin) > race(2*time.Second) && saved > 0 }
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
	enough := func() bool { return time.Since(begin) > race(2*time.Second) && applied > 0 && refused > 0 }
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
