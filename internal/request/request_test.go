package request

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/sender"
	"stoker.io/stoker/test/cluster/kubetest"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	commitB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5, time.UTC) // with a nanosecond part, which stamps must keep

// plant returns the GatewaySync plant, whose spec has this ref.
func plant(ref string) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.Generation = "plant", 1
	gs.Spec.Git.Ref = ref
	return gs
}

// ask plans a request and applies it to the object.
func ask(t *testing.T, gs *v1alpha1.GatewaySync, r Request) Answer {
	t.Helper()
	require.NoError(t, r.Check())
	r, answer, err := r.decided(gs)
	require.NoError(t, err)
	var write map[string]*string
	if answer.Outcome == "" {
		write, answer, err = r.plan(gs, noon)
		require.NoError(t, err)
	}
	if answer.Outcome != Set {
		require.Empty(t, write, "only the outcome Set may write")
	}
	gs.Annotations = annotated(gs.Annotations, write)
	assert.Equal(t, answer.At, gs.Annotations[v1alpha1.AnnotationRequestedAt])
	return answer
}

func desired(t *testing.T, gs *v1alpha1.GatewaySync) desiredref.Desired {
	t.Helper()
	d, err := desiredref.Of(gs, "")
	require.NoError(t, err)
	return d
}

func TestRequestRecordsSenderAndTime(t *testing.T) {
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

// P5: a repeated request changes nothing.
func TestRepeatedRequestChangesNothing(t *testing.T) {
	gs := plant("main")
	r := Request{Ref: "v2", By: "argocd", ID: "job-1"}
	require.Equal(t, Set, ask(t, gs, r).Outcome)
	before := annotated(gs.Annotations, nil)
	require.Equal(t, Unchanged, ask(t, gs, r).Outcome)
	assert.Equal(t, before, gs.Annotations)
	r.Ref = "v3"
	answer := ask(t, gs, r)
	assert.Equal(t, Superseded, answer.Outcome, "a known id with another ref is no repeat")
	assert.Equal(t, "request job-1 of argocd was for v2 and not for v3: use another id", answer.Message)

	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "main" // by a user who sets no other annotation
	assert.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "job-1"}).Outcome, "the request was for v2")
}

// Without an id, the request may be a repeat, or the branch or tag may have moved. It must cause a new poll.
func TestRequestForCurrentRefPolls(t *testing.T) {
	for name, first := range map[string]Request{
		"ref of the spec": {By: "github"}, "requested ref": {Ref: "v2", By: "kargo", ID: "p-1"}, "a rollback": {Ref: commitA, Unless: commitB, By: "argocd"},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant("main")
			ask(t, gs, first)
			before, was := annotated(gs.Annotations, nil), desired(t, gs)
			again := Request{Ref: was.Ref, Unless: first.Unless, By: "cli"}
			answer := ask(t, gs, again)
			require.Equal(t, Set, answer.Outcome)
			assert.Equal(t, was.Ref, answer.Ref)
			assert.Contains(t, answer.Message, "already")
			assert.NotEqual(t, before[v1alpha1.AnnotationRequestedAt], answer.At)
			assert.Equal(t, was.Override, desired(t, gs).Override)
			for _, changed := range []string{v1alpha1.AnnotationRequestedAt, v1alpha1.AnnotationRequestedBy} {
				if changed == v1alpha1.AnnotationRequestedBy && first.Ref != "" {
					continue // requested-by names the sender of the request for the ref
				}
				delete(before, changed)
				delete(gs.Annotations, changed)
			}
			assert.Equal(t, before, gs.Annotations, "other annotations are unchanged")
		})
	}
}

func TestRepeatAfterOtherRequest(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "job-1"})
	ask(t, gs, Request{Ref: "v3", By: "cli"})
	answer := ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "job-1"})
	require.Equal(t, Unchanged, answer.Outcome)
	assert.Equal(t, "v3", desired(t, gs).Ref)
	assert.Equal(t, "v2", answer.Ref, "the answer must name the ref of the request")
	assert.Equal(t, "v3", ask(t, gs, Request{By: "github"}).Ref)
}

func TestLapsedRequestCanBeRepeated(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "cli"})
	gs.Status.Request = &v1alpha1.RequestStatus{Lapsed: gs.Annotations[v1alpha1.AnnotationRequestedOver]}
	require.Equal(t, "main", desired(t, gs).Ref)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "cli"}).Outcome)
	assert.Equal(t, "v2", desired(t, gs).Ref, "two requests within one tick of the clock must differ")
}

func TestRequestForSpecRefEndsOverride(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: commitA, Unless: commitB, By: "cli"})
	require.Equal(t, Set, ask(t, gs, Request{Ref: "main", By: "cli"}).Outcome)
	d := desired(t, gs)
	assert.Equal(t, "main", d.Ref)
	assert.False(t, d.Override)
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedUnless)
}

