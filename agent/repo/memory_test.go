//go:build linux && !race

package repo

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
)

const (
	childURL  = "STOKER_TEST_REPO_URL"
	childDir  = "STOKER_TEST_REPO_DIR"
	childBlob = "STOKER_TEST_REPO_BLOB"
)

// TestFetchInChildProcess is the child process of the memory tests: it syncs main and reads one blob.
func TestFetchInChildProcess(t *testing.T) {
	if os.Getenv(childURL) == "" {
		t.Skip("runs as a child of the memory tests")
	}
	s := openStore(t, os.Getenv(childDir))
	pull(t, s, newRemote(t, parseURL(t, os.Getenv(childURL)), Auth{}, RemoteOptions{}), "main")
	if id := os.Getenv(childBlob); id != "" {
		size, err := strconv.ParseInt(strings.Split(id, ":")[1], 10, 64)
		require.NoError(t, err)
		sum := sha1.New()
		fmt.Fprintf(sum, "blob %d\x00", size)
		written, err := s.WriteBlob(sum, repotest.ParseID(t, id[:40]))
		require.NoError(t, err)
		require.Equal(t, size, written)
		require.Equal(t, id[:40], hex.EncodeToString(sum.Sum(nil)))
	}
	status, err := os.ReadFile("/proc/self/status") // rusage would return the peak of the forking parent
	require.NoError(t, err)
	fmt.Println(string(status))
}

// peakMemory runs a sync in a child process and returns its peak resident memory in MiB, including code and mapped files.
func peakMemory(t *testing.T, u, dir, blob string) int64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFetchInChildProcess$")
	cmd.Env = append(os.Environ(), childURL+"="+u, childDir+"="+dir, childBlob+"="+blob)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, peak, ok := strings.Cut(string(out), "VmHWM:")
	require.True(t, ok, "%s", out)
	kib, err := strconv.ParseInt(strings.Fields(peak)[0], 10, 64)
	require.NoError(t, err)
	return kib >> 10
}

// F11: memory does not grow with the size of a blob, whether it is whole or a delta.
func TestMemoryIgnoresBlobSize(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	const size = 48 << 20
	g := newSite(t)
	small := t.TempDir()
	g.Push("small", repotest.Views(10))
	floor := peakMemory(t, g.Server.URL("site.git"), small, "")
	bound := floor + 20 // MiB over a repository of a few kilobytes

	big := filepath.Join(t.TempDir(), "big.bin")
	content := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(content)
	hash := func() string {
		require.NoError(t, os.WriteFile(big, content, 0o600))
		return string(repotest.RunGit(t, g.Dir, nil, "hash-object", "-w", big)[:40])
	}
	addBig := func(blob string) plan.ID {
		tree := repotest.RunGit(t, g.Dir, []byte("100644 blob "+blob+"\tbig.bin\n"), "mktree")
		return repotest.ParseID(t, g.CommitTree("big", string(tree[:40])))
	}
	first := hash()
	addBig(first)
	dir := t.TempDir()
	id := func(blob string) string { return fmt.Sprintf("%s:%d", blob, len(content)) }
	got := peakMemory(t, g.Server.URL("site.git"), dir, id(first))
	assert.Less(t, got, bound, "a whole blob of 48 MiB")

	content = append(content[:size/2], append([]byte("something new"), content[size/2:]...)...)
	second := hash()
	addBig(second)
	repotest.RunGit(t, g.Dir, nil, "-c", "core.bigFileThreshold=1g", "-c", "pack.threads=1", "repack", "-a", "-d", "-q", "-f", "--window=2")
	g.Server.Forget()
	increment := peakMemory(t, g.Server.URL("site.git"), dir, id(second))
	assert.Less(t, g.Served().PackBytes, int64(size/10), "the blob arrives as a delta")
	assert.Less(t, increment, bound, "a delta of 48 MiB")
	chained := peakMemory(t, g.Server.URL("site.git"), t.TempDir(), id(second))
	assert.Less(t, chained, bound, "a first fetch of the delta")
	t.Logf("peak resident memory in MiB: small repository %d, whole blob %d, delta %d, first fetch %d", floor, got, increment, chained)
}

func TestStoreSizeAfterThousandCommits(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a thousand commits")
	}
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commits := 1000
		if !r.URL().Local() {
			commits = 110 // over HTTP, each fetch costs a git process
		}
		g.Push("first", repotest.Views(40))
		s := openStore(t, t.TempDir())
		pull(t, s, r, "main")
		first := packBytes(t, s)
		last := g.History(commits, func(i int) string { return fmt.Sprintf("projects/p%d/views/v%04d/view.json", i%7, i%40) },
			func(i int) string { return repotest.View(i%40, i+1) })
		ids := strings.Fields(g.Git("rev-list", "--reverse", last.String()))[1:]
		require.Len(t, ids, commits)
		kinds := map[FetchKind]int{}
		var largest int64
		for _, id := range ids {
			stats, err := s.Fetch(t.Context(), r, repotest.ParseID(t, id), "main")
			require.NoError(t, err)
			kinds[stats.Kind]++
			largest = max(largest, packBytes(t, s))
		}
		// Each fetch adds a pack, and a store with more than 50 packs is renewed.
		assert.Equal(t, map[FetchKind]int{FetchRenewed: commits / 51, FetchIncremental: commits - commits/51}, kinds)
		assert.Less(t, largest, first+51*8_000, "an increment has less than 8,000 bytes")
		repotest.RequireSame(t, g, s, last)
	})
}
