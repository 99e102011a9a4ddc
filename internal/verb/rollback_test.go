package verb

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// rolled returns a plant whose branch is at commit B, with A as the last good commit.
func rolled() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Status.ObservedGeneration = 1
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commitB}
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA}
	gs.Status.History = []v1alpha1.CommitRecord{*gs.Status.LastGood, {Ref: "v0", Commit: "aaaaaaa0" + commitA[8:]}}
	return gs
}

func annotate(gs *v1alpha1.GatewaySync, name, value string) {
	gs.Annotations = map[string]string{name: value}
}

func TestARollbackHoldsOnlyWhileTheBranchIsWhereItWasBad(t *testing.T) {
	r, _, err := rollback(rolled(), "")
	require.NoError(t, err)
	assert.Equal(t, Request{Ref: commitA, Unless: commitB}, r)
}

func TestARollbackFromARequestHasNoBranchToWaitFor(t *testing.T) {
	gs := rolled()
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2"}
	r, _, err := rollback(gs, "")
	require.NoError(t, err)
	assert.Equal(t, Request{Ref: commitA}, r)
}

// A failure elsewhere must not replace a good request with a commit. Otherwise its sender would see it as superseded, and a
// requested branch would stop moving.
func TestARollbackFromARequestThatRunsWellChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		want   Outcome
	}{
		"it runs well":                  {func(*v1alpha1.GatewaySync) {}, Unchanged},
		"without a time":                {func(gs *v1alpha1.GatewaySync) { delete(gs.Annotations, v1alpha1.AnnotationRequestedAt) }, Unchanged},
		"it leads to another commit":    {func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = commitB }, ""},
		"nobody has looked for it yet":  {func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Ref = "main" }, ""},
		"nobody has looked since":       {func(gs *v1alpha1.GatewaySync) { gs.Status.Target.RequestedAt = "" }, ""},
		"the status is of another spec": {func(gs *v1alpha1.GatewaySync) { gs.Generation = 2 }, ""},
		"nobody has looked at all":      {func(gs *v1alpha1.GatewaySync) { gs.Status.Target = nil }, ""},
	} {
		gs := rolled()
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v2", v1alpha1.AnnotationRequestedAt: "2026-01-01T00:00:00Z"}
		gs.Status.Target = &v1alpha1.TargetStatus{Ref: "v2", Commit: commitA, RequestedAt: "2026-01-01T00:00:00Z"}
		c.change(gs)
		r, answer, err := rollback(gs, "")
		require.NoError(t, err, name)
		assert.Equal(t, c.want, answer.Outcome, name)
		assert.Equal(t, c.want == "", r.Ref == commitA, name)
		if c.want != "" {
			assert.Equal(t, "v2", answer.Ref, name)
			assert.Contains(t, answer.Message, "nothing to roll back", name)
		}
	}
}

func TestARollbackOfARollbackKeepsItsCondition(t *testing.T) {
	gs := rolled()
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: commitA, v1alpha1.AnnotationRequestedUnless: commitB}
	_, answer, err := rollback(gs, "")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome, "the same again changes nothing")
	r, _, err := rollback(gs, "aaaaaaa0")
	require.NoError(t, err)
	assert.Equal(t, commitB, r.Unless)
}

func TestARollbackFromACommitOfTheSpecNeedsNoLead(t *testing.T) {
	gs := rolled()
	gs.Spec.Git.Ref, gs.Generation = commitB, 2
	r, _, err := rollback(gs, "")
	require.NoError(t, err)
	assert.Equal(t, Request{Ref: commitA, Unless: commitB}, r)
}

// The case of the digits of a commit does not matter.
func TestACommitOfTheSpecIsNotHeldOffForItself(t *testing.T) {
	for _, looked := range []string{strings.ToUpper(commitA), "main"} {
		gs := rolled()
		gs.Spec.Git.Ref = strings.ToUpper(commitA)
		gs.Status.Target = &v1alpha1.TargetStatus{Ref: looked, Commit: commitA}
		_, answer, err := rollback(gs, "")
		require.NoError(t, err)
		assert.Equal(t, Unchanged, answer.Outcome)
		gs.Spec.Git.Ref = strings.ToUpper(commitB)
		r, _, err := rollback(gs, "")
		require.NoError(t, err)
		assert.Equal(t, Request{Ref: commitA, Unless: commitB}, r)
	}
}

func TestARollbackWaitsUntilTheLeadKnowsTheBranch(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.GatewaySync){
		"another generation": func(gs *v1alpha1.GatewaySync) { gs.Generation = 2 },
		"another ref":        func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Ref = "release" },
		"no commit":          func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = "" },
		"no commit's digits": func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = "abc" },
		"too many of them":   func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = commitB + "b" },
		"no target":          func(gs *v1alpha1.GatewaySync) { gs.Status.Target = nil },
	} {
		gs := rolled()
		change(gs)
		_, _, err := rollback(gs, "")
		assert.ErrorIs(t, err, ErrTooEarly, name)
	}
}