// A request without a ref only asks for a poll of git.
func TestPollKeepsRequest(t *testing.T) {
	gs := plant("main")
	ask(t, gs, Request{Ref: "v2", By: "kargo"})
	at := gs.Annotations[v1alpha1.AnnotationRequestedAt]
	for range 3 {
		require.Equal(t, Set, ask(t, gs, Request{By: "github"}).Outcome)
		assert.NotEqual(t, at, gs.Annotations[v1alpha1.AnnotationRequestedAt], "each poll needs a new value")
		at = gs.Annotations[v1alpha1.AnnotationRequestedAt]
	}
	d := desired(t, gs)
	assert.Equal(t, "v2", d.Ref)
	assert.Equal(t, "kargo", d.RequestedBy, "a poll must not change the requester of the ref")
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationForceSync)
	ask(t, gs, Request{By: "cli", Force: true})
	assert.Equal(t, gs.Annotations[v1alpha1.AnnotationRequestedAt], gs.Annotations[v1alpha1.AnnotationForceSync])
}

const (
	earlier = "test.01hzaaaaaaaaaaaaaaaaaaaaaa.abcdef0"
	later   = "test.01hzbbbbbbbbbbbbbbbbbbbbbb.1234567"
)

func TestOlderPromotionIsSuperseded(t *testing.T) {
	gs := plant("main")
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: earlier}).Outcome)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "kargo", ID: later}).Outcome)
	require.Equal(t, Superseded, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: earlier}).Outcome)
	assert.Equal(t, "v2", desired(t, gs).Ref)
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "argocd", ID: earlier}).Outcome, "only ids of Kargo are ordered")
}

// Kargo's clock was ahead for one promotion. Later promotions must still be accepted, and their order must hold again.
func TestFuturePromotionTime(t *testing.T) {
	// ahead returns the id of a promotion that Kargo dates d after noon. n tells promotions of one time apart.
	ahead := func(d time.Duration, n int) string {
		stamp, ms := "", noon.Add(d).UnixMilli()
		for range 10 {
			stamp, ms = digits[ms&31:ms&31+1]+stamp, ms>>5
		}
		id := fmt.Sprintf("test.%s%016d.abcdef0", stamp, n)
		require.WithinDuration(t, noon.Add(d), createdAt(id), time.Millisecond)
		return id
	}
	gs := plant("main")
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: ahead(time.Minute, 1)}).Outcome)
	require.Equal(t, Superseded, ask(t, gs, Request{Ref: "v0", By: "kargo", ID: ahead(0, 1)}).Outcome, "an id from a clock that is a minute ahead counts")
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v2", By: "kargo", ID: ahead(time.Hour, 1)}).Outcome)
	assert.False(t, NotTaken(gs, ahead(0, 3)))
	require.Equal(t, Set, ask(t, gs, Request{Ref: "v3", By: "kargo", ID: ahead(0, 3)}).Outcome)
	require.Equal(t, Superseded, ask(t, gs, Request{Ref: "v0", By: "kargo", ID: ahead(0, 2)}).Outcome)
	require.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v3", By: "kargo", ID: ahead(0, 3)}).Outcome)
	require.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v2", By: "kargo", ID: ahead(time.Hour, 1)}).Outcome, "an id from the future counts once")
	assert.Equal(t, "v3", desired(t, gs).Ref)
	assert.False(t, NotTaken(gs, ahead(time.Hour, 1)), "a later id with an earlier time must not hide it")
	assert.True(t, NotTaken(gs, ahead(time.Hour, 2)))
}

// Argo CD retries both the Job that requests a commit and the Job that rolls back. A build that got no answer may repeat its
// request after the next build's.
func TestRepeatAfterOwnRequest(t *testing.T) {
	gs := plant("main")
	forth := Request{Ref: commitB, By: "argocd", ID: "stoker-set-ref-bbbbbbb-sync-1795150392"}
	back := Request{Ref: commitA, By: "argocd", ID: "stoker-rollback-bbbbbbb-syncfail-1795150392"}
	require.Equal(t, Set, ask(t, gs, forth).Outcome)
	require.Equal(t, Set, ask(t, gs, back).Outcome)
	before := annotated(gs.Annotations, nil)
	for range 3 {
		answer := ask(t, gs, forth)
		require.Equal(t, Unchanged, answer.Outcome)
		assert.Equal(t, commitB, answer.Ref, "the answer must name the ref of the request")
		require.Equal(t, Unchanged, ask(t, gs, back).Outcome)
	}
	assert.Equal(t, before, gs.Annotations)
	for n := range keptIDs - 2 {
		require.Equal(t, Set, ask(t, gs, Request{By: "argocd", ID: fmt.Sprint("poll-", n)}).Outcome)
	}
	assert.True(t, Taken(gs, "argocd", forth.ID))
	require.Equal(t, Unchanged, ask(t, gs, forth).Outcome, "the last ids must be remembered")
	require.Equal(t, Set, ask(t, gs, Request{By: "argocd", ID: "one-more-poll"}).Outcome)
	assert.False(t, Taken(gs, "argocd", forth.ID), "older ids must be dropped")
	assert.True(t, Taken(gs, "argocd", back.ID))
}

