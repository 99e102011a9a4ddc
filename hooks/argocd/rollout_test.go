//go:build !race

package argocd

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// A sync wave of Argo CD waits during a rollout and its approvals, because the health is Progressing or Suspended. It fails when a stage
// fails.
func TestRolloutHealth(t *testing.T) {
	script := load(t, "health.lua")
	for reason, c := range map[v1alpha1.Reason]struct {
		phase v1alpha1.OutcomePhase
		want  string
	}{
		v1alpha1.ReasonProgressing:       {v1alpha1.OutcomeProgressing, "Progressing"},
		v1alpha1.ReasonRolloutSoaking:    {v1alpha1.OutcomeProgressing, "Progressing"},
		v1alpha1.ReasonApprovalNeeded:    {v1alpha1.OutcomeHeld, "Suspended"},
		v1alpha1.ReasonCanaryStageFailed: {v1alpha1.OutcomeFailed, "Degraded"},
	} {
		t.Run(string(reason), func(t *testing.T) {
			s := newScene(t)
			o := s.GatewaySync.Status.Outcome
			o.Phase, o.Reason, o.Message = c.phase, reason, "stage prod: 1 of 2"
			h := script.health(t, object(t, s.GatewaySync))
			assert.Equal(t, c.want, h.Status)
			assert.Contains(t, h.Message, "stage prod: 1 of 2")
			if reason != v1alpha1.ReasonProgressing {
				assert.Contains(t, h.Message, string(reason)+": ")
			}
		})
	}
}
