package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/test/gitserver"
)

// read returns the content of a blob.
func read(t testing.TB, s *Store, id plan.ID) (string, error) {
	t.Helper()
	var b bytes.Buffer
	_, err := s.WriteBlob(&b, id)
	return b.String(), err
}

func fetchTrees(t testing.TB, s *Store, r *Remote, commit plan.ID) FetchStats {
	t.Helper()
	stats, err := s.FetchTrees(t.Context(), r, commit, "refs/heads/main")
	require.NoError(t, err)
	return stats
}

// partial returns a store that has the trees of a commit and fetches its blobs as they are read.
func partial(t *testing.T, edits ...gitserver.Edit) (g *site, s *Store, r *Remote, commit plan.ID) {
	t.Helper()
	g = newSite(t)
	commit = g.Push("first", edits...)
	s, r = openStore(t, t.TempDir()), g.remote()
	fetchTrees(t, s, r, commit)
	return g, s, r, commit
}

func TestLostStoreFetchesRequestedBlobs(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		first := g.Push("first", repotest.Views(100))
		second := g.Push("second", repotest.EditView(3, 1), repotest.EditView(5, 1))
		s := openStore(t, t.TempDir())
		stats := fetchTrees(t, s, r, second)
		assert.Equal(t, FetchTreesOnly, stats.Kind)
		assert.Less(t, stats.Bytes, int64(201*80), "at most 80 bytes a file")
		assert.True(t, s.Partial())
		root, err := s.RootTree(second)
		require.NoError(t, err)
		assert.Equal(t, g.Git("rev-parse", second.String()+"^{tree}"), root.String())

		want := []plan.ID{g.blobOf(second, repotest.ViewPath(3)), g.blobOf(second, repotest.ViewPath(5)), g.blobOf(second, repotest.ViewPath(3))}
		stats, err = s.FetchBlobs(t.Context(), append(want, repotest.BlobID("not of this commit"), g.blobOf(first, repotest.ViewPath(3))))
		require.NoError(t, err)
		assert.Equal(t, 2, stats.Objects, "each blob once, and only blobs of the commit")
		for i, id := range map[int]plan.ID{3: want[0], 5: want[1]} {
			text, err := read(t, s, id)
			require.NoError(t, err)
			assert.Equal(t, repotest.View(i, 1), text)
		}
		stats, err = s.FetchBlobs(t.Context(), want)
		require.NoError(t, err)
		assert.Equal(t, FetchStats{Kind: FetchNone}, stats, "the store does not fetch blobs that it has")

		t.Run("the next commit: an incremental fetch of trees", func(t *testing.T) {
			third := g.Push("third", repotest.EditView(7, 1))
			stats := fetchTrees(t, s, r, third)
			assert.Equal(t, FetchTreesOnly, stats.Kind)
			assert.Less(t, stats.Objects, 20)
			text, err := read(t, s, g.blobOf(third, repotest.ViewPath(7)))
			require.NoError(t, err, "a read fetches a missing blob alone")
			assert.Equal(t, repotest.View(7, 1), text)
			assert.True(t, s.Partial())
		})
		t.Run("a plain fetch completes the store", func(t *testing.T) {
			fourth := g.Push("fourth", repotest.EditView(8, 1))
			_, stats := pull(t, s, r, "main")
			assert.Equal(t, FetchRenewed, stats.Kind)
			assert.False(t, s.Partial())
			repotest.RequireSame(t, g, s, fourth)
			assert.Empty(t, repotest.PackFiles(t, s, partialExt), "the marks are removed with their packs")
		})
		t.Run("a complete store stays complete", func(t *testing.T) {
			fifth := g.Push("fifth", repotest.EditView(9, 1))
			stats := fetchTrees(t, s, r, fifth)
			assert.Equal(t, FetchIncremental, stats.Kind)
			repotest.RequireSame(t, g, s, fifth)
			stats, err := s.FetchBlobs(t.Context(), []plan.ID{repotest.BlobID("x")})
			require.NoError(t, err)
			assert.Equal(t, FetchNone, stats.Kind)
		})
	})
}

// A partial commit never counts as available.
func TestFetchCompletesPartialCommits(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commit := g.Push("first", repotest.Views(20))
		dir := t.TempDir()
		s := openStore(t, dir)
		fetchTrees(t, s, r, commit)
		require.NoError(t, s.Close())

		s = openStore(t, dir)
		assert.True(t, s.Partial(), "the store is still partial after a restart")
		_, err := read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
		assert.True(t, store.IsNotFound(err), "%v", err)
		stats := fetchTrees(t, s, r, commit)
		assert.Equal(t, FetchNone, stats.Kind, "the store has the trees")
		_, err = read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
		require.NoError(t, err, "the store can fetch blobs again")
		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchRenewed, stats.Kind)
		repotest.RequireSame(t, g, s, commit)
		assert.False(t, s.Partial())
	})
}