func TestFollowedTagsAreBounded(t *testing.T) {
	gs := plant("main")
	for n := range keptTags + 3 {
		ask(t, gs, Request{Ref: fmt.Sprintf("v1.%d", n), By: "github", Follows: true})
		ask(t, gs, Request{Ref: commitA, By: "cli"})
	}
	assert.Len(t, Followed(gs), keptTags)
	assert.Equal(t, "v1.18", Followed(gs)[keptTags-1])
	ask(t, gs, Request{Ref: "v1.10", By: "github", Follows: true})
	assert.Equal(t, "v1.10", Followed(gs)[keptTags-1])
	assert.Len(t, Followed(gs), keptTags, "a tag must be listed once")
	for n := range 9 {
		ask(t, gs, Request{Ref: fmt.Sprintf("%0250d", n), By: "github", Follows: true})
	}
	assert.Len(t, Followed(gs), 4, "four tags of 250 bytes fit into keptChars")
	assert.LessOrEqual(t, len(gs.Annotations[v1alpha1.AnnotationRequestedTags]), keptChars)
	gs.Annotations[v1alpha1.AnnotationRequestedTags] = strings.Repeat("x ", maxIDs)
	assert.Empty(t, Followed(gs))
}

func TestSenderIDsAreBounded(t *testing.T) {
	gs := plant("main")
	foreign := `{"somebody":"` + strings.Repeat("x", 10000) + `","github":"` + strings.Repeat(strings.Repeat("x", 200)+" ", 50) + `","kargo":"` + later + `"}`
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: foreign}
	ask(t, gs, Request{Ref: "v1", By: "argocd", ID: "a<&>"})
	ask(t, gs, Request{Ref: "v2", By: "argocd", ID: "b"})
	assert.Equal(t, `{"argocd":"a<&> b","github":"`+strings.Repeat("x", 200)+`","kargo":"`+later+`"}`, gs.Annotations[v1alpha1.AnnotationRequestedIDs])
	for _, sender := range sender.Names() {
		for n := range 20 {
			ask(t, gs, Request{By: sender, ID: strings.Repeat(`"`, maxID-2) + fmt.Sprint(10+n)})
		}
	}
	assert.Less(t, len(gs.Annotations[v1alpha1.AnnotationRequestedIDs]), maxIDs, "the limit must hold for escaped characters")
	for _, foreign := range []string{"null", "[]", `{"kargo":1}`, "{", strings.Repeat("[", 40000)} {
		t.Run(fmt.Sprintf("%.20s", foreign), func(t *testing.T) {
			gs := plant("main")
			gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedIDs: foreign}
			require.Equal(t, Set, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: later}).Outcome)
			require.Equal(t, Unchanged, ask(t, gs, Request{Ref: "v1", By: "kargo", ID: later}).Outcome)
		})
	}
}

func TestInvalidRequestIsRejected(t *testing.T) {
	for name, r := range map[string]Request{
		"unknown sender":         {Ref: "v2", By: "unknown"},
		"no sender":              {Ref: "v2", By: ""},
		"id with a space":        {Ref: "v2", By: "cli", ID: "a b"},
		"long id":                {Ref: "v2", By: "cli", ID: strings.Repeat("x", 257)},
		"unless is not a commit": {Ref: "v2", By: "cli", Unless: "main"},
		"unless without ref":     {By: "cli", Unless: commitA},
		"id is not UTF-8":        {By: "cli", ID: "a\xff"},
	} {
		t.Run(name, func(t *testing.T) {
			var bad *InvalidError
			assert.ErrorAs(t, r.Check(), &bad)
		})
	}
	for _, ref := range []string{"-x", "a b", "a..b", "@", strings.Repeat("a", 256)} {
		t.Run(fmt.Sprintf("%.20q", ref), func(t *testing.T) {
			_, _, err := Request{Ref: ref, By: "cli"}.plan(plant("main"), noon)
			var bad *InvalidError
			assert.ErrorAs(t, err, &bad)
		})
	}
}

