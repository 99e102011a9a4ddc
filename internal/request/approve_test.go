package request

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
)

func TestApprove(t *testing.T) {
	waiting := v1alpha1.RolloutStatus{Commit: commitA, Stage: "prod", Step: 1, Steps: 2, Phase: v1alpha1.RolloutWaiting}
	with := func(change func(*v1alpha1.RolloutStatus)) *v1alpha1.RolloutStatus {
		r := waiting
		change(&r)
		return &r
	}
	for name, tt := range map[string]struct {
		rollout       *v1alpha1.RolloutStatus
		stage, commit string
		says          string
	}{
		"waiting stage":        {rollout: &waiting},
		"stage by name":        {rollout: &waiting, stage: "prod"},
		"short commit":         {rollout: &waiting, commit: "aaaaaaa"},
		"in advance":           {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase, r.Stage = v1alpha1.RolloutSoaking, "dev" }), stage: "prod"},
		"no rollout":           {says: "nothing waits for an approval: plant rolls out all gateways at once"},
		"nothing waits":        {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutSoaking }), says: "is Soaking; name a stage"},
		"unnamed last stage":   {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Stage = "" }), says: "nothing waits"},
		"done":                 {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutDone }), stage: "prod", says: "is done"},
		"aborted":              {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutAborted }), says: "stoker retry plant"},
		"another commit":       {rollout: &waiting, commit: commitB, says: "the rollout is of commit " + commitA + " and not of " + commitB},
		"no such stage":        {rollout: &waiting, stage: "test", says: `has no stage "test": its stages are dev, prod`},
		"status without stage": {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Commit = "x" }), says: "nothing waits"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant("main")
			gs.Status.Rollout = tt.rollout
			gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev"}, {Name: "prod", RequireApproval: true}}}
			stage, commit, err := stageToApprove(gs, tt.stage, tt.commit)
			if tt.says != "" {
				require.ErrorContains(t, err, tt.says)
				assert.ErrorAs(t, err, new(*InvalidError))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "prod@"+commitA, stage+"@"+commit)
		})
	}
}

func TestApproveWindow(t *testing.T) {
	behind := v1alpha1.DiscoveredGateway{Name: "line", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonMaintenanceWindow, SyncedCommit: commitB}
	synced := v1alpha1.DiscoveredGateway{Name: "area", SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: commitA}
	settings := behind // which changed
	settings.SyncedCommit = commitA
	target, windows := &v1alpha1.TargetStatus{Commit: commitA}, []v1alpha1.MaintenanceWindow{{Name: "nights"}}
	for name, tt := range map[string]struct {
		windows []v1alpha1.MaintenanceWindow
		target  *v1alpha1.TargetStatus
		rows    []v1alpha1.DiscoveredGateway
		commit  string
		says    string
	}{
		"gateway waits for its window":      {windows, target, []v1alpha1.DiscoveredGateway{synced, behind}, "", ""},
		"gateway waits with other settings": {windows, target, []v1alpha1.DiscoveredGateway{settings}, "", ""},
		"short commit":                      {windows, target, []v1alpha1.DiscoveredGateway{behind}, "aaaaaaa", ""},
		"no gateways yet":                   {windows, target, nil, "", ""},
		"all gateways run the commit":       {windows, target, []v1alpha1.DiscoveredGateway{synced}, "", "no gateway waits for a maintenance window: all run aaaaaaa"},
		"no windows":                        {nil, target, []v1alpha1.DiscoveredGateway{behind}, "", "plant has no maintenance windows"},
		"another commit":                    {windows, target, []v1alpha1.DiscoveredGateway{behind}, commitB, "the desired commit is " + commitA + " and not " + commitB},
		"no commit":                         {windows, nil, []v1alpha1.DiscoveredGateway{behind}, "", "the desired commit of "},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant("main")
			gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: tt.windows}
			gs.Status.Target, gs.Status.DiscoveredGateways = tt.target, tt.rows
			what, commit, err := windowToApprove(gs, tt.commit)
			if tt.says != "" {
				require.ErrorContains(t, err, tt.says)
				assert.ErrorAs(t, err, new(*InvalidError))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "window@"+commitA, what+"@"+commit)
		})
	}
}

// A stage that gets requireApproval while a gateway of it is behind can be approved, although the rollout is over.
func TestApproveAfterRollout(t *testing.T) {
	gs := plant("main")
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "prod", RequireApproval: true}}}
	gs.Status.Rollout = &v1alpha1.RolloutStatus{Commit: commitA, Step: 2, Steps: 2, Phase: v1alpha1.RolloutDone}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "line", SyncStatus: v1alpha1.GatewayHeld, Reason: v1alpha1.ReasonApprovalNeeded}}
	stage, commit, err := stageToApprove(gs, "prod", "")
	require.NoError(t, err)
	assert.Equal(t, "prod@"+commitA, stage+"@"+commit)
	_, _, err = stageToApprove(gs, "", "")
	assert.ErrorContains(t, err, "name a stage")
}

// Approvals that several users give at the same time all stay.
func TestAPIServerApprovals(t *testing.T) {
	client, namespace := served(t)
	syncs := kube.GatewaySyncs(client, namespace)
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"deployment":{"stages":[{"name":"a","gateways":["a"]},{"name":"b","gateways":["b"]},{"name":"c","gateways":["c"]}]}},
		"metadata":{"annotations":{"stoker.io/approved":"a@`+commitB+`,garbage"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"status":{"rollout":{"commit":"`+commitA+`","stage":"a","phase":"Waiting"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	var all sync.WaitGroup
	for _, stage := range []string{"", "b", "c"} { // setup: at the same time
		all.Go(func() {
			answer, err := NewSetter(client, nil).Approve(t.Context(), namespace, "plant", stage, commitA[:7])
			assert.NoError(t, err)
			assert.Equal(t, Set, answer.Outcome)
		})
	}
	all.Wait()
	gs, err := syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	for _, stage := range []string{"a", "b", "c"} {
		t.Run(stage, func(t *testing.T) { assert.True(t, annotation.Approved(gs, stage, commitA)) })
	}
	assert.True(t, annotation.Approved(gs, "a", commitB), "earlier approvals must stay")
	answer, err := NewSetter(client, nil).Approve(t.Context(), namespace, "plant", "b", "")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, gs.ResourceVersion, answer.GatewaySync().ResourceVersion, "a repeated approval must not write the object")
	_, err = NewSetter(client, nil).Approve(t.Context(), namespace, "plant", "b", "main")
	assert.ErrorContains(t, err, "is not a commit")
}
