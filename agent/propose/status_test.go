package propose

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// TestPullRequestBody: lists of Azure DevOps have only the first 400 characters of a body, so it starts with the change.
func TestPullRequestBody(t *testing.T) {
	long := Identity{strings.Repeat("n", 63), strings.Repeat("g", 253)}
	c := &Changes{Files: []File{{Path: "projects/line/project.json", Op: Modified}}, Digest: strings.Repeat("0a", 32)}
	text := []rune(body(long, c, plan.ID{1}))
	assert.Greater(t, len(text), 400)
	assert.Equal(t, c.Digest, digestOf(string(text[:400])))
}

// TestInterruptedPush: after a restart, a push counts only if the record says that it succeeded. Otherwise a sync would replace the change.
func TestInterruptedPush(t *testing.T) {
	g := newPlant(t).gateway("a")
	r := record{Branch: g.settings.Branch, Digest: strings.Repeat("0a", 32), Pending: plan.ID{1}, Files: map[plan.Path]proposed{"a": {Path: "b"}}}
	require.NoError(t, r.save(g.notes))
	g.restart()
	shown := g.p.Recall(g.notes)
	require.NotNil(t, shown)
	assert.Equal(t, v1alpha1.ProposalPushing, shown.State)
	assert.False(t, g.p.Proposal().Safe())
}

// The spec may name a credential that the pod does not mount. The user learns that before the first change.
func TestProblemWithoutChanges(t *testing.T) {
	g := newPlant(t).gateway("a")
	problem := failure.New(v1alpha1.ReasonPodRestartNeeded, "restart the pod")
	g.settings.Problem = problem
	g.step()
	require.NotNil(t, g.last)
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
	assert.Empty(t, g.last.State, "there is no proposal")

	g.save(`{"v":2}`)
	g.settle(minute)
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
	assert.Empty(t, g.last.State, "nothing is pushed")
	assert.False(t, g.p.Proposal().Safe())
	assert.False(t, g.p.Proposal().Settled())

	g.settings.Problem = nil
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Empty(t, g.last.Reason)

	g.settings.Problem = problem
	g.step()
	assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "the pull request stays")
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
}

// A forge that does not know the repository for a moment delays a proposal by seconds, and one that never knows it gets few requests.
func TestPauseAfterUnknownRepository(t *testing.T) {
	err := failure.New(v1alpha1.ReasonUnsupportedRepository, "no such repository")
	assert.Less(t, pauseAfter(err, v1alpha1.ReasonUnsupportedRepository, 1), 5*time.Second)
	assert.Greater(t, pauseAfter(err, v1alpha1.ReasonUnsupportedRepository, 2), 45*time.Second)
	assert.Greater(t, pauseAfter(err, v1alpha1.ReasonAuthFailed, 1), 45*time.Second)
}
