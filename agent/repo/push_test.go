package repo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

func TestRemotePush(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{Pushes: true})
	first := g.Push("first", repotest.Views(1))
	second := g.Push("second", repotest.EditView(0, 1))
	r := g.remote()
	require.NoError(t, r.Push(t.Context(), "refs/heads/a", plan.ID{}, first, nil))
	require.NoError(t, r.Push(t.Context(), "refs/heads/a", first, second, nil))
	err := r.Push(t.Context(), "refs/heads/a", plan.ID{}, first, nil)
	repotest.RequireReason(t, v1alpha1.ReasonPushRejected, err)
	assert.True(t, IsStale(err))
	refs, err := r.PushRefs(t.Context())
	require.NoError(t, err)
	found, err := refs.Resolve(parseRef(t, "a"))
	require.NoError(t, err)
	assert.Equal(t, Resolution{"refs/heads/a", second}, found)
}

func TestCommitText(t *testing.T) {
	for name, refused := range map[string][]gitserver.Feature{"without its tree": nil, "from a server without filters": {gitserver.Filter}} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			g.Server.Refuse(refused...)
			g.Push("first", repotest.Views(1))
			tip := g.Push("second\n\nName: value", repotest.EditView(0, 1))
			s := openStore(t, t.TempDir())
			text, err := s.CommitText(t.Context(), g.remote(), tip)
			require.NoError(t, err)
			assert.Equal(t, g.Git("cat-file", "commit", tip.String()), strings.TrimSpace(string(text)))
			assert.False(t, s.Has(tip), "the store has a commit without its tree")
			_, err = s.CommitText(t.Context(), g.remote(), plan.ID{1})
			require.Error(t, err)
		})
	}
}

func TestPushToDirectory(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(1))
	r := newRemote(t, parseURL(t, g.Dir), Auth{Token: repotest.Token("S3CR3T")}, RemoteOptions{})
	err := r.Push(t.Context(), "refs/heads/a", plan.ID{}, commit, nil)
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	assert.ErrorContains(t, err, "proposals need a git server")
	assert.False(t, IsStale(err))
	_, err = r.PushRefs(t.Context())
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	_, err = r.APIToken(t.Context())
	repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
}