func TestBadAnnotationIsReplaced(t *testing.T) {
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

func TestRequestForRefAtCommit(t *testing.T) {
	r := Request{Ref: "v2", Commit: commitA, By: "kargo", For: "stage prod,\tby ann\u0007\nx"}
	gs := plant("main")
	require.Equal(t, Set, ask(t, gs, r).Outcome)
	assert.Equal(t, commitA, gs.Annotations[v1alpha1.AnnotationRequestedCommit])
	assert.Equal(t, "stage prod, by ann x", gs.Annotations[v1alpha1.AnnotationRequestedFor])
	d := desired(t, gs)
	assert.Equal(t, commitA, d.Commit)
	assert.Equal(t, "kargo", d.RequestedBy)

	t.Run("repeated request polls", func(t *testing.T) {
		gs := gs.DeepCopy()
		over := gs.Annotations[v1alpha1.AnnotationRequestedOver]
		assert.Contains(t, ask(t, gs, r).Message, "already")
		assert.Equal(t, over, gs.Annotations[v1alpha1.AnnotationRequestedOver])
	})
	t.Run("repeated request after rejection", func(t *testing.T) {
		gs := gs.DeepCopy()
		gs.Status.Request = &v1alpha1.RequestStatus{Over: d.Over, Refused: d.Refuse(commitB)}
		require.Equal(t, commitB, desired(t, gs).RefusedCommit)
		assert.Empty(t, ask(t, gs, r).Message)
		assert.Empty(t, desired(t, gs).RefusedCommit)
	})
	t.Run("other commit", func(t *testing.T) {
		gs := gs.DeepCopy()
		ask(t, gs, Request{Ref: "v2", Commit: commitB, By: "cli"})
		assert.Equal(t, commitB, desired(t, gs).Commit)
		assert.Equal(t, "cli", desired(t, gs).RequestedBy)
	})
	t.Run("ref without commit", func(t *testing.T) {
		gs := gs.DeepCopy()
		ask(t, gs, Request{Ref: "v2", By: "cli"})
		assert.Empty(t, desired(t, gs).Commit)
		assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedCommit)
		assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedFor)
	})
	t.Run("poll keeps the request", func(t *testing.T) {
		gs := gs.DeepCopy()
		ask(t, gs, Request{By: "github"})
		assert.Equal(t, d.Commit, desired(t, gs).Commit)
		assert.Equal(t, d.RequestedBy, desired(t, gs).RequestedBy)
	})
	t.Run("ref of the spec at a commit", func(t *testing.T) {
		gs := plant("v2")
		require.Equal(t, Set, ask(t, gs, r).Outcome)
		assert.Equal(t, commitA, desired(t, gs).Commit)
		assert.False(t, desired(t, gs).Override)
		ask(t, gs, Request{Ref: "v2", By: "cli"})
		assert.Empty(t, desired(t, gs).Commit)
	})
	for name, bad := range map[string]Request{
		"a short commit": {Ref: "v2", Commit: "aaaaaaa", By: "cli"}, "no ref": {Commit: commitA, By: "cli"}, "two commits": {Ref: commitA, Commit: commitB, By: "cli"},
	} {
		t.Run(name, func(t *testing.T) {
			var invalid *InvalidError
			require.ErrorAs(t, bad.Check(), &invalid)
		})
	}
}

func TestExpand(t *testing.T) {
	commit := func(prefix string) string { return prefix + strings.Repeat("0", 40-len(prefix)) }
	gs := &v1alpha1.GatewaySync{}
	gs.Status.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commit("8f98df3")}
	gs.Status.History = []v1alpha1.CommitRecord{{Ref: "main", Commit: commit("1f0c2d3a")}, {Ref: "main", Commit: commit("1f0c2d3b")}}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{SyncedCommit: commit("5c5c5c5"), GatewayDetails: v1alpha1.GatewayDetails{SyncHistory: []v1alpha1.SyncRecord{{Commit: commit("20261124")}}}}}
	for ref, want := range map[string]string{
		"main": "main", "v1.2.3": "v1.2.3", "abcdef": "abcdef", "refs/heads/deadbee": "refs/heads/deadbee",
		"8f98df3": commit("8f98df3"), "8F98DF30": commit("8f98df3"), "1f0c2d3b": commit("1f0c2d3b"), "5c5c5c5": commit("5c5c5c5"),
		"20261124": commit("20261124"), "20261125": "20261125", commit("ffff"): commit("ffff"),
	} {
		t.Run(ref, func(t *testing.T) {
			got, err := Expand(gs, ref)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	for ref, want := range map[string]string{
		"1f0c2d3": "1f0c2d3 is both " + commit("1f0c2d3a") + " and " + commit("1f0c2d3b"),
		"deadbee": "deadbee looks like the first digits of a commit, and the status has no commit that begins with them: write all 40 digits, or refs/heads/deadbee or refs/tags/deadbee",
	} {
		t.Run(ref, func(t *testing.T) {
			_, err := Expand(gs, ref)
			invalid := &InvalidError{}
			require.ErrorAs(t, err, &invalid)
			assert.ErrorContains(t, err, want)
		})
	}
}

func TestMain(m *testing.M) { kubetest.Main(m) }
