package repo

import (
	"context"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

func (s *site) refsOf(r *Remote) *Refs {
	s.t.Helper()
	a, err := r.Refs(s.t.Context())
	require.NoError(s.t, err)
	return a
}

func TestOneAdvertisementAnswersForManyRefs(t *testing.T) {
	g := newSite(t)
	first := g.commit("first", views(3))
	g.AnnotatedTag("v1", first.String())
	second := g.commit("second", editView(1, 1))
	a := g.refsOf(g.remote())

	for name, want := range map[string]Resolution{
		"main": {"refs/heads/main", second}, "v1": {"refs/tags/v1", first}, first.String(): {Commit: first},
	} {
		got, err := a.Resolve(parseRef(t, name))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := a.Resolve(parseRef(t, "nowhere"))
	assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
	all := map[string]plan.ID{}
	for name, id := range a.All() {
		all[name] = id
	}
	assert.Equal(t, map[string]plan.ID{"refs/heads/main": second, "refs/tags/v1": first}, all, "an annotated tag stands for its commit")
	assert.Equal(t, 1, g.served().Advertisements)
}

// Hosts give commits of forks and of deleted branches by their id; only history says where they belong.
func TestACommitIsReachedFromTheRefsThatHoldItAndFromNoOther(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		old := g.commit("old", views(3))
		for i := range 20 {
			g.commit(fmt.Sprint(i), editView(1, i+2))
		}
		tip := parseID(t, g.Head())
		g.AnnotatedTag("v1", tip.String())
		g.Checkout("fork")
		foreign := parseID(t, g.Orphan("of nobody", gitserver.Write("a", "b")))
		g.Checkout("main")
		s := openStore(t, t.TempDir())
		a := g.refsOf(r)

		for _, c := range []struct {
			names  []string
			commit plan.ID
			want   bool
		}{
			{[]string{"refs/heads/main"}, tip, true},
			{[]string{"refs/heads/main"}, old, true},
			{[]string{"refs/tags/v1"}, old, true},
			{[]string{"refs/tags/v1"}, tip, true},
			{[]string{"refs/heads/main", "refs/tags/v1"}, foreign, false},
			{[]string{"refs/heads/main", "refs/heads/fork"}, foreign, true},
			{[]string{"refs/heads/gone"}, old, false},
			{nil, old, false},
			{[]string{"refs/heads/main"}, parseID(t, "1111111111111111111111111111111111111111"), false},
		} {
			got, err := s.Reaches(t.Context(), r, a, c.names, c.commit)
			require.NoError(t, err)
			assert.Equal(t, c.want, got, "%s from %v", c.commit, c.names)
		}
		assert.Empty(t, packFiles(t, s, packExt), "what was looked through is gone")
		assert.Empty(t, packFiles(t, s, indexExt))
		pull(t, s, r, "main")
		requireSame(t, g, s, tip)
	})
}

// A new lead's own gateway may fetch for half an hour, and the whole fleet waits for what is found out here.
func TestACommitIsLookedForBesideAFetchThatTakesItsTime(t *testing.T) {
	g := newSite(t)
	old := g.commit("old", views(200))
	tip := g.commit("new", editView(1, 1))
	fetcher, r := g.remote(), g.remote()
	s := openStore(t, t.TempDir())
	a := g.refsOf(r)
	g.srv.Inject(gitserver.Stall(2000).On(gitserver.UploadPack).Times(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fetched := make(chan error, 1)
	go func() {
		_, err := s.Fetch(ctx, fetcher, tip, "refs/heads/main")
		fetched <- err
	}()
	require.Eventually(t, func() bool { return len(packFiles(t, s, packExt)) == 1 }, time.Minute, time.Millisecond)

	found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, old)
	require.NoError(t, err)
	assert.True(t, found)
	select {
	case err := <-fetched:
		t.Errorf("it waited for the fetch: %v", err)
	default:
	}
	cancel()
	require.ErrorIs(t, <-fetched, context.Canceled)
	pull(t, s, r, "main")
	requireSame(t, g, s, tip)
}

func TestNobodyWaitsForAnothersTurnLongerThanHeWantsTo(t *testing.T) {
	g := newSite(t)
	old := g.commit("old", views(3))
	commit := g.commit("new", editView(1, 1))
	s, r := openStore(t, t.TempDir()), g.remote()
	a := g.refsOf(r)
	fetchTrees(t, s, r, commit)
	missing := g.blobOf(commit, viewPath(1))
	require.NoError(t, s.fetching.take(t.Context()))
	require.NoError(t, s.looking.take(t.Context()))
	var ctx context.Context
	var cancel func()
	for name, do := range map[string]func() error{
		"Fetch":      func() error { _, err := s.Fetch(ctx, r, commit, ""); return err },
		"FetchTrees": func() error { _, err := s.FetchTrees(ctx, r, commit, ""); return err },
		"FetchBlobs": func() error { _, err := s.FetchBlobs(ctx, []plan.ID{missing}); return err },
		"Reaches":    func() error { _, err := s.Reaches(ctx, r, a, []string{"refs/heads/main"}, old); return err },
	} {
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, do(), context.Canceled, name)
		ctx, cancel = context.WithCancel(t.Context())
		end := time.AfterFunc(10*time.Millisecond, cancel)
		require.ErrorIs(t, do(), context.Canceled, "%s: while it waits", name)
		end.Stop()
		cancel()
	}
	s.fetching.give()
	s.looking.give()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := s.Fetch(late, r, commit, "")
	requireReason(t, v1alpha1.ReasonGitTimeout, err)
	pull(t, s, r, "main")
	requireSame(t, g, s, commit)
}

