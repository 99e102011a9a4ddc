package gitea

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/forge/forgetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/secret"
)

func (s *Server) forge(at, token string) forge.Forge {
	s.t.Helper()
	f, err := forge.New(giturl.Gitea, forge.Config{Repository: at, Token: func(context.Context) (secret.String, error) { return secret.New(token), nil }})
	require.NoError(s.t, err)
	return f
}

func TestSuite(t *testing.T) {
	s := Start(t)
	at, _ := s.Repository("suite", map[string]string{"a": "0"})
	n := 0
	forgetest.Suite(t, forgetest.Env{
		Forge: s.forge(at, s.Token("root", "write:repository", "write:issue")),
		Push: func(branch string) string {
			n++
			return s.Push(at, branch, "main", map[string]string{branch: fmt.Sprint(n)})
		},
		Merge: func(number int64) { s.Merge("suite", number, "merge") },
		Status: func(commit, context string) (forge.CommitStatus, int) {
			out := s.must(http.MethodGet, "/repos/root/suite/commits/"+commit+"/status", nil) // the last one of each context
			list, _ := out["statuses"].([]any)
			for _, one := range list {
				if m, _ := one.(map[string]any); m["context"] == context {
					return forge.CommitStatus{State: forge.CommitState(fmt.Sprint(m["status"])), Context: context, Description: fmt.Sprint(m["description"]), URL: fmt.Sprint(m["target_url"])}, len(list)
				}
			}
			return forge.CommitStatus{}, 0
		},
	})
}

func TestPullRequests(t *testing.T) {
	s := Start(t)
	at, _ := s.Repository("site", map[string]string{"a": "0"})
	s.must(http.MethodPost, "/repos/root/site/labels", map[string]any{"name": "gateway-change", "color": "#00aabb"})
	f := s.forge(at, s.Token("root", "write:repository", "write:issue"))
	open := func(branch string) forge.PullRequest {
		t.Helper()
		s.Push(at, branch, "main", map[string]string{branch: "x"})
		pr, err := f.Create(t.Context(), forge.Draft{Branch: branch, Base: "main", Title: "t " + branch, Body: "b"})
		require.NoError(t, err)
		return pr
	}
	find := func(branch string) forge.PullRequest {
		t.Helper()
		list, err := f.ByHead(t.Context(), branch, "main")
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0]
	}

	t.Run("create and adopt", func(t *testing.T) {
		commit := s.Push(at, "gateway-changes/a", "main", map[string]string{"a": "1"})
		d := forge.Draft{Branch: "gateway-changes/a", Base: "main", Title: "title", Body: "body", Labels: []string{"gateway-change", "unknown"}}
		pr, err := f.Create(t.Context(), d)
		require.NoError(t, err)
		assert.Equal(t, []string{`the repository has no label "unknown"`}, pr.Notes)
		_, err = f.Create(t.Context(), d)
		require.ErrorIs(t, err, forge.ErrExists)
		got := find("gateway-changes/a")
		assert.Equal(t, forge.PullRequest{
			Number: pr.Number, URL: pr.URL, State: forge.Open, Branch: "gateway-changes/a", Commit: commit, Base: "main", Title: "title", Body: "body",
		}, got)
		out := s.must(http.MethodGet, fmt.Sprintf("/repos/root/site/pulls/%d", pr.Number), nil)
		assert.Len(t, out["labels"], 1)
		res, err := http.Get(pr.URL)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	})
	t.Run("update", func(t *testing.T) {
		pr := open("update")
		require.NoError(t, f.Update(t.Context(), pr.Number, "other", "text"))
		got := find("update")
		assert.Equal(t, "other", got.Title)
		assert.Equal(t, "text", got.Body)
		commit := s.Push(at, "update", "update", map[string]string{"more": "x"})
		assert.Equal(t, commit, find("update").Commit)
	})
	for _, style := range []string{"merge", "squash", "rebase"} {
		t.Run(style, func(t *testing.T) {
			pr := open(style + "d")
			s.Merge("site", pr.Number, style)
			assert.Equal(t, forge.Merged, find(style+"d").State)
			require.NoError(t, f.Close(t.Context(), pr.Number, ""), "closing a merged pull request must succeed")
		})
	}
	t.Run("close", func(t *testing.T) {
		pr := open("closed")
		require.NoError(t, f.Close(t.Context(), pr.Number, "undone on the gateway"))
		require.NoError(t, f.Close(t.Context(), pr.Number, ""))
		got := find("closed")
		assert.Equal(t, forge.Closed, got.State)
		assert.Equal(t, "t closed", got.Title)
		list, err := f.Open(t.Context(), "main")
		require.NoError(t, err)
		for _, p := range list {
			assert.NotEqual(t, pr.Number, p.Number)
		}
	})
	t.Run("deleted branch", func(t *testing.T) {
		pr := open("gone")
		s.Merge("site", pr.Number, "merge")
		s.must(http.MethodDelete, "/repos/root/site/branches/gone", nil)
		assert.Equal(t, forge.Merged, find("gone").State)
	})
	t.Run("rights", func(t *testing.T) {
		s.User("reader")
		for name, tc := range map[string]struct {
			at, token string
			want      v1alpha1.Reason
		}{
			"wrong token":         {at, "0123456789012345678901234567890123456789", v1alpha1.ReasonAuthFailed},
			"token without scope": {at, s.Token("root", "read:repository"), v1alpha1.ReasonAuthFailed},
			"missing repository":  {strings.Replace(at, "site", "none", 1), s.Token("root", "write:repository", "write:issue"), v1alpha1.ReasonUnsupportedRepository},
		} {
			t.Run(name, func(t *testing.T) {
				_, err := s.forge(tc.at, tc.token).Create(t.Context(), forge.Draft{Branch: "update", Base: "main", Title: "t"})
				assert.Equal(t, tc.want, failure.Reason(err, ""), "%v", err)
				assert.NotContains(t, fmt.Sprint(err), tc.token)
			})
		}
	})
}
