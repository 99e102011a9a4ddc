package ui

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

func TestCommitLink(t *testing.T) {
	full := strings.Repeat("ab", 20)
	for name, c := range map[string]struct{ repo, outcome, shown, want string }{
		"github":       {"git@github.com:plants/line.git", full, full[:7], "https://github.com/plants/line/commit/" + full},
		"unknown host": {"https://git.example.com/plants/line", full, full[:7], ""},
		"hostile":      {"javascript://github.com/%0aalert(1)/x", full, full[:7], ""},
		"older status": {"git@github.com:plants/line.git", full, "1234567", ""},
		"no commit":    {"git@github.com:plants/line.git", full, "", ""},
		"not a commit": {"git@github.com:plants/line.git", "../../x", "../../x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{Status: v1alpha1.GatewaySyncStatus{Outcome: &v1alpha1.Outcome{Commit: c.outcome}}}
			gs.Spec.Git.Repo = c.repo
			assert.Equal(t, commit{ID: c.shown, Link: c.want}, fleet{gs: gs, Commit: c.shown}.Desired())
		})
	}
	gs := &v1alpha1.GatewaySync{Status: v1alpha1.GatewaySyncStatus{
		Target: &v1alpha1.TargetStatus{Commit: full, Subject: "Fill tank 4"}, History: []v1alpha1.CommitRecord{{Commit: "other", Subject: "Fill\x1b tank 3"}},
	}}
	assert.Equal(t, "Fill tank 4", fleet{gs: gs}.newCommit(full).Subject)
	assert.NotContains(t, fleet{gs: gs}.newCommit("other").Subject, "\x1b")
	assert.Empty(t, fleet{}.Desired())
	assert.Empty(t, fleet{}.compare(plan.ID{1}, plan.ID{2}))
}
