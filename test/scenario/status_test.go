package scenario

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
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

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
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

// INV5: The commit in /state is never ahead of the disk. While many commits are delivered, no reader
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

// These invariants hold whenever the agent reports Synced at a commit:
//
//	INV1  every owned file has the bytes of this commit, but the gateway may have signed a resource.json again
//	INV2  files that the agent does not own are unchanged
//	INV3  no journal, and nothing in staging, is left
//	INV4  each record of the manifest matches the commit and the file on the disk
//	INV5  the reported commit is never ahead of the disk: TestStatusNeverAheadOfDisk
//	INV6  another run writes, fetches and scans nothing

// check asserts INV1 to INV3. The agent may run.
func (p *plant) check(commit string) {
	p.t.Helper()
	p.checkFiles(commit)
	left, err := filepath.Glob(filepath.Join(p.data, ".stoker", "staging", "*"))
	require.NoError(p.t, err)
	assert.Empty(p.t, left, "INV3: staging must be empty")
}

// checkFiles is check for an agent that may be retrying and then has staged files.
func (p *plant) checkFiles(commit string) {
	p.t.Helper()
	want := p.desired(commit)
	for path, id := range want { // INV1: every file has the bytes of this commit
		got := p.read(path)
		if blobID(got) == id {
			continue
		}
		git := p.repo.Git("cat-file", "blob", id)
		if same, err := resource.SameButModification([]byte(got), []byte(git)); filepath.Base(path) == "resource.json" && err == nil && same {
			continue // the gateway re-signed it
		}
		assert.Failf(p.t, "INV1", "%s is not what %s has:\n%q", path, commit, got)
	}
	p.checkForeign()
	p.checkLoaded(want)
	assert.NoFileExists(p.t, filepath.Join(p.data, ".stoker", "journal"), "INV3")
}

// checkForeign asserts that files outside the agent's ownership are unchanged (INV2), including the
// gateway's own files.
func (p *plant) checkForeign() {
	p.t.Helper()
	for path, content := range p.unowned {
		assert.Equal(p.t, content, p.read(path), "INV2: %s", path)
	}
	if p.gw != nil {
		assert.NoError(p.t, p.gw.Canaries.Check(), "INV2: the agent must not change files of the gateway")
	}
}

// checkLoaded asserts that the gateway has loaded what is on the disk, which Synced promises in addition
// to the files.
func (p *plant) checkLoaded(want map[string]string) {
	p.t.Helper()
	if p.gw == nil {
		return
	}
	seen := 0
	for path := range want {
		dir, name := filepath.Split(path)
		if name == "resource.json" || name == "unary-resource.json" || name == "project.json" {
			continue
		}
		seen++
		loaded := p.gw.Data.Loaded(filepath.Clean(dir))
		assert.Equal(p.t, fmt.Sprintf("%x", sha256.Sum256([]byte(p.read(path)))), loaded[name], "the gateway has not loaded %s", path)
	}
	assert.Positive(p.t, seen)
}

// checkManifest asserts that the manifest lists exactly the files of the commit, with the hashes of the
// files on disk (INV4). The agent must not run.
func (p *plant) checkManifest(commit string) {
	p.t.Helper()
	want := p.desired(commit)
	d, err := disk.Open(p.data, disk.Options{AllowUnseeded: true})
	require.NoError(p.t, err)
	defer func() { assert.NoError(p.t, d.Close()) }()
	m := d.Manifest()
	assert.Equal(p.t, commit, m.Header().Commit.String())
	for o, err := range m.All("") {
		require.NoError(p.t, err)
		assert.Equal(p.t, want[o.Path], o.Want.String(), "INV4: %s", o.Path)
		// The gateway may have signed a resource.json since. The next drift check adopts it.
		if p.gw == nil || filepath.Base(o.Path) != "resource.json" {
			assert.Equal(p.t, blobID(p.read(o.Path)), o.Have.String(), "INV4: %s", o.Path)
		}
		delete(want, o.Path)
	}
	assert.Empty(p.t, want, "INV4: the manifest must list all files of the commit")
}

// checkQuiet runs the agent until it has adopted what the gateway signed, and once more for INV6. Then it asserts INV4. The agent must not
// run.
func (p *plant) checkQuiet(commit string) {
	p.t.Helper()
	if p.gw != nil { // a run compares the files and adopts a resource.json that the gateway signed
		code, out := p.once()
		require.Equal(p.t, 0, code, out)
	}
	p.checkSecondRun()
	p.checkManifest(commit)
}

// checkSecondRun runs the agent and asserts that it writes, fetches and scans nothing (INV6). The agent must not run.
func (p *plant) checkSecondRun(args ...string) {
	p.t.Helper()
	before, scans := p.fingerprint(), p.scans()
	p.git.Forget()
	code, out := p.once(args...)
	require.Equal(p.t, 0, code, out)
	assert.Equal(p.t, before, p.fingerprint(), "INV6: a second run must write nothing")
	assert.Zero(p.t, p.git.Stats().UploadPacks, "INV6: a second run must fetch nothing")
	assert.Equal(p.t, scans, p.scans(), "INV6: a second run must scan nothing")
}

// scans returns how many scans the gateway was asked for.
func (p *plant) scans() int {
	n := 0
	if p.gw != nil {
		for route, count := range p.gw.Requests.Counts() {
			if strings.HasPrefix(route, "POST ") && strings.Contains(route, "/scan/") {
				n += count
			}
		}
	}
	return n
}

// fingerprint returns size, time, mode and inode of every file in the data directory by path, except the lock, which each run of the agent
// opens.
func (p *plant) fingerprint() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	require.NoError(p.t, filepath.WalkDir(p.data, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(p.data, path)
		if rel == filepath.Join(".stoker", "lock") {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		out[rel] = fmt.Sprint(fi.Size(), fi.ModTime().UnixNano(), fi.Mode(), fi.Sys().(*syscall.Stat_t).Ino)
		return nil
	}))
	return out
}

// INV6 also sees a file that is replaced by one with the same size, time and mode.
func TestFingerprintOfReplacedFile(t *testing.T) {
	p := &plant{t: t, data: t.TempDir()}
	at := time.Now()
	for _, name := range []string{"a", "new"} { // setup: two files with one content
		require.NoError(t, os.WriteFile(filepath.Join(p.data, name), []byte("a"), 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(p.data, name), at, at))
	}
	before := p.fingerprint()["a"]
	require.NoError(t, os.Rename(filepath.Join(p.data, "new"), filepath.Join(p.data, "a")))
	assert.NotEqual(t, before, p.fingerprint()["a"])
}

// desired returns the files that the gateway must have at commit, computed by git: destination path → blob
// id.
func (p *plant) desired(commit string) map[string]string {
	p.t.Helper()
	out := map[string]string{}
	for _, m := range p.spec.mappings {
		for _, line := range strings.Split(p.repo.Git("ls-tree", "-r", "-z", commit, "--", m[0]+"/"), "\x00") {
			meta, path, ok := strings.Cut(line, "\t")
			if !ok {
				continue
			}
			out[m[1]+strings.TrimPrefix(path, m[0])] = strings.Fields(meta)[2]
		}
	}
	require.NotEmpty(p.t, out, "the test's commit has no files")
	return out
}

func blobID(content string) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00%s", len(content), content)
	return fmt.Sprintf("%x", h.Sum(nil))
}
