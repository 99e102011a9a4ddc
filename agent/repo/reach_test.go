package repo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
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

func TestRefsFromOneAdvertisement(t *testing.T) {
	g := newSite(t)
	first := g.Push("first", repotest.Views(3))
	g.AnnotatedTag("v1", first.String())
	second := g.Push("second", repotest.EditView(1, 1))
	a := g.refsOf(g.remote())

	for name, want := range map[string]Resolution{
		"main": {"refs/heads/main", second}, "v1": {"refs/tags/v1", first}, first.String(): {Commit: first},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.Resolve(parseRef(t, name))
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	_, err := a.Resolve(parseRef(t, "nowhere"))
	assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
	all := map[string]plan.ID{}
	for name, id := range a.All() {
		all[name] = id
	}
	assert.Equal(t, map[string]plan.ID{"refs/heads/main": second, "refs/tags/v1": first}, all, "an annotated tag resolves to its commit")
	assert.Equal(t, 1, g.Served().Advertisements)
}

// Hosts serve commits of forks and of deleted branches by id. Only the history shows which refs contain a commit.
func TestReaches(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		old := g.Push("old", repotest.Views(3))
		tip := g.History(20, func(int) string { return repotest.ViewPath(1) }, func(i int) string { return repotest.View(1, i+2) })
		g.AnnotatedTag("v1", tip.String())
		g.Checkout("fork")
		foreign := repotest.ParseID(t, g.Orphan("foreign", gitserver.Write("a", "b")))
		g.Checkout("main")
		s := openStore(t, t.TempDir())
		a := g.refsOf(r)

		for name, c := range map[string]struct {
			names  []string
			commit plan.ID
			want   bool
		}{
			"tip of the branch":           {[]string{"refs/heads/main"}, tip, true},
			"old commit of the branch":    {[]string{"refs/heads/main"}, old, true},
			"old commit of a tag":         {[]string{"refs/tags/v1"}, old, true},
			"commit of a tag":             {[]string{"refs/tags/v1"}, tip, true},
			"commit of a third ref":       {[]string{"refs/heads/main", "refs/tags/v1"}, foreign, false},
			"commit of the second branch": {[]string{"refs/heads/main", "refs/heads/fork"}, foreign, true},
			"deleted branch":              {[]string{"refs/heads/gone"}, old, false},
			"no refs":                     {nil, old, false},
			"unknown commit":              {[]string{"refs/heads/main"}, repotest.ParseID(t, "1111111111111111111111111111111111111111"), false},
		} {
			t.Run(name, func(t *testing.T) {
				got, err := s.Reaches(t.Context(), r, a, c.names, c.commit)
				require.NoError(t, err)
				assert.Equal(t, c.want, got)
			})
		}
		assert.Empty(t, repotest.PackFiles(t, s, packExt), "the store keeps no pack of the search")
		assert.Empty(t, repotest.PackFiles(t, s, indexExt))
		pull(t, s, r, "main")
		repotest.RequireSame(t, g, s, tip)
	})
}

// unrelated is a source whose refs never reach the commit.
type unrelated struct {
	source
	searched int // tips of the last search
}

func (u *unrelated) Reaches(_ context.Context, _ *store.Transfer, tips []plan.ID) (bool, error) {
	u.searched = len(tips)
	return false, nil
}

// A false "no" would refuse a commit that a request may name.
func TestReachesTooManyRefs(t *testing.T) {
	commit := repotest.ParseID(t, strings.Repeat("f", 40))
	for name, c := range map[string]struct {
		refs, searched int
		over           bool
	}{
		"at the limit":   {maxReachTips, maxReachTips, false},
		"over the limit": {maxReachTips + 1, maxReachTips, true},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unrelated{}
			r := &Remote{source: u}
			a := &Refs{advertised: &wire.Refs{ByName: map[string]plan.ID{}}}
			var names []string
			for i := range c.refs { // setup: the refs
				names = append(names, fmt.Sprintf("refs/heads/b%06d", i))
				a.advertised.ByName[names[i]] = repotest.ParseID(t, fmt.Sprintf("%040x", i+1))
			}
			s := openStore(t, t.TempDir())
			for range 2 { // sequence: the second answer comes from the last search
				found, err := s.Reaches(t.Context(), r, a, names, commit)
				assert.False(t, found)
				assert.Equal(t, c.searched, u.searched)
				assert.Equal(t, c.over, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
				if !c.over {
					assert.NoError(t, err)
				}
			}
			a.advertised.ByName[names[len(names)-1]] = commit
			found, err := s.Reaches(t.Context(), r, a, names, commit)
			require.NoError(t, err)
			assert.True(t, found, "the tip of any ref is found")
		})
	}
}

