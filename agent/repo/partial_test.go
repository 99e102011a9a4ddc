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
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pace"
	"stoker.io/stoker/test/gitserver"
)

// blobOf is the id of a file in a commit.
func (s *site) blobOf(commit plan.ID, path string) plan.ID {
	s.t.Helper()
	return parseID(s.t, s.Git("rev-parse", commit.String()+":"+path))
}

func viewPath(i int) string {
	return "projects/p" + string(rune('0'+i%7)) + "/views/v000" + string(rune('0'+i)) + "/view.json"
}

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

func TestALostStoreTakesTheTreesAndThenTheBlobsThatAreAskedFor(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		first := g.commit("first", views(400))
		second := g.commit("second", editView(3, 1), editView(5, 1))
		s := openStore(t, t.TempDir())
		stats := fetchTrees(t, s, r, second)
		assert.Equal(t, FetchedTrees, stats.Kind)
		assert.Less(t, stats.Bytes, int64(801*80), "at most 80 bytes a file")
		assert.True(t, s.Partial())
		root, err := s.RootTree(second)
		require.NoError(t, err)
		assert.Equal(t, g.Git("rev-parse", second.String()+"^{tree}"), root.String())

		want := []plan.ID{g.blobOf(second, viewPath(3)), g.blobOf(second, viewPath(5)), g.blobOf(second, viewPath(3))}
		stats, err = s.FetchBlobs(t.Context(), append(want, blobID("not of this commit"), g.blobOf(first, viewPath(3))))
		require.NoError(t, err)
		assert.Equal(t, 2, stats.Objects, "each once, and nothing that the commit does not name")
		for i, id := range map[int]plan.ID{3: want[0], 5: want[1]} {
			text, err := read(t, s, id)
			require.NoError(t, err)
			assert.Equal(t, view(i, 1), text)
		}
		stats, err = s.FetchBlobs(t.Context(), want)
		require.NoError(t, err)
		assert.Equal(t, FetchStats{Kind: FetchNone}, stats, "what is there is not asked for")

		t.Run("the next commit is an increment of trees", func(t *testing.T) {
			third := g.commit("third", editView(7, 1))
			stats := fetchTrees(t, s, r, third)
			assert.Equal(t, FetchedTrees, stats.Kind)
			assert.Less(t, stats.Objects, 20)
			text, err := read(t, s, g.blobOf(third, viewPath(7)))
			require.NoError(t, err, "read without having asked: it comes alone")
			assert.Equal(t, view(7, 1), text)
			assert.True(t, s.Partial())
		})
		t.Run("a plain fetch makes the store whole", func(t *testing.T) {
			fourth := g.commit("fourth", editView(8, 1))
			_, stats := pull(t, s, r, "main")
			assert.Equal(t, FetchRenewed, stats.Kind)
			assert.False(t, s.Partial())
			requireSame(t, g, s, fourth)
			assert.Empty(t, packFiles(t, s, partialExt), "the marks go with their packs")
		})
		t.Run("and a whole store stays whole", func(t *testing.T) {
			fifth := g.commit("fifth", editView(9, 1))
			stats := fetchTrees(t, s, r, fifth)
			assert.Equal(t, FetchIncremental, stats.Kind)
			requireSame(t, g, s, fifth)
			stats, err := s.FetchBlobs(t.Context(), []plan.ID{blobID("x")})
			require.NoError(t, err)
			assert.Equal(t, FetchNone, stats.Kind)
		})
	})
}

// What is partial never counts as a commit that is there.
func TestPartialCommitsAreFetchedAgainByAPlainFetch(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commit := g.commit("first", views(20))
		dir := t.TempDir()
		s := openStore(t, dir)
		fetchTrees(t, s, r, commit)
		require.NoError(t, s.Close())

		s = openStore(t, dir)
		assert.True(t, s.Partial(), "also after a restart")
		_, err := read(t, s, g.blobOf(commit, viewPath(1)))
		assert.True(t, IsNotFound(err), "%v", err)
		stats := fetchTrees(t, s, r, commit)
		assert.Equal(t, FetchNone, stats.Kind, "the trees are there")
		_, err = read(t, s, g.blobOf(commit, viewPath(1)))
		require.NoError(t, err, "and the blobs can be had again")
		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchRenewed, stats.Kind)
		requireSame(t, g, s, commit)
		assert.False(t, s.Partial())
	})
}

func TestReadingManyBlobsThatAreMissingFetchesAll(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commit := g.commit("first", views(30))
		s := openStore(t, t.TempDir())
		fetchTrees(t, s, r, commit)
		lines := strings.Split(strings.TrimSuffix(g.Git("ls-tree", "-r", "-z", "--format=%(objectname)", commit.String()), "\x00"), "\x00")
		for i, l := range lines {
			_, err := s.WriteBlob(io.Discard, parseID(t, l))
			require.NoError(t, err)
			assert.Equal(t, i < maxSingle, s.Partial(), "%d", i)
		}
		requireSame(t, g, s, commit)
	})
	t.Run("a blob that the commit does not have is not asked for", func(t *testing.T) {
		g := newSite(t)
		commit := g.commit("first", views(3))
		s := openStore(t, t.TempDir())
		fetchTrees(t, s, g.remote(), commit)
		g.srv.Forget()
		_, err := read(t, s, blobID("somewhere else"))
		assert.True(t, IsNotFound(err), "%v", err)
		assert.Zero(t, g.served().Requests)
		assert.Equal(t, FetchNone, fetchTrees(t, s, g.remote(), commit).Kind, "and it is no damage")
	})
}

