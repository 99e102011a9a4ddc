package verb

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// rolled is a plant whose branch is at B, and where A ran well.
func rolled() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Status.ObservedGeneration = 1
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commitB}
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA}
	gs.Status.History = []v1alpha1.CommitRecord{*gs.Status.LastGood, {Ref: "v0", Commit: "aaaaaaa0" + commitA[8:]}}
	return gs
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

func TestARollbackWaitsUntilTheLeadKnowsTheBranch(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.GatewaySync){
		"another generation": func(gs *v1alpha1.GatewaySync) { gs.Generation = 2 },
		"another ref":        func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Ref = "release" },
		"no commit":          func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = "" },
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
