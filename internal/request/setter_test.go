package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// served creates the GatewaySync plant on an API server, and returns a client and the namespace.
func served(t *testing.T) (dynamic.Interface, string) {
	t.Helper()
	return servedBy(t, kubetest.Objects(t))
}

func servedBy(t *testing.T, cluster *kubetest.Cluster) (dynamic.Interface, string) {
	t.Helper()
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant, annotations: {note: theirs}}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`)
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	return client, namespace
}

func TestAPIServerRequestFieldManager(t *testing.T) {
	client, namespace := servedBy(t, kubetest.Control(t))
	s := NewSetter(client, nil)
	answer, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "cli", ID: "a"})
	require.NoError(t, err)
	require.Equal(t, Set, answer.Outcome)
	gs := answer.GatewaySync()
	assert.Equal(t, "v2", desired(t, gs).Ref)
	assert.Equal(t, "theirs", gs.Annotations["note"])
	assert.EqualValues(t, 1, gs.Generation, "the request must not write the spec")
	var managers []string
	for _, m := range gs.ManagedFields {
		managers = append(managers, m.Manager)
	}
	assert.ElementsMatch(t, []string{"kubetest", FieldManager}, managers)

	version := gs.ResourceVersion
	answer, err = s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "cli", ID: "a"})
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, version, answer.GatewaySync().ResourceVersion, "a repeated request must not write the object")
}

func TestAPIServerPauseAndResume(t *testing.T) {
	client, namespace := served(t)
	s := NewSetter(client, nil)
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		pause  bool
		want   Outcome
		paused bool
	}{{false, Unchanged, false}, {true, Set, true}, {true, Unchanged, true}, {false, Set, false}, {false, Unchanged, false}} {
		answer, err := s.Pause(t.Context(), namespace, "plant", step.pause)
		require.NoError(t, err)
		assert.Equal(t, step.want, answer.Outcome)
		assert.Equal(t, step.paused, answer.GatewaySync().Paused())
	}
	_, err := s.Pause(t.Context(), namespace, "nobody", true)
	assert.True(t, apierrors.IsNotFound(err))
}

// Above 2,000 gateways, the status leaves out rows, those of healthy gateways first.
func TestRequestsOfGatewaysWithoutRow(t *testing.T) {
	client, namespace := served(t)
	syncs := kube.GatewaySyncs(client, namespace)
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"bidirectional":{"enabled":true}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s := NewSetter(client, nil)
	propose := func(gateway string) error { _, err := s.Propose(t.Context(), namespace, "plant", gateway); return err }
	restore := func(snapshot string) error {
		_, err := s.Restore(t.Context(), namespace, "plant", snapshot)
		return err
	}
	// sequence: the fleet grows
	for _, c := range []struct {
		total int
		known bool
	}{{1, false}, {2, true}} {
		_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, fmt.Appendf(nil, `{"status":{"outcome":{"phase":"Progressing","total":%d},"discoveredGateways":[{"name":"line-0"}]}}`, c.total),
			metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		assert.NoError(t, propose("line-0"))
		assert.NoError(t, restore("line-0-20260212-102000"))
		assert.Equal(t, c.known, propose("line-1") == nil)
		assert.Equal(t, c.known, restore("line-1-20260212-102000") == nil)
		assert.ErrorContains(t, propose(""), "has no gateway")
		assert.ErrorContains(t, propose("line 1"), "has no gateway")
		assert.ErrorContains(t, restore("line-1"), "is not a snapshot")
	}
}

type deciding struct {
	decide func(*v1alpha1.GatewaySync) (Request, string, error)
}

func (d *deciding) Decide(o v1alpha1.Requestable) (Request, string, error) {
	return d.decide(o.(*v1alpha1.GatewaySync))
}

// A team recreates the GatewaySync during a request. A sender authorized for the old object may not know the secret of the new
// one.
func TestAPIServerRequestForReplacedObject(t *testing.T) {
	client, namespace := served(t)
	syncs := client.Resource(kube.GatewaySync.Resource()).Namespace(namespace)
	first, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	recreate := func(*v1alpha1.GatewaySync) (Request, string, error) {
		if now, err := syncs.Get(t.Context(), "plant", metav1.GetOptions{}); err != nil || now.GetUID() != first.GetUID() {
			return Request{Ref: "v2", By: "generic"}, "", err
		}
		next := first.DeepCopy()
		next.SetUID("")
		next.SetResourceVersion("")
		if err := syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}); err != nil {
			return Request{}, "", err
		}
		_, err := syncs.Create(t.Context(), next, metav1.CreateOptions{})
		return Request{Ref: "v2", By: "generic"}, "", err
	}
	s := NewSetter(client, nil)
	// sequence: the first request replaces the object for the others
	for i, r := range []Request{
		{By: "generic", Decider: &deciding{recreate}},      // replaced during the write
		{Ref: "v2", By: "generic", UID: first.GetUID()},    // replaced before
		{By: "generic", ID: "poll-1", UID: first.GetUID()}, // a request without a ref is refused as well
	} {
		_, err := s.Ask(t.Context(), namespace, "plant", r)
		assert.ErrorIs(t, err, ErrReplaced, i)
		assert.True(t, apierrors.IsNotFound(err), "%d: %v", i, err)
	}
	gs, err := kube.GatewaySyncs(client, namespace).Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.NotEqual(t, first.GetUID(), gs.UID)
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedRef)
	answer, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v2", By: "generic", UID: gs.UID})
	require.NoError(t, err)
	assert.Equal(t, Set, answer.Outcome)
}

// Many promotions arrive in any order while a lead writes the status all the time. The newest promotion must win.
func TestAPIServerNewestPromotionWins(t *testing.T) {
	client, namespace := served(t)
	syncs := kube.GatewaySyncs(client, namespace)
	ctx, stop := context.WithCancel(t.Context())
	var lead, setters sync.WaitGroup
	lead.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			patch := fmt.Appendf(nil, `{"status":{"gatewaysReady":"%d/9"}}`, i%9)
			_, _ = syncs.Patch(ctx, "plant", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "stoker-lead"}, "status") // ends with ctx
		}
	})
	const promotions = 8
	outcomes := make([]Outcome, promotions)
	for i := range promotions {
		setters.Go(func() {
			id := fmt.Sprintf("test.01hz%022d.abcdef0", i)
			for range 20 { // a sender retries
				answer, err := NewSetter(client, nil).Ask(ctx, namespace, "plant", Request{Ref: fmt.Sprintf("v%d", i), By: "kargo", ID: id})
				if err == nil {
					outcomes[i] = answer.Outcome
					return
				}
				assert.True(t, apierrors.IsConflict(err), "%v", err)
			}
		})
	}
	setters.Wait()
	stop()
	lead.Wait()
	gs, err := syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("v%d", promotions-1), desired(t, gs).Ref)
	assert.Equal(t, Set, outcomes[promotions-1])
	for i, o := range outcomes {
		assert.Contains(t, []Outcome{Set, Superseded}, o, "promotion %d", i)
	}
}

// failing returns a plant whose branch is at commit B, which failed, with A as the last good commit.
func failing() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commitB}
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA}
	gs.Status.History = []v1alpha1.CommitRecord{*gs.Status.LastGood, {Ref: "v0", Commit: "aaaaaaa0" + commitA[8:]}}
	gs.Status.Rollback = &v1alpha1.Rollback{Commit: commitA, Unless: commitB}
	return answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: "main", Commit: commitB})
}

func annotate(gs *v1alpha1.GatewaySync, name, value string) {
	gs.Annotations = map[string]string{name: value}
}

func TestRollbackReadsStatus(t *testing.T) {
	r, _, err := rollback(failing(), "", noon)
	require.NoError(t, err)
	assert.Equal(t, Request{Ref: commitA, Unless: commitB}, r)

	t.Run("to an earlier commit", func(t *testing.T) {
		r, _, err := rollback(failing(), "aaaaaaa0", noon)
		require.NoError(t, err)
		assert.Equal(t, Request{Ref: "aaaaaaa0" + commitA[8:], Unless: commitB}, r)
	})
	t.Run("from a request", func(t *testing.T) {
		gs := failing()
		gs.Status.Rollback.Unless = ""
		r, _, err := rollback(gs, "", noon)
		require.NoError(t, err)
		assert.Equal(t, Request{Ref: commitA}, r)
	})
}

func TestNothingToRollBack(t *testing.T) {
	for name, c := range map[string]struct {
		to     string
		change func(*v1alpha1.GatewaySync)
	}{
		"no commit to return to":        {"", func(gs *v1alpha1.GatewaySync) { gs.Status.Rollback.Commit = "" }},
		"desired commit":                {"", func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome.Commit = commitA }},
		"desired ref in capitals":       {"", func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome.Ref = strings.ToUpper(commitA) }},
		"commit of the ref of the spec": {commitA, func(gs *v1alpha1.GatewaySync) { gs.Status.Rollback.Unless = commitA }},
	} {
		t.Run(name, func(t *testing.T) {
			gs := failing()
			c.change(gs)
			_, answer, err := rollback(gs, c.to, noon)
			require.NoError(t, err)
			assert.Equal(t, Unchanged, answer.Outcome)
			assert.Contains(t, answer.Message, "nothing to roll back")
		})
	}
}

func TestRollbackWaitsForLead(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		says   string
	}{
		"another generation": {func(gs *v1alpha1.GatewaySync) { gs.Generation = 2 }, "the lead has not read generation 2 of the spec yet"},
		"another request":    {func(gs *v1alpha1.GatewaySync) { annotate(gs, v1alpha1.AnnotationRequestedRef, "v2") }, "the lead has not read the request yet"},
		"not resolved": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Rollback, gs.Status.ConfirmedAt = nil, &metav1.Time{Time: noon}
			answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main", Total: 2, Reason: v1alpha1.ReasonGitTimeout, Message: "git: timeout"})
		}, "git: timeout"},
		"no lead": {func(gs *v1alpha1.GatewaySync) {
			gs.Status.Rollback = nil
			answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: "main", Total: 2, Reason: v1alpha1.ReasonGitTimeout, Message: "git: timeout"})
		}, "no agent leads"},
		"no outcome": {func(gs *v1alpha1.GatewaySync) { gs.Status.Outcome = nil }, "neither an agent nor the injector"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := failing()
			c.change(gs)
			_, _, err := rollback(gs, "", noon)
			assert.ErrorIs(t, err, ErrTooEarly)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestRollbackTarget(t *testing.T) {
	gs := failing()
	r, _, err := rollback(gs, "AAAAAAA0", noon)
	require.NoError(t, err)
	assert.Equal(t, "aaaaaaa0"+commitA[8:], r.Ref)
	for to, words := range map[string]string{
		commitB: "not in the history", "aaaaaa": "digits", "main": "not a commit", "aaaaaaa": "more digits", commitA + "a": "not a commit",
	} {
		t.Run(fmt.Sprintf("%.10s", to), func(t *testing.T) {
			_, _, err := rollback(gs, to, noon)
			assert.ErrorContains(t, err, words)
		})
	}
	gs.Status.LastGood, gs.Status.History = nil, nil
	_, _, err = rollback(gs, "", noon)
	assert.ErrorContains(t, err, "nothing to go back to")
}

// A fix may arrive between the verdict and the rollback. The rollback must not hold it off.
func TestRollbackKeepsLaterCommit(t *testing.T) {
	client, namespace := served(t)
	lead(t, client, namespace, "main", commitB)
	s := NewSetter(client, nil)
	other := "c" + commitB[1:]
	answer, err := s.Rollback(t.Context(), namespace, "plant", other, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Contains(t, answer.Message, "the failed commit is no longer desired")
	assert.NotContains(t, answer.GatewaySync().Annotations, v1alpha1.AnnotationRequestedRef)
	answer, err = s.Rollback(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Set, answer.Outcome)
	assert.True(t, Taken(answer.GatewaySync(), "argocd", "job-1"))
	assert.False(t, Taken(answer.GatewaySync(), "argocd", "job-2"))
	assert.False(t, Taken(answer.GatewaySync(), "cli", ""))
}

// Another sender may make a request between the verdict and the rollback. Until the lead handles it, the status still describes
// the failed commit. The rollback must wait for a verdict on the new request.
func TestRollbackWaitsForVerdict(t *testing.T) {
	other := "c" + commitB[1:]
	asked := func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v4", v1alpha1.AnnotationRequestedAt: "2026-01-02T12:00:00Z"}
	}
	handled := func(ref, commit string) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			asked(gs)
			answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: ref, Commit: commit})
		}
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		still  bool
		early  bool
	}{
		"no change":                          {func(*v1alpha1.GatewaySync) {}, true, false},
		"another ref requested":              {asked, false, true},
		"poll requested":                     {func(gs *v1alpha1.GatewaySync) { annotate(gs, v1alpha1.AnnotationRequestedAt, "2026-01-02T12:00:00Z") }, false, true},
		"another commit in the spec":         {func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = other, 2 }, false, true},
		"requested ref is another commit":    {handled("v4", other), false, false},
		"requested ref is the failed commit": {handled("v4", commitB), true, false},
		"requested ref is invalid":           {handled("", ""), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := failing()
			c.change(gs)
			still, err := desiresFailed(gs, commitB, noon)
			assert.Equal(t, c.still, still)
			assert.Equal(t, c.early, errors.Is(err, ErrTooEarly), "%v", err)
			still, err = desiresFailed(gs, "", noon)
			assert.NoError(t, err)
			assert.True(t, still)
		})
	}
}

func TestAPIServerRequestOutlivesRollback(t *testing.T) {
	client, namespace := served(t)
	lead(t, client, namespace, "main", commitB)
	s := NewSetter(client, nil)
	_, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v4", By: "kargo", ID: later})
	require.NoError(t, err)
	_, err = s.Rollback(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.ErrorIs(t, err, ErrTooEarly)
	lead(t, client, namespace, "v4", "c"+commitB[1:])
	answer, err := s.Rollback(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, "v4", desired(t, answer.GatewaySync()).Ref)
}

// lead writes the status as a lead does that has resolved the desired ref.
func lead(t *testing.T, client dynamic.Interface, namespace, ref, commit string) {
	t.Helper()
	syncs := kube.GatewaySyncs(client, namespace)
	gs, err := syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	answered(gs, v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Ref: ref, Commit: commit})
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA, At: metav1.NewTime(noon)}
	gs.Status.Rollback = &v1alpha1.Rollback{Commit: commitA, Unless: commit}
	patch, err := json.Marshal(map[string]any{"status": gs.Status})
	require.NoError(t, err)
	_, err = syncs.Patch(t.Context(), "plant", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}
