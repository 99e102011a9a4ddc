package request

import (
	"strings"
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
		waits         string // status.approval.stage
		stage, commit string
		says          string
	}{
		"waiting stage":              {rollout: &waiting, waits: "prod"},
		"stage by name":              {rollout: &waiting, waits: "prod", stage: "prod"},
		"short commit":               {rollout: &waiting, waits: "prod", commit: "aaaaaaa"},
		"in advance":                 {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase, r.Stage = v1alpha1.RolloutSoaking, "dev" }), stage: "prod"},
		"no rollout":                 {says: "nothing waits for an approval: plant rolls out all gateways at once"},
		"nothing waits":              {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutSoaking }), says: "is Soaking; name a stage"},
		"after the rollout":          {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutDone }), waits: "prod"},
		"after the rollout, by name": {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutDone }), waits: "dev", stage: "prod"},
		"done":                       {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutDone }), stage: "prod", says: "is done"},
		"aborted":                    {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Phase = v1alpha1.RolloutAborted }), says: "stoker retry plant"},
		"another commit":             {rollout: &waiting, waits: "prod", commit: commitB, says: "the rollout is of commit " + commitA + " and not of " + commitB},
		"no such stage":              {rollout: &waiting, waits: "prod", stage: "test", says: `has no stage "test": its stages are dev, prod`},
		"status without stage":       {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Commit = "x" }), says: "nothing waits"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant("main")
			if gs.Status.Rollout = tt.rollout; tt.waits != "" {
				gs.Status.Approval = &v1alpha1.Approval{Commit: commitA, Stage: tt.waits}
			}
			gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev"}, {Name: "prod", RequireApproval: true}}}
			stage, commit, err := stageToApprove(gs, tt.stage, tt.commit)
			if tt.says != "" {
				require.ErrorContains(t, err, tt.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "prod@"+commitA, stage+"@"+commit)
		})
	}
}

func TestApproveWindow(t *testing.T) {
	target, windows := &v1alpha1.TargetStatus{Commit: commitA}, []v1alpha1.MaintenanceWindow{{Name: "nights"}}
	waits := &v1alpha1.Approval{Commit: commitA, Window: true}
	for name, tt := range map[string]struct {
		windows  []v1alpha1.MaintenanceWindow
		target   *v1alpha1.TargetStatus
		approval *v1alpha1.Approval
		commit   string
		says     string
	}{
		"a gateway waits":    {windows, target, waits, "", ""},
		"short commit":       {windows, target, waits, "aaaaaaa", ""},
		"nothing waits":      {windows, target, nil, "", "no gateway waits for a maintenance window to get aaaaaaa"},
		"only a stage waits": {windows, target, &v1alpha1.Approval{Commit: commitA, Stage: "prod"}, "", "no gateway waits"},
		"an older target":    {windows, target, &v1alpha1.Approval{Commit: commitB, Window: true}, "", "no gateway waits"},
		"no windows":         {nil, target, waits, "", "plant has no maintenance windows"},
		"another commit":     {windows, target, waits, commitB, "the desired commit is " + commitA + " and not " + commitB},
		"no commit":          {windows, nil, waits, "", "the desired commit of "},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant("main")
			gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: tt.windows}
			gs.Status.Target, gs.Status.Approval = tt.target, tt.approval
			what, commit, err := windowToApprove(gs, tt.commit)
			if tt.says != "" {
				require.ErrorContains(t, err, tt.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "window@"+commitA, what+"@"+commit)
		})
	}
	t.Run("approved before", func(t *testing.T) {
		gs := plant("main")
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: windows}
		gs.Status.Target, gs.Annotations = target, map[string]string{v1alpha1.AnnotationApproved: "window@" + commitA}
		_, _, err := windowToApprove(gs, "")
		assert.NoError(t, err, "the answer is Unchanged")
	})
}

// Approvals that several users give at the same time all stay.
func TestAPIServerApprovals(t *testing.T) {
	client, namespace := served(t)
	syncs := kube.GatewaySyncs(client, namespace)
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"deployment":{"stages":[{"name":"a","gateways":["a"]},{"name":"b","gateways":["b"]},{"name":"c","gateways":["c"]}]}},
		"metadata":{"annotations":{"stoker.io/approved":"a@`+commitB+`,garbage"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"status":{"rollout":{"commit":"`+commitA+`","stage":"a","phase":"Waiting"},"approval":{"commit":"`+commitA+`","stage":"a"}}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	var all sync.WaitGroup
	for _, stage := range []string{"", "b", "c"} { // setup: at the same time
		all.Go(func() {
			answer, err := NewSetter(client, nil).Approve(t.Context(), namespace, "plant", stage, commitA[:7], "ann")
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
	assert.Equal(t, 3, strings.Count(annotation.Approvers(gs, commitA), " by ann"))
	assert.True(t, annotation.Approved(gs, "a", commitB), "earlier approvals must stay")
	answer, err := NewSetter(client, nil).Approve(t.Context(), namespace, "plant", "b", "", "ann")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, gs.ResourceVersion, answer.GatewaySync().ResourceVersion, "a repeated approval must not write the object")
	_, err = NewSetter(client, nil).Approve(t.Context(), namespace, "plant", "b", "main", "ann")
	assert.ErrorContains(t, err, "is not a commit")
}
