package propose

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/api/v1alpha1"
)

// A pull request that no longer leads to the base branch ends, and the change is proposed again.
func TestMovedPullRequest(t *testing.T) {
	begin := func(t *testing.T) (*plant, *gateway) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.settle(minute)
		require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		return pl, g
	}
	for name, move := range map[string]func(pl *plant, g *gateway){
		"by a reviewer":               func(pl *plant, _ *gateway) { pl.hub.list[0].Base = "develop" },
		"by the spec":                 func(_ *plant, g *gateway) { g.settings.BaseBranch = "release" },
		"by the spec, and a new save": func(_ *plant, g *gateway) { g.settings.BaseBranch = "release"; g.save(`{"v":3}`) },
	} {
		t.Run(name, func(t *testing.T) {
			pl, g := begin(t)
			move(pl, g)
			g.settle(time.Hour)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			require.Len(t, pl.hub.list, 2)
			assert.Equal(t, forge.Closed, pl.hub.list[0].State)
			assert.Equal(t, g.settings.BaseBranch, pl.hub.list[1].Base)
			assert.Equal(t, pl.hub.list[1].URL, g.last.URL)
		})
	}
	t.Run("with a commit of the reviewer", func(t *testing.T) {
		pl, g := begin(t)
		pl.repo.Checkout("gateway-changes/plants/a")
		pl.repo.Commit("review")
		pl.hub.list[0].Base = "develop"
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalForeign, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("merged elsewhere", func(t *testing.T) {
		pl, g := begin(t)
		pl.hub.list[0].Base, pl.hub.list[0].State = "develop", forge.Merged
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		require.Len(t, pl.hub.open(), 1)
		assert.Equal(t, g.settings.BaseBranch, pl.hub.open()[0].Base)
	})
	t.Run("deleted", func(t *testing.T) {
		pl, g := begin(t)
		pl.hub.list = nil
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("shared", func(t *testing.T) {
		pl, _ := begin(t)
		b := pl.gateway("b")
		b.save(`{"v":2}`)
		b.settle(minute)
		pl.hub.list[0].Base = "develop"
		b.settle(time.Hour)
		require.Len(t, pl.hub.list, 2)
		assert.Equal(t, b.settings.Branch, pl.hub.list[1].Branch)
	})
}

// The text of a pull request does not prove that its branch has the change.
func TestCopiedText(t *testing.T) {
	pl := newPlant(t)
	a, b := pl.gateway("a"), pl.gateway("b")
	a.save(`{"v":2}`)
	a.settle(minute)
	pl.repo.Branch("copy", pl.repo.Tip("main"))
	pl.hub.list[0].Branch = "copy"
	b.save(`{"v":2}`)
	b.settle(minute)
	require.Len(t, pl.hub.open(), 2)
	assert.Equal(t, v1alpha1.ProposalOpen, b.state(), "%+v", b.last)
	assert.NotEmpty(t, pl.repo.Git("for-each-ref", "refs/heads/"+b.settings.Branch), "b keeps its branch")
}

// The server does not delete the branch of a gateway that follows the pull request of another one.
func TestBranchOfSharedPullRequestStays(t *testing.T) {
	pl := newPlant(t)
	a, b := pl.gateway("a"), pl.gateway("b")
	a.save(`{"v":2}`)
	a.settle(minute)
	pl.repo.Git("config", "receive.denyDeletes", "true")
	b.save(`{"v":2}`)
	b.settle(minute)
	require.NotEmpty(t, pl.repo.Git("for-each-ref", "refs/heads/"+b.settings.Branch))
	pl.repo.Git("config", "receive.denyDeletes", "false")
	b.save(`{"v":3}`)
	b.settle(time.Hour)
	assert.Equal(t, v1alpha1.ProposalOpen, b.state(), "%+v", b.last)
	assert.Len(t, pl.hub.open(), 2)
}
