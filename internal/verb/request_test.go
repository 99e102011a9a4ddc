package verb

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5, time.UTC)

func plant(ref string) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.Generation = "plant", 1
	gs.Spec.Git.Ref = ref
	return gs
}

// ask plans a request and carries it out on the object.
func ask(t *testing.T, gs *v1alpha1.GatewaySync, r Request) Answer {
	t.Helper()
	require.NoError(t, r.Check())
	write, answer, err := r.plan(gs, noon)
	require.NoError(t, err)
	if answer.Outcome != Set {
		require.Empty(t, write, "nothing is written unless it says so")
	}
	gs.Annotations = annotated(gs.Annotations, write)
	assert.Equal(t, answer.At, gs.Annotations[v1alpha1.AnnotationRequestedAt])
	return answer
}

func desired(t *testing.T, gs *v1alpha1.GatewaySync) v1alpha1.Desired {
	t.Helper()
	d, err := v1alpha1.DesiredRef(gs, "")
	require.NoError(t, err)
	return d
}

func TestARequestIsInForceAndToldWithWhoAndWhen(t *testing.T) {
	gs := plant("main")
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "cli"}).Outcome)
	assert.Equal(t, map[string]string{
		v1alpha1.AnnotationRequestedRef:  "v2",
		v1alpha1.AnnotationRequestedOver: "v2@main 2026-01-02T12:00:00.000000005Z",
		v1alpha1.AnnotationRequestedAt:   "2026-01-02T12:00:00.000000005Z",
		v1alpha1.AnnotationRequestedBy:   "cli",
	}, gs.Annotations)
	d := desired(t, gs)
	assert.Equal(t, "v2", d.Ref)
	assert.True(t, d.Override)
}

// P5.
func TestTheSameRequestTwiceIsOneChange(t *testing.T) {
	for _, id := range []string{"", "job-1"} {
		gs := plant("main")
		r := Request{Ref: "v2", By: "argocd", ID: id}
		require.Equal(t, Set, ask(t, gs, r).Outcome)
		before := annotated(gs.Annotations, nil)
		require.Equal(t, Unchanged, ask(t, gs, r).Outcome)
		assert.Equal(t, before, gs.Annotations)
	}
}

func TestARepeatAfterSomebodyElseAskedIsNotCarriedOutAgain(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "job-1"})
	ask(t, gs, Request{Ref: "v3", By: "cli"})
	answer := ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "job-1"})
	require.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, "v3", desired(t, gs).Ref)
	assert.Equal(t, "v2", answer.Ref, "who asks can see that it was overtaken")
	assert.Equal(t, "v3", ask(t, gs, Request{By: "github"}).Ref)
}

func TestARequestThatLapsedCountsWhenItIsMadeAnew(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "cli"})
	gs.Status.Request = &v1alpha1.RequestStatus{Lapsed: gs.Annotations[v1alpha1.AnnotationRequestedOver]}
	require.Equal(t, "main", desired(t, gs).Ref)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "cli"}).Outcome)
	assert.Equal(t, "v2", desired(t, gs).Ref, "also within the same tick of the clock")
}

func TestTheRefOfTheSpecEndsAnOverride(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: commitA, Unless: commitB, By: "cli"})
	require.Equal(t, Set, ask(t, gs, Request{Ref: "main", By: "cli"}).Outcome)
	d := desired(t, gs)
	assert.Equal(t, "main", d.Ref)
	assert.False(t, d.Override)
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedUnless)
	require.Equal(t, Unchanged, ask(t, gs, Request{Ref: "main", By: "cli"}).Outcome)
}

func TestAHintAsksForALookAndLeavesTheRequest(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "kargo"})
	at := gs.Annotations[v1alpha1.AnnotationRequestedAt]
	for range 3 {
		require.Equal(t, Set, ask(t, gs, Request{By: "github"}).Outcome)
		assert.NotEqual(t, at, gs.Annotations[v1alpha1.AnnotationRequestedAt], "each is a value that was not there")
		at = gs.Annotations[v1alpha1.AnnotationRequestedAt]
	}
	d := desired(t, gs)
	assert.Equal(t, "v2", d.Ref)
	assert.Equal(t, "kargo", d.RequestedBy, "who asked for the ref is still told")
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationForceSync)
	ask(t, gs, Request{By: "cli", Force: true})
	assert.Equal(t, gs.Annotations[v1alpha1.AnnotationRequestedAt], gs.Annotations[v1alpha1.AnnotationForceSync])
}