// The gateway of a new lead may fetch for half an hour, while the whole fleet waits for this search.
func TestReachesDuringFetch(t *testing.T) {
	g := newSite(t)
	old := g.Push("old", repotest.Views(200))
	tip := g.Push("new", repotest.EditView(1, 1))
	fetcher, r := g.remote(), g.remote()
	s := openStore(t, t.TempDir())
	a := g.refsOf(r)
	g.Server.Inject(gitserver.Stall(2000).On(gitserver.UploadPack).Times(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fetched := make(chan error, 1)
	go func() {
		_, err := s.Fetch(ctx, fetcher, tip, "refs/heads/main")
		fetched <- err
	}()
	require.Eventually(t, func() bool { return len(repotest.PackFiles(t, s, packExt)) == 1 }, time.Minute, time.Millisecond)

	found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, old)
	require.NoError(t, err)
	assert.True(t, found)
	select {
	case err := <-fetched:
		t.Errorf("the search waited for the fetch: %v", err)
	default:
	}
	cancel()
	require.ErrorIs(t, <-fetched, context.Canceled)
	pull(t, s, r, "main")
	repotest.RequireSame(t, g, s, tip)
}

func TestWaitForFetchIsCanceled(t *testing.T) {
	g := newSite(t)
	old := g.Push("old", repotest.Views(3))
	commit := g.Push("new", repotest.EditView(1, 1))
	s, r := openStore(t, t.TempDir()), g.remote()
	a := g.refsOf(r)
	fetchTrees(t, s, r, commit)
	missing := g.blobOf(commit, repotest.ViewPath(1))
	require.NoError(t, s.fetching.lock(t.Context()))
	require.NoError(t, s.searching.lock(t.Context()))
	var ctx context.Context
	var cancel func()
	for name, do := range map[string]func() error{
		"Fetch":      func() error { _, err := s.Fetch(ctx, r, commit, ""); return err },
		"FetchTrees": func() error { _, err := s.FetchTrees(ctx, r, commit, ""); return err },
		"FetchBlobs": func() error { _, err := s.FetchBlobs(ctx, []plan.ID{missing}); return err },
		"Reaches":    func() error { _, err := s.Reaches(ctx, r, a, []string{"refs/heads/main"}, old); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel = context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, do(), context.Canceled, name)
			ctx, cancel = context.WithCancel(t.Context())
			end := time.AfterFunc(10*time.Millisecond, cancel)
			require.ErrorIs(t, do(), context.Canceled, "%s: while it waits", name)
			end.Stop()
			cancel()
		})
	}
	s.fetching.unlock()
	s.searching.unlock()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := s.Fetch(late, r, commit, "")
	repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
	pull(t, s, r, "main")
	repotest.RequireSame(t, g, s, commit)
}

func TestReachesFetchesCommitsOnly(t *testing.T) {
	g := newSite(t)
	old := g.Push("old", repotest.Views(700))
	g.Push("new", repotest.EditView(1, 1))
	r := g.remote()
	s := openStore(t, t.TempDir())
	a := g.refsOf(r)
	found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, old)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Less(t, g.Served().PackBytes, int64(2000))
	assert.Equal(t, 1, g.Served().Advertisements, "the search uses the earlier advertisement")
}

