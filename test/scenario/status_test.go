package scenario

import (
	"bytes"
	"errors"
	"fmt"
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

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// stampedFiles is the number of files that every commit of the test below changes. Each file contains the
// number of the commit.
const stampedFiles = 25

func stamped(n int) []gitserver.Edit {
	var edits []gitserver.Edit
	for i := range stampedFiles {
		edits = append(edits, gitserver.Write(fmt.Sprintf("%sprojects/line/ignition/script-python/s%02d/code.py", inGit, i),
			strings.Repeat(fmt.Sprintf("stamp = %06d\n", n), 300)))
	}
	return edits
}

// INV5: The commit in /state is never ahead of the disk. While dozens of commits are delivered, no reader
// ever sees a partial or missing file.
func TestStatusNeverAheadOfDisk(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.repo.Commit("0", site(stamped(0)...)...)
	numbers := sync.Map{} // commit → number
	numbers.Store(p.repo.Head(), 0)
	p.start()
	p.synced(p.repo.Head())
	file := func(i int) string {
		return filepath.Join(p.data, fmt.Sprintf("projects/line/ignition/script-python/s%02d/code.py", i))
	}
	number := func(b []byte) (n int, whole bool) {
		line, _, _ := bytes.Cut(b, []byte("\n"))
		_, err := fmt.Sscanf(string(line), "stamp = %d", &n)
		return n, err == nil && bytes.Equal(b, bytes.Repeat(append(line, '\n'), 300))
	}

	var wg sync.WaitGroup
	var reads, looks atomic.Int64
	stop := make(chan struct{})
	running := func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	wg.Go(func() { // a gateway that reads a thousand files a second
		for i := 0; running(); i++ {
			b, err := os.ReadFile(file(i % stampedFiles))
			if !assert.NoError(t, err, "a file must never be missing") {
				return
			}
			_, whole := number(b)
			if !assert.True(t, whole, "a torn file: %q", b) {
				return
			}
			reads.Add(1)
			time.Sleep(time.Millisecond)
		}
	})
	wg.Go(func() { // a client that relies on the status
		for running() {
			before, ok := p.state()
			if !ok || before.Phase != "Synced" {
				continue
			}
			b, err := os.ReadFile(file(stampedFiles - 1))
			after, ok := p.state()
			if err != nil || !ok || after.Phase != "Synced" || after.Commit != before.Commit {
				continue
			}
			want, known := numbers.Load(before.Commit)
			got, _ := number(b)
			if known && !assert.GreaterOrEqual(t, got, want, "the status must not be ahead of the disk") {
				return
			}
			looks.Add(1)
		}
	})
	commits := 40
	if testing.Short() {
		commits = 16
	}
	for n := 1; n <= commits; n++ {
		commit := p.repo.Commit(fmt.Sprint(n), stamped(n)...)
		numbers.Store(commit, n)
		p.saveSpec() // poll now
		if n%4 == 0 {
			p.await("the commit", func(s state) bool { return s.Commit == commit && s.Phase == "Synced" })
		}
	}
	p.synced(p.repo.Head())
	close(stop)
	wg.Wait()
	assert.Greater(t, reads.Load(), int64(5*commits/2))
	assert.Greater(t, looks.Load(), int64(commits/2))
	p.stop()
	p.checkQuiet(p.repo.Head())
}

// F13: A full disk stops a sync without damage. The agent continues by itself once there is room.
func TestFullDiskRecovers(t *testing.T) {
	p := newPlant(t, withoutGateway, func(p *plant, _ *simulator.Options) {
		if err := syscall.Mount("tmpfs", p.data, "tmpfs", 0, "size=2m,nr_inodes=600"); errors.Is(err, syscall.EPERM) {
			p.t.Skip("mounting a small file system needs root")
		} else {
			require.NoError(p.t, err)
		}
		p.t.Cleanup(func() { assert.NoError(p.t, syscall.Unmount(p.data, syscall.MNT_DETACH)) })
	})
	good := p.repo.Commit("good", site()...)
	p.start()
	p.synced(good)

	filler := filepath.Join(p.data, "filler.tmp")
	fill := func(leave int) {
		t.Helper()
		var st syscall.Statfs_t
		require.NoError(t, syscall.Statfs(p.data, &st))
		free := int(st.Bavail)*int(st.Bsize) - leave
		require.NoError(t, os.WriteFile(filler, make([]byte, max(free, 0)), 0o644))
	}
	// sequence: each step fills the disk of the step before
	for i, leave := range []int{0, 8 << 10, 64 << 10, 256 << 10} {
		fill(leave)
		next := p.repo.Commit("large", gitserver.Write(inGit+viewPath, view(fmt.Sprint(i))),
			gitserver.Write(inGit+"projects/line/big.bin", strings.Repeat(fmt.Sprint(i), 600<<10)))
		p.saveSpec()
		s := p.reason("NoSpace")
		assert.Equal(t, good, s.Commit, "with %d bytes left", leave)
		p.checkFiles(good)
		require.NoError(t, os.Remove(filler))
		p.synced(next)
		p.check(next)
		good = p.repo.Commit("small again", gitserver.Delete(inGit+"projects/line/big.bin"))
		p.saveSpec()
		p.synced(good)
	}
	p.stop()
	p.checkQuiet(good)
}
