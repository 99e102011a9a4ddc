package repo_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/ociregistry"
)

// The message says whether all tags were compared.
func TestRegistrySearch(t *testing.T) {
	for tags, says := range map[int]string{1: "no tag of ", 1001: "none of the 1000 tags of "} {
		t.Run(fmt.Sprint(tags), func(t *testing.T) {
			server := ociregistry.Start(t)
			digest := server.Push("", ociregistry.Files(t, line), nil)
			for i := range tags { // setup: the tags
				server.Tag(fmt.Sprintf("1.%04d", i), digest)
			}
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
			_, err := a.store.Fetch(t.Context(), a.remote, plan.ID{1}, "")
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
			assert.ErrorContains(t, err, says)
		})
	}
}

// A registry that limits the rate of requests does not make the search say that no tag has the commit.
func TestRegistrySearchThrottled(t *testing.T) {
	server := ociregistry.Start(t)
	server.Push("1", ociregistry.Files(t, line), nil)
	server.Push("2", []byte("no archive"), nil)
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		throttled := strings.HasSuffix(r.URL.Path, "/manifests/1")
		if throttled {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		return throttled
	}
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	_, err := a.store.Fetch(t.Context(), a.remote, plan.ID{1}, "")
	assert.True(t, failure.Is(err, v1alpha1.ReasonGitThrottled), err)
}

// Close leaves no connection open.
func TestRegistryClose(t *testing.T) {
	server := ociregistry.New(t)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; state == http.StateClosed {
			delete(open, c)
		}
	}
	server.Start()
	server.Push("main", ociregistry.Files(t, line), nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	_, err := a.resolve("main")
	require.NoError(t, err)
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(open) }
	assert.Positive(t, count())
	require.NoError(t, a.remote.Close())
	assert.Eventually(t, func() bool { return count() == 0 }, 5*time.Second, 10*time.Millisecond)
}

// A follower knows the commit from the lead, and needs one download.
func TestRegistryFollower(t *testing.T) {
	server := ociregistry.Start(t)
	server.Push("main", ociregistry.Files(t, line), nil)
	lead := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	at, err := lead.resolve("main")
	require.NoError(t, err)
	layers := func() (n int) {
		for _, r := range server.Requests() {
			if strings.Contains(r, "/blobs/") {
				n++
			}
		}
		return n
	}
	layers()
	t.Run("the tag has the commit", func(t *testing.T) {
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
		require.NoError(t, err)
		assert.Equal(t, 1, layers())
		assert.True(t, a.store.Has(at.Commit))
		again, err := a.resolve("main")
		require.NoError(t, err)
		assert.Equal(t, at, again)
		assert.Zero(t, layers())
	})
	t.Run("the tag has moved", func(t *testing.T) {
		server.Push("old", ociregistry.Files(t, line), nil)
		server.Push("main", ociregistry.Files(t, map[string]string{"a": "b"}), nil)
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
		require.NoError(t, err)
		assert.True(t, a.store.Has(at.Commit))
		assert.Equal(t, 3, layers(), "of main, of old to find its commit, and to import it")
	})
	t.Run("a refused artifact", func(t *testing.T) {
		server.Push("main", []byte("no archive"), nil)
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		for range 2 {
			_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, "refs/tags/main")
			assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), err)
		}
		assert.Equal(t, 2, layers())
	})
}