func TestManyMissingBlobsFetchAll(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commit := g.Push("first", repotest.Views(30))
		s := openStore(t, t.TempDir())
		fetchTrees(t, s, r, commit)
		lines := strings.Split(strings.TrimSuffix(g.Git("ls-tree", "-r", "-z", "--format=%(objectname)", commit.String()), "\x00"), "\x00")
		for i, l := range lines {
			_, err := s.WriteBlob(io.Discard, repotest.ParseID(t, l))
			require.NoError(t, err)
			assert.Equal(t, i < maxSingle, s.Partial(), "%d", i)
		}
		repotest.RequireSame(t, g, s, commit)
	})
	t.Run("no request for a blob that is not in the commit", func(t *testing.T) {
		g, s, _, commit := partial(t, repotest.Views(3))
		g.Server.Forget()
		_, err := read(t, s, repotest.BlobID("of another commit"))
		assert.True(t, store.IsNotFound(err), "%v", err)
		assert.Zero(t, g.Served().Requests)
		assert.Equal(t, FetchNone, fetchTrees(t, s, g.remote(), commit).Kind, "a foreign blob is not damage")
	})
}

func TestFetchTreesFromLimitedServers(t *testing.T) {
	for name, refused := range map[string][]gitserver.Feature{
		"no filter":  {gitserver.Filter},
		"no shallow": {gitserver.Shallow},
	} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			commit := g.Push("first", repotest.Views(30))
			g.Server.Refuse(refused...)
			s := openStore(t, t.TempDir())
			stats := fetchTrees(t, s, g.remote(), commit)
			assert.Equal(t, FetchFirst, stats.Kind)
			assert.False(t, s.Partial())
			repotest.RequireSame(t, g, s, commit)
		})
	}
	t.Run("server that refuses ids of blobs", func(t *testing.T) {
		g, s, _, commit := partial(t, repotest.Views(30))
		g.Server.Refuse(gitserver.SHAWants)
		stats, err := s.FetchBlobs(t.Context(), []plan.ID{g.blobOf(commit, repotest.ViewPath(1))})
		require.NoError(t, err)
		assert.Equal(t, FetchRenewed, stats.Kind)
		repotest.RequireSame(t, g, s, commit)
	})
	for _, code := range []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge} {
		t.Run(fmt.Sprintf("HTTP %d for a list of blobs", code), func(t *testing.T) {
			g, s, _, commit := partial(t, repotest.Views(30))
			g.Server.Inject(gitserver.Status(code).On(gitserver.UploadPack).Times(1))
			stats, err := s.FetchBlobs(t.Context(), []plan.ID{g.blobOf(commit, repotest.ViewPath(1))})
			require.NoError(t, err)
			assert.Equal(t, FetchRenewed, stats.Kind)
			repotest.RequireSame(t, g, s, commit)
		})
	}
	t.Run("ssh, with git's defaults and with the options for blobs", func(t *testing.T) {
		g := repotest.NewShellSite(t, gitserver.SSHOptions{})
		commit := g.Push("first", repotest.Views(30))
		s := openStore(t, t.TempDir())
		stats := fetchTrees(t, s, shellRemote(t, g), commit)
		assert.Equal(t, FetchFirst, stats.Kind)
		repotest.RequireSame(t, g, s, commit)

		options := [][2]string{{"uploadpack.allowFilter", "true"}, {"uploadpack.allowAnySHA1InWant", "true"}}
		configured := repotest.NewShellSite(t, gitserver.SSHOptions{Config: options})
		commit = configured.Push("first", repotest.Views(30))
		s = openStore(t, t.TempDir())
		assert.Equal(t, FetchTreesOnly, fetchTrees(t, s, shellRemote(t, configured), commit).Kind)
		_, err := s.FetchBlobs(t.Context(), []plan.ID{blobOf(t, configured, commit, repotest.ViewPath(1))})
		require.NoError(t, err)
		assert.True(t, s.Partial())
	})
}

func TestBrokenRemoteIsRetried(t *testing.T) {
	g, s, r, commit := partial(t, repotest.Views(30))
	now := time.Now()
	s.now = func() time.Time { return now }
	id := g.blobOf(commit, repotest.ViewPath(2))
	g.Server.Inject(gitserver.Status(500))
	_, err := s.FetchBlobs(t.Context(), []plan.ID{id})
	repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	_, err = read(t, s, id)
	repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	g.Server.Heal()
	now = now.Add(2 * time.Second)
	text, err := read(t, s, id)
	require.NoError(t, err)
	assert.Equal(t, repotest.View(2, 0), text)

	ctx, cancel := context.WithCancel(t.Context())
	lost := openStore(t, t.TempDir())
	_, err = lost.FetchTrees(ctx, r, commit, "main")
	require.NoError(t, err)
	cancel()
	_, err = read(t, lost, id)
	require.ErrorIs(t, err, context.Canceled)
}