func TestARollbackToWhatIsWantedIsDone(t *testing.T) {
	gs := rolled()
	gs.Status.Target.Commit = commitA
	_, answer, err := rollback(gs, "")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
}

func TestARollbackGoesOnlyToWhatRan(t *testing.T) {
	gs := rolled()
	r, _, err := rollback(gs, "AAAAAAA0")
	require.NoError(t, err)
	assert.Equal(t, "aaaaaaa0"+commitA[8:], r.Ref)
	for to, words := range map[string]string{
		commitB: "not in the history", "aaaaaa": "digits", "main": "not a commit", "aaaaaaa": "more digits", commitA + "a": "not a commit",
	} {
		_, _, err := rollback(gs, to)
		assert.ErrorContains(t, err, words, to)
	}
	gs.Status.LastGood, gs.Status.History = nil, nil
	_, _, err = rollback(gs, "")
	assert.ErrorContains(t, err, "nothing to go back to")
}

// A fix may arrive between the verdict and the rollback. The rollback must not hold it off.
func TestARollbackFromWhatFailedLeavesALaterCommitAlone(t *testing.T) {
	client, namespace := served(t)
	status := `{"status": {"observedGeneration": 1, "target": {"ref": "main", "commit": "` + commitB + `"}, "lastGood": {"ref": "main", "commit": "` + commitA + `", "at": "2026-01-02T12:00:00Z"}}}`
	_, err := kube.GatewaySyncs(client, namespace).Patch(t.Context(), "plant", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s := NewSetter(client, nil)
	other := "c" + commitB[1:]
	answer, err := s.RollbackFrom(t.Context(), namespace, "plant", other, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Contains(t, answer.Message, "by now something else is to run")
	assert.NotContains(t, answer.GatewaySync.Annotations, v1alpha1.AnnotationRequestedRef)
	answer, err = s.RollbackFrom(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Set, answer.Outcome)
	assert.True(t, Taken(answer.GatewaySync, "argocd", "job-1"))
	assert.False(t, Taken(answer.GatewaySync, "argocd", "job-2"))
	assert.False(t, Taken(answer.GatewaySync, "cli", ""))
}

// Another sender may make a request between the verdict and the rollback. Until the lead handles it, the status still describes
// the failed commit. The rollback must wait for a verdict on the new request.
func TestARollbackFromWhatFailedWaitsForTheVerdictOnWhatIsWantedNow(t *testing.T) {
	other := "c" + commitB[1:]
	asked := func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "v4", v1alpha1.AnnotationRequestedAt: "2026-01-02T12:00:00Z"}
	}
	looked := func(commit string) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			asked(gs)
			gs.Status.Target = &v1alpha1.TargetStatus{Ref: "v4", Commit: commit, RequestedAt: "2026-01-02T12:00:00Z"}
		}
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		still  bool
		early  bool
	}{
		"nothing has changed":                  {func(*v1alpha1.GatewaySync) {}, true, false},
		"another ref was asked for":            {asked, false, true},
		"a look was asked for":                 {func(gs *v1alpha1.GatewaySync) { annotate(gs, v1alpha1.AnnotationRequestedAt, "2026-01-02T12:00:00Z") }, false, true},
		"the spec names another commit":        {func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = other, 2 }, false, true},
		"what was asked for is another commit": {looked(other), false, false},
		"what was asked for is what failed":    {looked(commitB), true, false},
		"what was asked for is no ref":         {func(gs *v1alpha1.GatewaySync) { annotate(gs, v1alpha1.AnnotationRequestedRef, "a b") }, false, false},
	} {
		gs := rolled()
		c.change(gs)
		still, err := fails(gs, commitB)
		assert.Equal(t, c.still, still, name)
		assert.Equal(t, c.early, errors.Is(err, ErrTooEarly), "%s: %v", name, err)
		still, err = fails(gs, "")
		assert.NoError(t, err, name)
		assert.True(t, still, name)
	}
}

func TestOnTheAPIServerARequestThatCameAfterTheVerdictOutlivesTheRollback(t *testing.T) {
	client, namespace := served(t)
	lead := func(ref, commit, at string) {
		t.Helper()
		status := fmt.Sprintf(`{"status": {"observedGeneration": 1, "target": {"ref": %q, "commit": %q, "requestedAt": %q}, "lastGood": {"ref": "main", "commit": %q, "at": "2026-01-02T12:00:00Z"}}}`, ref, commit, at, commitA)
		_, err := kube.GatewaySyncs(client, namespace).Patch(t.Context(), "plant", types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	lead("main", commitB, "")
	s := NewSetter(client, nil)
	kargo, err := s.Ask(t.Context(), namespace, "plant", Request{Ref: "v4", By: "kargo", ID: later})
	require.NoError(t, err)
	_, err = s.RollbackFrom(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.ErrorIs(t, err, ErrTooEarly)
	lead("v4", "c"+commitB[1:], kargo.At)
	answer, err := s.RollbackFrom(t.Context(), namespace, "plant", commitB, "", "argocd", "job-1")
	require.NoError(t, err)
	assert.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, "v4", desired(t, answer.GatewaySync).Ref)
}