func TestServersThatCannotLeaveOutBlobsGiveEverything(t *testing.T) {
	for name, refused := range map[string][]gitserver.Feature{
		"no filter":  {gitserver.Filter},
		"no shallow": {gitserver.Shallow},
	} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			commit := g.commit("first", views(30))
			g.srv.Refuse(refused...)
			s := openStore(t, t.TempDir())
			stats := fetchTrees(t, s, g.remote(), commit)
			assert.Equal(t, FetchFirst, stats.Kind)
			assert.False(t, s.Partial())
			requireSame(t, g, s, commit)
		})
	}
	t.Run("blobs that are refused by their ids", func(t *testing.T) {
		g := newSite(t)
		commit := g.commit("first", views(30))
		s, r := openStore(t, t.TempDir()), g.remote()
		fetchTrees(t, s, r, commit)
		g.srv.Refuse(gitserver.SHAWants)
		stats, err := s.FetchBlobs(t.Context(), []plan.ID{g.blobOf(commit, viewPath(1))})
		require.NoError(t, err)
		assert.Equal(t, FetchRenewed, stats.Kind)
		requireSame(t, g, s, commit)
	})
	for _, code := range []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge} {
		t.Run(fmt.Sprintf("a list of blobs that is answered by HTTP %d", code), func(t *testing.T) {
			g := newSite(t)
			commit := g.commit("first", views(30))
			s, r := openStore(t, t.TempDir()), g.remote()
			fetchTrees(t, s, r, commit)
			g.srv.Inject(gitserver.Status(code).On(gitserver.UploadPack).Times(1))
			stats, err := s.FetchBlobs(t.Context(), []plan.ID{g.blobOf(commit, viewPath(1))})
			require.NoError(t, err)
			assert.Equal(t, FetchRenewed, stats.Kind)
			requireSame(t, g, s, commit)
		})
	}
	t.Run("over ssh, with git's own defaults, and with all that is allowed", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		commit := g.commit("first", views(30))
		s := openStore(t, t.TempDir())
		stats := fetchTrees(t, s, g.remote(), commit)
		assert.Equal(t, FetchFirst, stats.Kind)
		requireSame(t, g.site, s, commit)

		lean := newShellSite(t, gitserver.SSHOptions{Config: [][2]string{{"uploadpack.allowFilter", "true"}, {"uploadpack.allowAnySHA1InWant", "true"}}})
		commit = lean.commit("first", views(30))
		s = openStore(t, t.TempDir())
		assert.Equal(t, FetchedTrees, fetchTrees(t, s, lean.remote(), commit).Kind)
		_, err := s.FetchBlobs(t.Context(), []plan.ID{lean.blobOf(commit, viewPath(1))})
		require.NoError(t, err)
		assert.True(t, s.Partial())
	})
}

func TestABrokenRemoteBreaksNoPromiseForGood(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(30))
	s, r := openStore(t, t.TempDir()), g.remote()
	now := time.Now()
	s.now = func() time.Time { return now }
	fetchTrees(t, s, r, commit)
	id := g.blobOf(commit, viewPath(2))
	g.srv.Inject(gitserver.Status(500))
	_, err := s.FetchBlobs(t.Context(), []plan.ID{id})
	requireReason(t, v1alpha1.ReasonGitUnreachable, err)
	_, err = read(t, s, id)
	requireReason(t, v1alpha1.ReasonGitUnreachable, err)
	g.srv.Heal()
	now = now.Add(2 * time.Second)
	text, err := read(t, s, id)
	require.NoError(t, err)
	assert.Equal(t, view(2, 0), text)

	ctx, cancel := context.WithCancel(t.Context())
	lost := openStore(t, t.TempDir())
	_, err = lost.FetchTrees(ctx, r, commit, "main")
	require.NoError(t, err)
	cancel()
	_, err = read(t, lost, id)
	require.ErrorIs(t, err, context.Canceled)
}