// A drift check reads one blob after another, and a request to an unavailable server may take a minute.
func TestUnreachableServerBlobRequests(t *testing.T) {
	g, s, r, commit := partial(t, repotest.Views(30))
	now := time.Now()
	s.now = func() time.Time { return now }
	asked := func() int {
		t.Helper()
		g.Server.Forget()
		for i := range maxSingle + 1 {
			_, err := read(t, s, repotest.BlobID(repotest.View(i, 0)))
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.ErrorContains(t, err, "503", "each error has the reason")
		}
		return g.Served().Requests
	}
	g.Server.Inject(gitserver.Status(http.StatusServiceUnavailable))
	once := asked()
	assert.Positive(t, once)
	assert.Zero(t, asked())
	for range 3 * maxSingle { // retries become rarer, but never stop
		now = now.Add(backoff.MaxRetry + backoff.MaxRetry/10)
		assert.Equal(t, once, asked(), "one request for one blob")
	}
	now = now.Add(time.Minute)
	assert.Zero(t, asked())

	g.Server.Heal()
	assert.Equal(t, FetchNone, fetchTrees(t, s, r, commit).Kind)
	text, err := read(t, s, g.blobOf(commit, repotest.ViewPath(2)))
	require.NoError(t, err, "the next sync fetches again")
	assert.Equal(t, repotest.View(2, 0), text)
	assert.True(t, s.Partial())
}

// The store waits as long as the server asks, but at most an hour.
func TestRetryAfterOfBlobs(t *testing.T) {
	for asks, quiet := range map[time.Duration]time.Duration{10 * time.Minute: 10 * time.Minute, 24 * time.Hour: time.Hour} {
		t.Run(asks.String(), func(t *testing.T) {
			g, s, _, commit := partial(t, repotest.Views(3))
			now := time.Now()
			s.now = func() time.Time { return now }
			g.Server.Inject(gitserver.Throttle(asks))
			_, err := read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
			require.Error(t, err)
			g.Server.Heal()
			g.Server.Forget()
			now = now.Add(quiet - time.Second)
			_, err = read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
			require.Error(t, err)
			assert.Zero(t, g.Served().Requests)
			now = now.Add(time.Second)
			text, err := read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
			require.NoError(t, err)
			assert.Equal(t, repotest.View(1, 0), text)
		})
	}
}

func TestLimitedFetchPauses(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(3))
	s := openStore(t, t.TempDir())
	now := time.Now()
	s.now = func() time.Time { return now }
	r := g.remote()
	assert.False(t, s.CanFetchBlobs(r, commit))
	fetchTrees(t, s, r, commit)
	assert.True(t, s.CanFetchBlobs(r, commit))
	assert.False(t, s.CanFetchBlobs(g.remote(), commit), "another remote")

	one, two := g.blobOf(commit, repotest.ViewPath(1)), g.blobOf(commit, repotest.ViewPath(2))
	g.Served() // no request is in progress
	g.Server.Inject(gitserver.Stall(0))
	ctx, end := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for g.Server.InFlight() == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		end(context.DeadlineExceeded)
	}()
	off := s.LimitFetches(ctx)
	_, err := read(t, s, one)
	repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
	<-ended
	g.Server.Heal()
	now = now.Add(4 * time.Minute) // within the pause, which is five minutes, give or take 10 %
	g.Server.Forget()
	_, err = read(t, s, two)
	require.Error(t, err)
	now = now.Add(2 * time.Minute)
	_, err = read(t, s, two)
	repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
	assert.Zero(t, g.Served().Requests, "no request after the deadline")
	off()
	text, err := read(t, s, two)
	require.NoError(t, err)
	assert.Equal(t, repotest.View(2, 0), text)
}

func TestTooLargeBlob(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(3), gitserver.Write("large", strings.Repeat("large", 2000)))
	s := openStoreWith(t, t.TempDir(), StoreOptions{Limits: Limits{InflatedBytes: 9000}})
	fetchTrees(t, s, g.remote(), commit)
	_, err := read(t, s, g.blobOf(commit, "large"))
	repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
	text, err := read(t, s, g.blobOf(commit, repotest.ViewPath(1)))
	require.NoError(t, err)
	assert.Equal(t, repotest.View(1, 0), text)
}

// A crash may leave a mark without its pack. A pack without its mark cannot exist, because the mark is written first.
func TestPartialPackMarks(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(5))
	dir := t.TempDir()
	s := openStore(t, dir)
	fetchTrees(t, s, g.remote(), commit)
	marks := repotest.PackFiles(t, s, partialExt)
	require.Len(t, marks, 1)
	require.NoError(t, s.Close())
	orphan := strings.Replace(marks[0], "pack-", "pack-0", 1)
	require.NoError(t, os.WriteFile(orphan, nil, 0o600))
	s = openStore(t, dir)
	assert.Equal(t, marks, repotest.PackFiles(t, s, partialExt))
	assert.True(t, s.Partial())
}
