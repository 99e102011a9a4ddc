package forgetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Env is a repository on a forge, with the branch main.
type Env struct {
	Forge forge.Forge
	// Push creates a branch with a new commit, and returns the commit.
	Push  func(branch string) string
	Merge func(number int64)
	// Status returns the status of a commit with a context, and how many have been set.
	Status func(commit, context string) (s forge.CommitStatus, set int)
}

// Env returns the environment of a fake.
func (f *Fake) Env(t testing.TB) Env {
	return Env{Forge: f.Forge(t, Token), Push: func(string) string { return Commit }, Merge: f.Merge, Status: f.Status}
}

// Suite tests a forge.Forge: it follows pull requests from their creation to their end, and sets the status of a commit.
func Suite(t *testing.T, e Env) {
	open := func(t *testing.T, branch string) forge.PullRequest {
		t.Helper()
		commit := e.Push(branch)
		d := forge.Draft{Branch: branch, Base: "main", Title: "title of " + branch, Body: "body", Labels: []string{"gateway-change"}}
		made, err := e.Forge.Create(t.Context(), d)
		require.NoError(t, err)
		assert.Positive(t, made.Number)
		list := find(t, e.Forge, branch)
		require.Len(t, list, 1)
		assert.Equal(t, commit[:12], fmt.Sprintf("%.12s", list[0].Commit), "Bitbucket returns only these digits")
		want := forge.PullRequest{
			Number: made.Number, URL: made.URL, State: forge.Open, Branch: branch, Commit: list[0].Commit, Base: "main", Title: d.Title, Body: d.Body,
		}
		assert.Equal(t, want, list[0])
		got, err := e.Forge.Get(t.Context(), made.Number)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		all, err := e.Forge.ByHead(t.Context(), branch, "")
		require.NoError(t, err)
		assert.Equal(t, list, all)
		assert.NotEmpty(t, made.URL)
		return list[0]
	}
	state := func(t *testing.T, branch string) forge.State {
		t.Helper()
		list := find(t, e.Forge, branch)
		require.NotEmpty(t, list)
		return list[0].State
	}
	t.Run("a branch has one open pull request", func(t *testing.T) {
		first := open(t, "gateway-changes/a")
		_, err := e.Forge.Create(t.Context(), forge.Draft{Branch: first.Branch, Base: "main", Title: "again"})
		require.ErrorIs(t, err, forge.ErrExists)
		second := open(t, "gateway-changes/b")
		list, err := e.Forge.Open(t.Context(), "main")
		require.NoError(t, err)
		require.Len(t, list, 2)
		assert.Equal(t, []int64{second.Number, first.Number}, []int64{list[0].Number, list[1].Number}, "newest first")
	})
	t.Run("a number that does not exist", func(t *testing.T) {
		_, err := e.Forge.Get(t.Context(), 1<<20)
		assert.Equal(t, v1alpha1.ReasonUnsupportedRepository, failure.Reason(err, ""), "%v", err)
	})
	t.Run("update", func(t *testing.T) {
		pr := open(t, "updated")
		require.NoError(t, e.Forge.Update(t.Context(), pr.Number, "new title", "new body"))
		now := find(t, e.Forge, "updated")[0]
		assert.Equal(t, "new title: new body", now.Title+": "+now.Body)
	})
	t.Run("close", func(t *testing.T) {
		pr := open(t, "closed")
		require.NoError(t, e.Forge.Close(t.Context(), pr.Number, "undone on the gateway"))
		assert.Equal(t, forge.Closed, state(t, "closed"))
		require.NoError(t, e.Forge.Close(t.Context(), pr.Number, ""), "a closed one is closed again")
	})
	t.Run("merge", func(t *testing.T) {
		pr := open(t, "merged")
		e.Merge(pr.Number)
		assert.Equal(t, forge.Merged, state(t, "merged"))
		require.NoError(t, e.Forge.Close(t.Context(), pr.Number, ""))
		assert.Equal(t, forge.Merged, state(t, "merged"), "closing changes nothing")
		list, err := e.Forge.Open(t.Context(), "main")
		require.NoError(t, err)
		for _, p := range list {
			assert.NotEqual(t, pr.Number, p.Number)
		}
	})
	t.Run("status of a commit", func(t *testing.T) {
		commit := e.Push("status")
		for i, state := range []forge.CommitState{forge.Pending, forge.Pending, forge.Failure, forge.Success} {
			t.Run(fmt.Sprint(i, " ", state), func(t *testing.T) {
				want := forge.CommitStatus{State: state, Context: "stoker/plant/line", Description: fmt.Sprint(i, " of 3 gateways"), URL: "https://stoker.example.com/"}
				require.NoError(t, e.Forge.SetStatus(t.Context(), commit, want))
				got, set := e.Status(commit, want.Context)
				if i == 1 { // GitLab keeps the first one
					want.Description = got.Description
				}
				assert.Equal(t, want, got)
				assert.Positive(t, set)
			})
		}
		require.NoError(t, e.Forge.SetStatus(t.Context(), commit, forge.CommitStatus{State: forge.Success, Context: strings.Repeat("stoker/", forge.MaxContext/7)}))
	})
	t.Run("open again after its end", func(t *testing.T) {
		pr := open(t, "again")
		require.NoError(t, e.Forge.Close(t.Context(), pr.Number, ""))
		_, err := e.Forge.Create(t.Context(), forge.Draft{Branch: "again", Base: "main", Title: "second"})
		require.NoError(t, err)
		list := find(t, e.Forge, "again")
		require.Len(t, list, 2)
		assert.Equal(t, []forge.State{forge.Open, forge.Closed}, []forge.State{list[0].State, list[1].State}, "newest first")
	})
}

func find(t *testing.T, f forge.Forge, branch string) []forge.PullRequest {
	t.Helper()
	list, err := f.ByHead(t.Context(), branch, "main")
	require.NoError(t, err)
	return list
}