// A look at drift reads one blob after the other, and to ask a server that is away may take a minute.
func TestAServerThatIsAwayIsNotAskedForEachBlob(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(30))
	s, r := openStore(t, t.TempDir()), g.remote()
	now := time.Now()
	s.now = func() time.Time { return now }
	fetchTrees(t, s, r, commit)
	asked := func() int {
		t.Helper()
		g.srv.Forget()
		for i := range maxSingle + 1 {
			_, err := read(t, s, g.blobOf(commit, viewPath(i)))
			requireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.ErrorContains(t, err, "503", "why is said to each")
		}
		return g.served().Requests
	}
	g.srv.Inject(gitserver.Status(http.StatusServiceUnavailable))
	once := asked()
	assert.Positive(t, once)
	assert.Zero(t, asked())
	for range 3 * maxSingle { // more and more rarely, and never not at all
		now = now.Add(pace.MaxRetry + pace.MaxRetry/10)
		assert.Equal(t, once, asked(), "one try, for one blob")
	}
	now = now.Add(time.Minute)
	assert.Zero(t, asked())

	g.srv.Heal()
	assert.Equal(t, FetchNone, fetchTrees(t, s, r, commit).Kind)
	text, err := read(t, s, g.blobOf(commit, viewPath(2)))
	require.NoError(t, err, "the next sync asks anew")
	assert.Equal(t, view(2, 0), text)
	assert.True(t, s.Partial())
}

func TestAServerThatSaysWhenToBeAskedIsAskedForNoBlobBefore(t *testing.T) {
	for asks, quiet := range map[time.Duration]time.Duration{10 * time.Minute: 10 * time.Minute, 24 * time.Hour: time.Hour} {
		g := newSite(t)
		commit := g.commit("first", views(3))
		s := openStore(t, t.TempDir())
		now := time.Now()
		s.now = func() time.Time { return now }
		fetchTrees(t, s, g.remote(), commit)
		g.srv.Inject(gitserver.Throttle(asks))
		_, err := read(t, s, g.blobOf(commit, viewPath(1)))
		require.Error(t, err)
		g.srv.Heal()
		g.srv.Forget()
		now = now.Add(quiet - time.Second)
		_, err = read(t, s, g.blobOf(commit, viewPath(1)))
		require.Error(t, err)
		assert.Zero(t, g.served().Requests, "%s", asks)
		now = now.Add(time.Second)
		text, err := read(t, s, g.blobOf(commit, viewPath(1)))
		require.NoError(t, err)
		assert.Equal(t, view(1, 0), text)
	}
}

func TestWhoCannotWaitIsTriedAgainAfterALongPause(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(3))
	s := openStore(t, t.TempDir())
	now := time.Now()
	s.now = func() time.Time { return now }
	r := g.remote()
	assert.False(t, s.Promises(r, commit))
	fetchTrees(t, s, r, commit)
	assert.True(t, s.Promises(r, commit))
	assert.False(t, s.Promises(g.remote(), commit), "another one")

	one, two := g.blobOf(commit, viewPath(1)), g.blobOf(commit, viewPath(2))
	g.srv.Inject(gitserver.Stall(0))
	ctx, end := context.WithCancelCause(t.Context())
	asks := make(chan struct{})
	go func() {
		defer close(asks)
		for g.srv.InFlight() == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		end(context.DeadlineExceeded)
	}()
	off := s.Hasten(ctx)
	_, err := read(t, s, one)
	requireReason(t, v1alpha1.ReasonGitTimeout, err)
	<-asks
	g.srv.Heal()
	now = now.Add(4 * time.Minute)
	g.srv.Forget()
	_, err = read(t, s, two)
	require.Error(t, err)
	now = now.Add(2 * time.Minute)
	_, err = read(t, s, two)
	requireReason(t, v1alpha1.ReasonGitTimeout, err)
	assert.Zero(t, g.served().Requests, "its time was over before")
	off()
	text, err := read(t, s, two)
	require.NoError(t, err)
	assert.Equal(t, view(2, 0), text)
}

func TestABlobThatIsTooLargeKeepsNoOtherFromBeingFetched(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(3), gitserver.Write("large", strings.Repeat("large", 2000)))
	s := openStoreWith(t, t.TempDir(), StoreOptions{Limits: Limits{InflatedBytes: 9000}})
	fetchTrees(t, s, g.remote(), commit)
	_, err := read(t, s, g.blobOf(commit, "large"))
	requireReason(t, v1alpha1.ReasonLimitExceeded, err)
	text, err := read(t, s, g.blobOf(commit, viewPath(1)))
	require.NoError(t, err)
	assert.Equal(t, view(1, 0), text)
}

// A mark without its pack is what a crash leaves; a pack without its mark cannot be, as the mark comes first.
func TestMarksOfPartialPacksSurviveAndAreClearedAway(t *testing.T) {
	g := newSite(t)
	commit := g.commit("first", views(5))
	dir := t.TempDir()
	s := openStore(t, dir)
	fetchTrees(t, s, g.remote(), commit)
	marks := packFiles(t, s, partialExt)
	require.Len(t, marks, 1)
	require.NoError(t, s.Close())
	orphan := strings.Replace(marks[0], "pack-", "pack-0", 1)
	require.NoError(t, os.WriteFile(orphan, nil, 0o600))
	s = openStore(t, dir)
	assert.Equal(t, marks, packFiles(t, s, partialExt))
	assert.True(t, s.Partial())
}
