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

// A gateway that replaces a file all the time: each version that it did not replace itself is live or in lost+found.
func TestNoVersionOfABusyGatewayIsLost(t *testing.T) {
	root := seededIn(t, memory(t))
	d := open(t, root, Options{around: quick, LostFoundMax: 1 << 30})
	path := filepath.Join(root, "projects/p/busy.json")
	apply(t, d, text(map[string]string{"projects/p/busy.json": "git 0"}))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wrote, replaced := map[string]bool{}, map[string]bool{}
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
	deadline := time.Now().Add(race(2 * time.Second))
	saved := 0
	for n := 1; time.Now().Before(deadline); n++ {
		want := text(map[string]string{"projects/p/busy.json": fmt.Sprintf("git %d", n)})
		s, err := d.Stage(t.Context(), changesFor(want), nil, want.source())
		require.NoError(t, err)
		res, err := s.Apply(t.Context(), head(want))
		require.NoError(t, err)
		saved += res.Saved
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