// What is looked through lies there while a fetch may clear away the packs of before.
func TestAFetchLeavesWhatIsBeingLookedThrough(t *testing.T) {
	g := newSite(t)
	g.commit("first", views(3))
	dir := t.TempDir()
	s := openStore(t, dir)
	root, err := s.openRoot()
	require.NoError(t, err)
	f, name, err := temporary(root, packDir, packExt)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	pull(t, s, g.remote(), "main")
	_, err = root.Stat(name)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	openStore(t, dir)
	_, err = root.Stat(name)
	require.ErrorIs(t, err, fs.ErrNotExist, "the next start clears it away")
	require.NoError(t, root.Close())
}

func TestReachingBringsCommitsAndNoFiles(t *testing.T) {
	g := newSite(t)
	old := g.commit("old", views(700))
	g.commit("new", editView(1, 1))
	r := g.remote()
	s := openStore(t, t.TempDir())
	a := g.refsOf(r)
	found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, old)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Less(t, g.served().PackBytes, int64(2000))
	assert.Equal(t, 1, g.served().Advertisements, "the one that was asked for before counts")
}

// A server that does not leave out files, as git's own without uploadpack.allowFilter, sends them with the history.
func TestReachesWithoutFilter(t *testing.T) {
	for name, refused := range map[string]gitserver.Feature{"shallow": gitserver.Filter, "whole history": gitserver.Filter | gitserver.Shallow} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			old := g.commit("old", views(3))
			tip := g.history(70, func(int) string { return viewPath(1) }, func(i int) string { return view(1, i+2) }) // more than the first depth
			g.Branch("fork", tip.String())
			g.Checkout("fork")
			foreign := g.commit("of nobody", gitserver.Write("a", "b"))
			g.srv.Refuse(refused)
			r, s := g.remote(), openStore(t, t.TempDir())
			a := g.refsOf(r)
			for _, c := range []struct {
				commit plan.ID
				want   bool
			}{{old, true}, {foreign, false}} {
				found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, c.commit)
				require.NoError(t, err)
				assert.Equal(t, c.want, found)
			}
			assert.Empty(t, packFiles(t, s, packExt), "what was looked through is gone")
			before := g.served().Requests
			for range 5 {
				found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, foreign)
				require.NoError(t, err)
				assert.False(t, found)
			}
			assert.Equal(t, before, g.served().Requests, "a commit that is not there is looked for once")
			g.Branch("main", foreign.String())
			found, err := s.Reaches(t.Context(), r, g.refsOf(r), []string{"refs/heads/main"}, foreign)
			require.NoError(t, err)
			assert.True(t, found, "until a ref moves")
		})
	}
	t.Run("more than is looked through", func(t *testing.T) {
		g := newSite(t)
		old := g.commit("old", views(30))
		g.commit("new", editView(1, 1))
		g.srv.Refuse(gitserver.Filter)
		r := newRemote(t, g.url(), Auth{}, RemoteOptions{SearchBytes: 1000})
		_, err := openStore(t, t.TempDir()).Reaches(t.Context(), r, g.refsOf(r), []string{"refs/heads/main"}, old)
		requireReason(t, v1alpha1.ReasonRefNotAllowed, err)
		assert.ErrorContains(t, err, "uploadpack.allowFilter")
	})
}