// Without filter support, as in git's default without uploadpack.allowFilter, the server sends the files with the history.
func TestReachesWithoutFilter(t *testing.T) {
	for name, refused := range map[string]gitserver.Feature{"shallow": gitserver.Filter, "whole history": gitserver.Filter | gitserver.Shallow} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			old := g.Push("old", repotest.Views(3))
			tip := g.History(70, func(int) string { return repotest.ViewPath(1) }, func(i int) string { return repotest.View(1, i+2) }) // more than the first depth
			g.Branch("fork", tip.String())
			g.Checkout("fork")
			foreign := g.Push("foreign", gitserver.Write("a", "b"))
			g.Server.Refuse(refused)
			r, s := g.remote(), openStore(t, t.TempDir())
			a := g.refsOf(r)
			for name, c := range map[string]struct {
				commit plan.ID
				want   bool
			}{"old commit": {old, true}, "commit of a fork": {foreign, false}} {
				t.Run(name, func(t *testing.T) {
					found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, c.commit)
					require.NoError(t, err)
					assert.Equal(t, c.want, found)
				})
			}
			assert.Empty(t, repotest.PackFiles(t, s, packExt), "the store keeps no pack of the search")
			before := g.Served().Requests
			for range 5 {
				found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, foreign)
				require.NoError(t, err)
				assert.False(t, found)
			}
			assert.Equal(t, before, g.Served().Requests, "a missing commit is searched once")
			s.now = func() time.Time { return time.Now().Add(missLifetime) }
			found, err := s.Reaches(t.Context(), r, a, []string{"refs/heads/main"}, foreign)
			require.NoError(t, err)
			assert.False(t, found)
			assert.Less(t, before, g.Served().Requests, "a missing commit is searched again later")
			g.Branch("main", foreign.String())
			found, err = s.Reaches(t.Context(), r, g.refsOf(r), []string{"refs/heads/main"}, foreign)
			require.NoError(t, err)
			assert.True(t, found, "a moved ref is searched again")
		})
	}
	t.Run("shallow clone in a directory, deepened after the search", func(t *testing.T) {
		g := newSite(t)
		old := g.Push("old", repotest.Views(3))
		g.Push("new", repotest.EditView(1, 1))
		clone := filepath.Join(t.TempDir(), "clone")
		repotest.RunGit(t, ".", nil, "clone", "--quiet", "--depth=1", "file://"+g.Dir, clone)
		r, s := newRemote(t, parseURL(t, clone), Auth{}, RemoteOptions{}), openStore(t, t.TempDir())
		reaches := func() bool {
			found, err := s.Reaches(t.Context(), r, g.refsOf(r), []string{"refs/heads/main"}, old)
			require.NoError(t, err)
			return found
		}
		require.False(t, reaches())
		repotest.RunGit(t, clone, nil, "fetch", "--quiet", "--unshallow")
		require.False(t, reaches(), "no ref moved")
		s.now = func() time.Time { return time.Now().Add(missLifetime) }
		assert.True(t, reaches())
	})
	t.Run("over SearchBytes", func(t *testing.T) {
		g := newSite(t)
		old := g.Push("old", repotest.Views(30))
		g.Push("new", repotest.EditView(1, 1))
		g.Server.Refuse(gitserver.Filter)
		r := newRemote(t, g.url(), Auth{}, RemoteOptions{SearchBytes: 1000})
		_, err := openStore(t, t.TempDir()).Reaches(t.Context(), r, g.refsOf(r), []string{"refs/heads/main"}, old)
		repotest.RequireReason(t, v1alpha1.ReasonRefNotAllowed, err)
		assert.ErrorContains(t, err, "uploadpack.allowFilter")
	})
}

// F11: the alternatives of a pattern multiply, so one with many of them would match forever. It counts as invalid, and admits no ref.
func TestPatternWithManyAlternatives(t *testing.T) {
	done := make(chan bool, 1)
	go func() {
		done <- matchesAny([]string{strings.Repeat("{a,a}", 51)}, "refs/heads/"+strings.Repeat("a", 52))
	}()
	select {
	case matches := <-done:
		assert.False(t, matches)
	case <-time.After(time.Minute):
		t.Fatal("the match did not end")
	}
	assert.True(t, matchesAny([]string{"release-{1,2}*"}, "refs/heads/release-2.1"))
}
