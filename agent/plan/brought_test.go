package plan_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
)

// Files that the other node of a pair may have replicated are not edits: git replaces them with every conflict policy.
func TestWhatAnotherNodeBroughtGivesWayWhateverTheConflictPolicySays(t *testing.T) {
	const changed, drifted, missing, gone, foreign, mine = "projects/p/a", "projects/p/b", "projects/p/c", "projects/p/d", "projects/p/e", "config/mine"
	brought := func(in *plan.Input) {
		in.Brought = func(path string) bool { return strings.HasPrefix(path, "projects/") }
	}
	for name, policy := range map[string]plan.ConflictPolicy{"gitWins": plan.GitWins, "hold": plan.Hold, "gatewayWins": plan.GatewayWins} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.rules.Conflict = policy
			s.sync(text(changed, "1", drifted, "1", missing, "1", gone, "1", mine, "1"))
			s.disk.Write(changed, "pair")
			s.disk.Write(drifted, "pair")
			s.disk.Remove(missing)
			s.disk.Write(gone, "pair")
			s.disk.Write(foreign, "pair")
			s.disk.Write(mine, "person")
			c := s.sync(text(changed, "2", drifted, "1", missing, "2", foreign, "2", mine, "1"), brought)
			assert.True(t, c.Full)
			assert.Equal(t, map[string]plan.Op{
				changed: plan.Update, drifted: plan.Update, missing: plan.Create, gone: plan.Delete, foreign: plan.Update,
			}, done(c))
			assert.Equal(t, 1, c.Drifted, "a person's file is drift, as ever")
			assert.Equal(t, map[string]string{changed: "pair", drifted: "pair", gone: "pair", foreign: "pair"}, s.lost)
			s.has(mine, "person")
		})
	}
}
