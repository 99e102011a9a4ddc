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
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
)

// P9: a promotion that failed must not be delivered later. A request that no gateway has taken ends, and what it replaced is desired again.
func TestWithdraw(t *testing.T) {
	const first, second = "test.01hz0000000000000000000001.abcdef0", "test.01hz0000000000000000000002.abcdef0"
	start := func() *v1alpha1.GatewaySync {
		gs := &v1alpha1.GatewaySync{}
		gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/plant.git", "main"
		gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "line-0", SyncedCommit: commitA}, {Name: "line-1", SyncedCommit: commitA}}
		return gs
	}
	promote := func(t *testing.T, gs *v1alpha1.GatewaySync, id, ref, commit string) {
		t.Helper()
		require.Equal(t, Set, ask(t, gs, Request{Ref: ref, Commit: commit, By: "kargo", ID: id, For: "stage " + ref}).Outcome)
	}

	t.Run("the ref of the spec is desired again", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		at := gs.Annotations[v1alpha1.AnnotationRequestedAt]
		answer := ask(t, gs, Request{Withdraw: true, ID: first})
		assert.Equal(t, Set, answer.Outcome)
		assert.Equal(t, "main", answer.Ref)
		assert.NotEqual(t, at, gs.Annotations[v1alpha1.AnnotationRequestedAt], "the lead must handle it")
		assert.Equal(t, desiredref.Desired{Ref: "main", RequestedAt: answer.At}, desired(t, gs))
		again := ask(t, gs, Request{Withdraw: true, ID: first})
		assert.Equal(t, Ignored, again.Outcome)
		assert.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: first}).Outcome, "a repeat of the withdrawn request changes nothing")
	})
	t.Run("the request before is desired again", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitA)
		was := desired(t, gs)
		promote(t, gs, second, "v2", commitB)
		answer := ask(t, gs, Request{Withdraw: true, ID: second})
		assert.Equal(t, Set, answer.Outcome)
		was.RequestedAt = answer.At
		assert.Equal(t, was, desired(t, gs))
		assert.Equal(t, "stage v1", gs.Annotations[v1alpha1.AnnotationRequestedFor])
		assert.Equal(t, Ignored, ask(t, gs, Request{Withdraw: true, ID: second}).Outcome, "a repeated withdrawal ends no other request")
		assert.Equal(t, "v1", desired(t, gs).Ref)
		assert.Equal(t, Superseded, ask(t, gs, Request{Ref: "v0", By: "kargo", ID: "test.01hz0000000000000000000000.abcdef0"}).Outcome)
	})
	t.Run("a refused request before it never counted", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		d := desired(t, gs)
		gs.Status.Request = &v1alpha1.RequestStatus{Over: d.Over, Refused: d.Refuse(commitA)}
		promote(t, gs, second, "v2", commitB)
		assert.Equal(t, "main", ask(t, gs, Request{Withdraw: true, ID: second}).Ref)
	})
	t.Run("another id", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitA)
		promote(t, gs, second, "v2", commitB)
		assert.Equal(t, Ignored, ask(t, gs, Request{Withdraw: true, ID: "other"}).Outcome)
		assert.Equal(t, "v2", desired(t, gs).Ref)
	})
	t.Run("one after the other", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		promote(t, gs, second, "v2", commitB)
		assert.Equal(t, "v1", ask(t, gs, Request{Withdraw: true, ID: second}).Ref)
		assert.Equal(t, "main", ask(t, gs, Request{Withdraw: true, ID: first}).Ref)
		assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedBefore)
	})
	t.Run("a request that was replaced", func(t *testing.T) {
		gs := start()
		gs.Status.DiscoveredGateways = nil
		promote(t, gs, first, "v1", commitB)
		promote(t, gs, second, "v2", commitB)
		for _, ref := range []string{"v8", "v9"} { // sequence: a user replaces the promotion
			require.Equal(t, Set, ask(t, gs, Request{Ref: ref, By: "cli"}).Outcome)
		}
		was := desired(t, gs)
		answer := ask(t, gs, Request{Withdraw: true, ID: second})
		assert.Equal(t, []any{Set, "v9"}, []any{answer.Outcome, answer.Ref})
		assert.Equal(t, was, desired(t, gs), "the request in force stays as it is")
		assert.Equal(t, Ignored, ask(t, gs, Request{Withdraw: true, ID: second}).Outcome)
		for _, ref := range []string{"v8", "v1", "main"} { // sequence: from the newest to the spec
			assert.Equal(t, ref, ask(t, gs, Request{Withdraw: true}).Ref, "a withdrawn promotion must not come back")
		}
	})
	t.Run("a request that is too long to come back", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		gs.Annotations[v1alpha1.AnnotationRequestedFor] = strings.Repeat("<", 500) // six bytes each
		promote(t, gs, second, strings.Repeat("<", 250), commitB)
		promote(t, gs, "3", "v3", commitB)
		assert.Equal(t, "main", ask(t, gs, Request{Withdraw: true, ID: "3"}).Ref)
	})
	t.Run("a gateway took it", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		gs.Status.DiscoveredGateways[1].SyncedCommit = commitB
		answer := ask(t, gs, Request{Withdraw: true, ID: first})
		assert.Equal(t, Unchanged, answer.Outcome)
		assert.Contains(t, answer.Message, "1 of 2 gateways run "+commitB[:7]+" already, such as line-1")
		assert.Equal(t, "v1", desired(t, gs).Ref)
	})
	t.Run("a request without a commit", func(t *testing.T) {
		gs := start()
		require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "cli"}).Outcome)
		gs.Status.ObservedRequest = desiredref.Key(gs)
		gs.Status.Outcome, gs.Status.Target = &v1alpha1.Outcome{Ref: "v1", Commit: commitA}, &v1alpha1.TargetStatus{Ref: "v1", Commit: commitA}
		assert.Equal(t, Unchanged, ask(t, gs, Request{Withdraw: true}).Outcome)
		gs.Status.Outcome.Commit, gs.Status.Target.Commit = commitB, commitB
		assert.Equal(t, Set, ask(t, gs, Request{Withdraw: true}).Outcome)
		assert.Equal(t, "main", desired(t, gs).Ref)
	})
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		says   string // "" if the request ends
	}{
		"paused since":         {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationPaused] = "true" }, "2 of 2 gateways run bbbbbbb already, such as line-0"},
		"a poll requested":     {func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" }, "2 of 2 gateways run bbbbbbb already, such as line-0"},
		"during the poll":      {func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome.Commit, gs.Status.Outcome.Synced = "", 0 }, "2 of 2 gateways run bbbbbbb already"},
		"the spec has changed": {func(gs *v1alpha1.GatewaySync) { gs.Generation, gs.Status.Target.Commit = 2, "" }, "2 of 2 gateways run v1 already"},
		"rows left out": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.DiscoveredGateways, gs.Status.Outcome.Synced, gs.Status.Outcome.Total = start().Status.DiscoveredGateways, 1, 3
		}, "1 of 3 gateways run bbbbbbb already: "},
		"not resolved, and the ref ran before": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Outcome.Commit, gs.Status.Outcome.Synced, gs.Status.Target = "", 0, &v1alpha1.TargetStatus{Ref: "main", Commit: commitA}
		}, ""},
		"another target": {func(gs *v1alpha1.GatewaySync) {
			gs.Annotations[v1alpha1.AnnotationPaused], gs.Status.Target = "true", &v1alpha1.TargetStatus{Ref: "main", Commit: commitB}
			for i := range gs.Status.DiscoveredGateways {
				gs.Status.DiscoveredGateways[i].SyncedRef = "main"
			}
		}, ""},
	} {
		t.Run("a request without a commit, "+name, func(t *testing.T) {
			gs := start()
			require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "cli"}).Outcome)
			gs.Status.Target = &v1alpha1.TargetStatus{Ref: "v1", Commit: commitB}
			for i := range gs.Status.DiscoveredGateways {
				gs.Status.DiscoveredGateways[i].SyncedCommit, gs.Status.DiscoveredGateways[i].SyncedRef = commitB, "v1"
			}
			answered(gs, v1alpha1.Outcome{Ref: "v1", Commit: commitB, Total: 2, Synced: 2})
			c.change(gs)
			answer := ask(t, gs, Request{Withdraw: true})
			if c.says == "" {
				assert.Equal(t, Set, answer.Outcome)
				return
			}
			assert.Equal(t, Unchanged, answer.Outcome)
			assert.Contains(t, answer.Message, c.says)
		})
	}
	t.Run("a ConfigSync paused since", func(t *testing.T) {
		cs := &v1alpha1.ConfigSync{}
		cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: "https://git.example.com/plant.git"}
		cs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v1", v1alpha1.AnnotationPaused: "true"}
		cs.Status.SourceRef, cs.Status.SourceRevision = "v1", commitB
		_, answer, err := withdraw(cs, "", noon)
		require.NoError(t, err)
		assert.Equal(t, Set, answer.Outcome, "the commit is not applied yet")
		cs.Status.History = []v1alpha1.CommitRecord{{Ref: "v1", Commit: commitB}}
		_, answer, err = withdraw(cs, "", noon)
		require.NoError(t, err)
		assert.Equal(t, Unchanged, answer.Outcome)
		assert.Contains(t, answer.Message, "bbbbbbb is applied")
	})
	t.Run("the spec changed since the request before", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitA)
		gs.Spec.Git.Ref = "release"
		promote(t, gs, second, "v2", commitB)
		assert.Equal(t, "release", ask(t, gs, Request{Withdraw: true, ID: second}).Ref)
	})
	t.Run("another client replaced the request", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitA)
		promote(t, gs, second, "v2", commitB)
		gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v3" // as kubectl annotate does
		assert.Equal(t, "main", ask(t, gs, Request{Withdraw: true}).Ref, "v1 is what v2 replaced, not v3")
	})
	t.Run("a repeat after a lost answer", func(t *testing.T) {
		gs := start()
		promote(t, gs, first, "v1", commitB)
		promote(t, gs, second, "v2", commitB)
		r := Withdrawal("")
		assert.Equal(t, "v1", ask(t, gs, r).Ref)
		assert.Equal(t, Ignored, ask(t, gs, r).Outcome, "it ends no other request")
		assert.Equal(t, "v1", desired(t, gs).Ref)
		assert.Equal(t, "main", ask(t, gs, Withdrawal("")).Ref, "a user asks again")
	})
	t.Run("nothing is requested", func(t *testing.T) {
		assert.Equal(t, Ignored, ask(t, start(), Request{Withdraw: true}).Outcome)
	})
}

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
		"waiting stage unknown":      {rollout: &waiting, waits: "window", says: `has no stage "window"`},
		"forged list of approvals":   {rollout: &waiting, waits: "window@" + commitA + ",prod", says: "has no stage"},
		"rollout without a commit":   {rollout: with(func(r *v1alpha1.RolloutStatus) { r.Commit = "x" }), says: "nothing waits"},
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