const (
	earlier = "test.01hzaaaaaaaaaaaaaaaaaaaaaa.abcdef0"
	later   = "test.01hzbbbbbbbbbbbbbbbbbbbbbb.1234567"
)

func TestAnOlderPromotionNeverOverwritesANewerOne(t *testing.T) {
	gs := plant("main")
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: earlier}).Outcome)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "kargo", ID: later}).Outcome)
	require.Equal(t, Superseded, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: earlier}).Outcome)
	assert.Equal(t, "v2", desired(t, gs).Ref)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "argocd", ID: earlier}).Outcome, "ids of others have no order")
}

func TestTheIdsOfSendersDoNotTouchEachOtherAndCannotGrow(t *testing.T) {
	gs := plant("main")
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: `{"somebody":"` + strings.Repeat("x", 20000) + `","kargo":"` + later + `"}`}
	ask(t, gs, Request{Ref: "v1", By: "argocd", ID: "a"})
	var ids map[string]string
	require.NoError(t, json.Unmarshal([]byte(gs.Annotations[v1alpha1.AnnotationRequestedIDs]), &ids))
	assert.Equal(t, map[string]string{"argocd": "a", "kargo": later}, ids)
	for _, foreign := range []string{"null", "[]", `{"kargo":1}`, "{", strings.Repeat("[", 40000)} {
		gs := plant("main")
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: foreign}
		require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: later}).Outcome, "%.20s", foreign)
		require.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: later}).Outcome)
	}
}

func TestARequestThatCannotBeIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	for _, r := range []Request{
		{Ref: "v2", By: "nobody"}, {Ref: "v2", By: ""}, {Ref: "v2", By: "cli", ID: "a b"}, {Ref: "v2", By: "cli", ID: strings.Repeat("x", 257)},
		{Ref: "v2", By: "cli", Unless: "main"}, {By: "cli", Unless: commitA}, {By: "cli", ID: "a\xff"},
	} {
		var bad *InvalidError
		assert.ErrorAs(t, r.Check(), &bad, "%+v", r)
	}
	for _, ref := range []string{"-x", "a b", "a..b", "@", strings.Repeat("a", 256)} {
		_, _, err := Request{Ref: ref, By: "cli"}.plan(plant("main"), noon)
		var bad *InvalidError
		assert.ErrorAs(t, err, &bad, "%q", ref)
	}
}

func TestABadAnnotationIsMendedByTheNextRequest(t *testing.T) {
	gs := plant("main")
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: "a b"}
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "cli"}).Outcome)
	assert.Equal(t, "v2", desired(t, gs).Ref)
}

func FuzzRequest(f *testing.F) {
	f.Add("v2", "main", "kargo", later, `{"kargo":"`+earlier+`"}`, "2026-01-02T12:00:00.000000005Z")
	f.Add("a@b", "b", "cli", "", "null", "")
	f.Add("", "main", "github", "x", "{", "t")
	f.Fuzz(func(t *testing.T, ref, spec, by, id, ids, at string) {
		gs := plant(spec)
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: ids, v1alpha1.AnnotationRequestedAt: at}
		r := Request{Ref: ref, By: by, ID: id}
		if r.Check() != nil {
			return
		}
		write, answer, err := r.plan(gs, noon)
		if err != nil || answer.Outcome != Set {
			require.Empty(t, write)
			return
		}
		gs.Annotations = annotated(gs.Annotations, write)
		if ref != "" {
			require.Equal(t, ref, desired(t, gs).Ref)
		}
		require.NotEqual(t, at, answer.At)
		require.Less(t, len(gs.Annotations[v1alpha1.AnnotationRequestedIDs]), maxIDs)
		if id != "" {
			_, again, err := r.plan(gs, noon)
			require.NoError(t, err)
			require.Equal(t, Unchanged, again.Outcome)
		}
	})
}
