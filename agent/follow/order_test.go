package follow

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
)

// A dry run counts only for what it planned.
func TestPlannedDryRun(t *testing.T) {
	in := instruction{}
	in.Commit, in.Ref, in.Generation = plan.ID{1}, "main", 2
	settings, labels := effective.Settings{Profile: "a", DryRun: true}, map[string]string{"area": "1"}
	p := &planned{of: inputs{in: in, profile: settings, facts: plan.Facts{Labels: labels}}, message: "dry run"}
	settings.DryRun, settings.Paused = false, true // neither changes the plan
	require.NotNil(t, p.outcome(in, settings, labels))
	assert.Equal(t, v1alpha1.ReasonDryRun, p.outcome(in, settings, labels).Reason)
	assert.Nil(t, (*planned)(nil).outcome(in, settings, labels))
	for name, change := range map[string]func(*instruction, *effective.Settings, map[string]string){
		"another commit":      func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Commit = plan.ID{2} },
		"another ref":         func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Ref = "v1" },
		"another generation":  func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Generation = 3 },
		"a retry":             func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Retry = "now" },
		"another profile":     func(_ *instruction, s *effective.Settings, _ map[string]string) { s.Profile = "b" },
		"another label value": func(_ *instruction, _ *effective.Settings, l map[string]string) { l["area"] = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			in, settings, labels := in, settings, map[string]string{"area": "1"}
			change(&in, &settings, labels)
			assert.Nil(t, p.outcome(in, settings, labels))
		})
	}
}

// C19: if the stages cannot be computed, a SyncTarget without a rollout must not open them.
func TestOversizedOrderHoldsGateway(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		d := gs.Spec.Deployment
		for i := range 256 {
			d.SyncOrder = append(d.SyncOrder, v1alpha1.SyncOrderEntry{Name: fmt.Sprintf("gateway-%d", i)})
		}
		for i := range 40 {
			d.Stages[0].Gateways = append(d.Stages[0].Gateways, fmt.Sprintf("%s-%d-*", strings.Repeat("x", 240), i))
		}
	})
	w.lead(targetCommit(w.commit("two")), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Rollout = nil })
	s := p.await("a gateway that stays", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonProfilesInvalid })
	assert.Contains(t, s.Message, "spec.deployment")
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
}

// A dry run of the same target is recorded again if it was made with other labels.
func TestRecordDryRun(t *testing.T) {
	order := &loop.Order{}
	c := &currentOrder{order: order, dryRun: dryRun{on: true}, inputs: inputs{facts: plan.Facts{Labels: map[string]string{"area": "1"}}}}
	state := func(message string) loop.State {
		return loop.State{Of: order, Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, Message: message,
			Report: &sync.Report{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, DryRun: true}}
	}
	require.True(t, c.recordDryRun(state("1 to add")))
	assert.False(t, c.recordDryRun(state("1 to add")), "it is known already")
	c.inputs.facts.Labels = map[string]string{"area": "2"}
	assert.True(t, c.recordDryRun(state("2 to add")))
	assert.Equal(t, "2 to add", c.planned.message)
}
