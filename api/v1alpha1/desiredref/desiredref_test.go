package desiredref_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/test/verdicts"
)

const (
	commit1 = "1111111111111111111111111111111111111111"
	commit2 = "2222222222222222222222222222222222222222"
)

func TestDesiredRef(t *testing.T) {
	type request = v1alpha1.RequestStatus
	for _, c := range []struct {
		name                    string
		requested, over, unless string
		commit                  string
		status                  *request
		specCommit              string
		want                    desiredref.Desired
	}{
		{name: "no request",
			want: desiredref.Desired{Ref: "main"}},
		{name: "leftovers without requested-ref are not a request", over: "v2@main", unless: commit1, status: &request{Over: "v2@main", Lapsed: "v2@main"},
			want: desiredref.Desired{Ref: "main"}},
		{name: "request over the current spec", requested: "v2", over: "v2@main",
			want: desiredref.Desired{Ref: "v2", Override: true, Over: "v2@main"}},
		{name: "requested-over with a time", requested: "v2", over: "v2@main 2026-01-01T00:00:00.000000001Z",
			want: desiredref.Desired{Ref: "v2", Override: true, Over: "v2@main 2026-01-01T00:00:00.000000001Z"}},
		{name: "request over another spec lapses", requested: "v2", over: "v2@release",
			want: desiredref.Desired{Ref: "main", Over: "v2@release", Lapsed: "v2@release"}},
		{name: "lapsed request stays lapsed when the spec returns", requested: "v2", over: "v2@main", status: &request{Over: "v2@main", Lapsed: "v2@main"},
			want: desiredref.Desired{Ref: "main", Over: "v2@main", Lapsed: "v2@main"}},
		{name: "lapsed request is repeated", requested: "v2", over: "v2@main t2", status: &request{Over: "v2@main t1", Lapsed: "v2@main t1"},
			want: desiredref.Desired{Ref: "v2", Override: true, Over: "v2@main t2"}},
		{name: "request for the ref of the spec", requested: "main", over: "main@main",
			want: desiredref.Desired{Ref: "main", Over: "main@main"}},
		{name: "request for the ref of the spec, with unless", requested: "main", over: "main@main", unless: commit1, specCommit: commit2,
			want: desiredref.Desired{Ref: "main", Over: "main@main"}},
		{name: "spec changed to the requested ref", requested: "main", over: "main@release",
			want: desiredref.Desired{Ref: "main", Over: "main@release", Lapsed: "main@release"}},
		{name: "full and short name of one branch", requested: "refs/heads/main", over: "refs/heads/main@main",
			want: desiredref.Desired{Ref: "refs/heads/main", Override: true, Over: "refs/heads/main@main"}},
		{name: "request without requested-over", requested: "v2",
			want: desiredref.Desired{Ref: "v2", Override: true, Over: "v2@main"}},
		{name: "request without requested-over, other annotations left", requested: "v3", over: "v2@release", status: &request{Over: "v2@release", Lapsed: "v2@release"},
			want: desiredref.Desired{Ref: "v3", Override: true, Over: "v3@main"}},
		{name: "request without requested-over after a rollback", requested: "v3", over: commit2 + "@main", unless: commit1, specCommit: commit2,
			want: desiredref.Desired{Ref: "v3", Override: true, Over: "v3@main"}},
		{name: "request without requested-over lapses when the spec changes", requested: "v2", status: &request{Over: "v2@release"},
			want: desiredref.Desired{Ref: "main", Over: "v2@release", Lapsed: "v2@release"}},
		{name: "lapsed request that loses its requested-over", requested: "v2", status: &request{Over: "v2@release t1", Lapsed: "v2@release t1"},
			want: desiredref.Desired{Ref: "main", Over: "v2@release t1", Lapsed: "v2@release t1"}},
		{name: "ref that contains @", requested: "a@b", over: "a@b@main",
			want: desiredref.Desired{Ref: "a@b", Override: true, Over: "a@b@main"}},
		{name: "unless, unresolved", requested: commit2, over: commit2 + "@main", unless: commit1,
			want: desiredref.Desired{Ref: commit2, Override: true, Unless: commit1, ResolveSpec: true, Over: commit2 + "@main"}},
		{name: "unless, the spec resolves to it", requested: commit2, over: commit2 + "@main", unless: commit1, specCommit: commit1,
			want: desiredref.Desired{Ref: commit2, Override: true, Unless: commit1, ResolveSpec: true, Over: commit2 + "@main"}},
		{name: "unless, the branch moved on", requested: commit2, over: commit2 + "@main", unless: commit1, specCommit: commit2,
			want: desiredref.Desired{Ref: "main", Over: commit2 + "@main", Lapsed: commit2 + "@main unless " + commit1}},
		{name: "unless, lapsed request stays lapsed when the branch returns", requested: commit2, over: commit2 + "@main", unless: commit1, specCommit: commit1,
			status: &request{Over: commit2 + "@main", Lapsed: commit2 + "@main unless " + commit1},
			want:   desiredref.Desired{Ref: "main", Over: commit2 + "@main", Lapsed: commit2 + "@main unless " + commit1}},
		{name: "unless is not a commit", requested: commit2, over: commit2 + "@main", unless: "main", specCommit: commit1,
			want: desiredref.Desired{Ref: "main", Over: commit2 + "@main", Lapsed: commit2 + "@main unless main"}},
		{name: "commit of the request", requested: "v2", over: "v2@main t1", commit: commit1,
			want: desiredref.Desired{Ref: "v2", Override: true, Commit: commit1, Over: "v2@main t1"}},
		{name: "commit in capital letters", requested: "v2", over: "v2@main t1", commit: strings.Repeat("aF", 20),
			want: desiredref.Desired{Ref: "v2", Override: true, Commit: strings.Repeat("af", 20), Over: "v2@main t1"}},
		{name: "commit with the ref of the spec", requested: "main", over: "main@main t1", commit: commit1,
			want: desiredref.Desired{Ref: "main", Commit: commit1, Over: "main@main t1"}},
		{name: "request without requested-over does not inherit a commit", requested: "v3", over: "v2@main t1", commit: commit1,
			want: desiredref.Desired{Ref: "v3", Override: true, Over: "v3@main"}},
		{name: "commit of a lapsed request", requested: "main", over: "main@release t1", commit: commit1,
			want: desiredref.Desired{Ref: "main", Over: "main@release t1", Lapsed: "main@release t1"}},
		{name: "commit without a requested ref", commit: commit1,
			want: desiredref.Desired{Ref: "main"}},
		{name: "refused request stays refused", requested: "v2", over: "v2@main t1", commit: commit1,
			status: &request{Over: "v2@main t1", Refused: "v2@main t1 at " + commit1 + " not at " + commit2},
			want: desiredref.Desired{Ref: "v2", Override: true, Commit: commit1, Over: "v2@main t1", RefusedCommit: commit2,
				Refused: "v2@main t1 at " + commit1 + " not at " + commit2}},
		{name: "refused request is repeated", requested: "v2", over: "v2@main t2", commit: commit1,
			status: &request{Over: "v2@main t1", Refused: "v2@main t1 at " + commit1 + " not at " + commit2},
			want:   desiredref.Desired{Ref: "v2", Override: true, Commit: commit1, Over: "v2@main t2"}},
		{name: "refused request with another commit", requested: "v2", over: "v2@main t1", commit: commit2,
			status: &request{Over: "v2@main t1", Refused: "v2@main t1 at " + commit1 + " not at " + commit2},
			want:   desiredref.Desired{Ref: "v2", Override: true, Commit: commit2, Over: "v2@main t1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := verdicts.Smallest()
			gs.Status.Request = c.status
			annotate(gs, v1alpha1.AnnotationRequestedRef, c.requested)
			annotate(gs, v1alpha1.AnnotationRequestedOver, c.over)
			annotate(gs, v1alpha1.AnnotationRequestedUnless, c.unless)
			annotate(gs, v1alpha1.AnnotationRequestedCommit, c.commit)
			before := gs.DeepCopy()
			got, err := desiredref.Of(gs, c.specCommit)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			assert.Equal(t, before, gs, "Of must not change the object")
		})
	}
}

func TestDesiredRefRequester(t *testing.T) {
	gs := verdicts.Smallest()
	annotate(gs, v1alpha1.AnnotationRequestedRef, "v2")
	annotate(gs, v1alpha1.AnnotationRequestedBy, "kargo")
	annotate(gs, v1alpha1.AnnotationRequestedAt, "2026-01-01T00:00:00Z")
	d, err := desiredref.Of(gs, "")
	require.NoError(t, err)
	assert.Equal(t, "kargo", d.RequestedBy)
	assert.Equal(t, "2026-01-01T00:00:00Z", d.RequestedAt)

	annotate(gs, v1alpha1.AnnotationRequestedOver, "v2@release")
	d, err = desiredref.Of(gs, "")
	require.NoError(t, err)
	assert.Empty(t, d.RequestedBy)
	assert.Equal(t, "2026-01-01T00:00:00Z", d.RequestedAt, "the request to poll must stay")
}

// F5: a requested ref must follow the same rules as the ref in the spec, and an invalid one changes nothing. An invalid commit must be an
// error, too: if it counted as no commit, gateways would follow the ref wherever it points.
func TestInvalidRequest(t *testing.T) {
	for annotation, values := range map[string][]string{
		v1alpha1.AnnotationRequestedRef:    {"-x", "--upload-pack=x", "a b", "a..b", "refs/heads/../../x", strings.Repeat("a", 256), "v2\n", "\xff"},
		v1alpha1.AnnotationRequestedCommit: {"main", commit1[:7], commit1 + "1", " " + commit1, commit1 + "\n", strings.Repeat("x", 300), "\xff"},
	} {
		for _, value := range values {
			t.Run(fmt.Sprintf("%s %.20q", annotation, value), func(t *testing.T) {
				gs := verdicts.Smallest()
				annotate(gs, v1alpha1.AnnotationRequestedRef, "v2")
				annotate(gs, annotation, value)
				d, err := desiredref.Of(gs, "")
				var named *v1alpha1.Error
				require.ErrorAs(t, err, &named)
				assert.Equal(t, v1alpha1.ReasonRefNotFound, named.Reason)
				assert.Contains(t, err.Error(), annotation)
				assert.Less(t, len(err.Error()), 600)
				assert.Zero(t, d)
			})
		}
	}
}

func TestCheckCommit(t *testing.T) {
	require.NoError(t, desiredref.Desired{Ref: "v2"}.CheckCommit(commit1), "without a requested commit, every commit passes")
	require.NoError(t, desiredref.Desired{Ref: "v2", Commit: commit1}.CheckCommit(commit1))
	err := desiredref.Desired{Ref: "v2", Commit: commit1}.CheckCommit(commit2)
	var named *v1alpha1.Error
	require.ErrorAs(t, err, &named)
	assert.Equal(t, v1alpha1.ReasonRefMoved, named.Reason)
}

func TestFullCommitID(t *testing.T) {
	for _, ref := range []string{commit1, strings.Repeat("aF", 20)} {
		assert.True(t, syntax.IsCommit(ref), "%q", ref)
	}
	for _, ref := range []string{"", "main", commit1[:7], commit1[:39], commit1 + "1", strings.Repeat("1", 64), commit1[:39] + "g", " " + commit1[:39], strings.Repeat("é", 20)} {
		t.Run(fmt.Sprintf("%.20q", ref), func(t *testing.T) {
			assert.False(t, syntax.IsCommit(ref))
		})
	}
}

func TestRequestOver(t *testing.T) {
	gs := verdicts.Smallest()
	annotate(gs, v1alpha1.AnnotationRequestedRef, "v2")
	for _, at := range []string{"", "2026-01-01T00:00:00.000000001Z", "not a\ntoken"} {
		t.Run(fmt.Sprintf("%.20q", at), func(t *testing.T) {
			annotate(gs, v1alpha1.AnnotationRequestedOver, desiredref.RequestOver("v2", "main", at))
			d, err := desiredref.Of(gs, "")
			require.NoError(t, err)
			assert.True(t, d.Override)
		})
	}
}

func TestResolve(t *testing.T) {
	rollback := func(spec string) *v1alpha1.GatewaySync {
		gs := verdicts.Smallest()
		gs.Spec.Git.Ref = spec
		annotate(gs, v1alpha1.AnnotationRequestedRef, "v2")
		annotate(gs, v1alpha1.AnnotationRequestedUnless, commit1)
		return gs
	}
	silent := errors.New("git does not answer")
	for name, c := range map[string]struct {
		spec, answer string
		err          error
		ref          string
		specCommit   string
		polled       []string
	}{
		"commit of unless":          {"main", commit1, nil, "v2", commit1, []string{"main"}},
		"another commit":            {"main", commit2, nil, "main", commit2, []string{"main"}},
		"no such ref":               {"main", "", nil, "v2", "", []string{"main"}},
		"git does not answer":       {"main", "", silent, "v2", "", []string{"main"}},
		"spec names the commit":     {strings.ToUpper(commit1), "", silent, "v2", commit1, nil},
		"spec names another commit": {commit2, "", silent, commit2, commit2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var polled []string
			d, specCommit, err := desiredref.Resolve(rollback(c.spec), func(ref string) (string, error) {
				polled = append(polled, ref)
				return c.answer, c.err
			})
			assert.Equal(t, c.polled, polled)
			if polled == nil {
				require.NoError(t, err)
			} else {
				assert.Equal(t, c.err, err)
			}
			assert.Equal(t, c.ref, d.Ref)
			assert.Equal(t, c.specCommit, specCommit)
		})
	}

	gs := rollback("main")
	annotate(gs, v1alpha1.AnnotationRequestedRef, "-x")
	d, _, err := desiredref.Resolve(gs, func(string) (string, error) { return commit1, nil })
	require.Error(t, err)
	assert.Zero(t, d)
}

// The API server limits the length in characters, not bytes.
func TestRequestWithLongRefLapses(t *testing.T) {
	for _, letter := range []string{"x", "я", "道", "𝔵"} {
		t.Run(letter, func(t *testing.T) {
			long := strings.Repeat(letter, 255)
			rollback := func(requested string) *v1alpha1.GatewaySync {
				gs := verdicts.Smallest()
				gs.Spec.Git.Ref = long
				annotate(gs, v1alpha1.AnnotationRequestedRef, requested)
				annotate(gs, v1alpha1.AnnotationRequestedUnless, commit1)
				annotate(gs, v1alpha1.AnnotationRequestedOver, desiredref.RequestOver(requested, long, strings.Repeat("9", 64)))
				return gs
			}
			gs := rollback(commit2)
			assert.Equal(t, commit1, desiredref.InputsOf(gs).Unless(), "the unless of the rollback must be kept")
			d, err := desiredref.Of(gs, commit1)
			require.NoError(t, err)
			assert.Equal(t, commit2, d.Ref)
			d, err = desiredref.Of(gs, strings.Repeat("3", 40))
			require.NoError(t, err)
			assert.Equal(t, long, d.Ref, "the branch has moved on")
			gs = rollback(strings.Repeat(letter, 254) + "y")
			gs.Spec.Git.Ref = "main"
			d, err = desiredref.Of(gs, "")
			require.NoError(t, err)
			assert.Equal(t, "main", d.Ref, "a later change of the spec always wins")
			assert.LessOrEqual(t, utf8.RuneCountInString(d.Lapsed), 768, "the value must fit into status.request.lapsed")
		})
	}
}

func TestRequestedOverTooLong(t *testing.T) {
	gs := verdicts.Smallest()
	annotate(gs, v1alpha1.AnnotationRequestedRef, "v2")
	annotate(gs, v1alpha1.AnnotationRequestedOver, "v2@release "+strings.Repeat("я", 566)) // 577 characters, one too many
	d, err := desiredref.Of(gs, "")
	require.NoError(t, err)
	assert.Equal(t, desiredref.Desired{Ref: "v2", Override: true, Over: "v2@main"}, d)
}

// fleet is a GatewaySync, its branches in git, and an independent model of the expected result. In the model, a request stays
// alive until the spec names another ref, or the branch leaves the commit in requested-unless.
type fleet struct {
	gs      *v1alpha1.GatewaySync
	commits map[string]string
	clock   int

	alive bool
	over  string
	log   []string
}

var walkRefs = []string{"main", "release", "v2", "a@b"}

func (f *fleet) step(r *rand.Rand) {
	f.clock++
	at := fmt.Sprintf("t%d", f.clock)
	ref := walkRefs[r.IntN(len(walkRefs))]
	action := []string{"spec", "spec", "push", "setter", "rollback", "plain", "remove", "poll"}[r.IntN(8)]
	f.log = append(f.log, action+" "+ref)
	a, old := f.gs.Annotations, f.gs.Annotations[v1alpha1.AnnotationRequestedRef]
	spec := f.gs.Spec.Git.Ref
	switch action {
	case "spec":
		f.gs.Spec.Git.Ref = ref
	case "push":
		f.commits[ref] = []string{commit1, commit2}[r.IntN(2)]
	case "setter", "rollback":
		a[v1alpha1.AnnotationRequestedRef] = ref
		a[v1alpha1.AnnotationRequestedOver] = desiredref.RequestOver(ref, spec, at)
		delete(a, v1alpha1.AnnotationRequestedUnless)
		if action == "rollback" {
			a[v1alpha1.AnnotationRequestedUnless] = f.commits[spec]
		}
		f.alive, f.over = true, spec
	case "plain":
		a[v1alpha1.AnnotationRequestedRef] = ref
		if ref != old {
			f.alive, f.over = true, spec
			if rest, ok := strings.CutPrefix(a[v1alpha1.AnnotationRequestedOver], ref+"@"); ok {
				f.over, _, _ = strings.Cut(rest, " ")
			}
		}
	case "remove":
		for _, name := range []string{v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedOver, v1alpha1.AnnotationRequestedUnless} {
			delete(a, name)
		}
		f.alive = false
	case "poll":
		a[v1alpha1.AnnotationRequestedAt] = at
	}
	requested := a[v1alpha1.AnnotationRequestedRef]
	if f.over != f.gs.Spec.Git.Ref {
		f.alive = false
	}
	unless := a[v1alpha1.AnnotationRequestedUnless]
	if over := a[v1alpha1.AnnotationRequestedOver]; over != "" && !strings.HasPrefix(over, requested+"@") {
		unless = "" // belongs to an earlier request
	}
	if unless != "" && requested != f.gs.Spec.Git.Ref && unless != f.commits[f.gs.Spec.Git.Ref] {
		f.alive = false
	}
}

// want returns the ref that the model expects.
func (f *fleet) want() string {
	if f.alive {
		return f.gs.Annotations[v1alpha1.AnnotationRequestedRef]
	}
	return f.gs.Spec.Git.Ref
}

// lead simulates the lead for the current state of the object.
func (f *fleet) lead(t *testing.T) desiredref.Desired {
	t.Helper()
	d, _, err := desiredref.Resolve(f.gs, func(ref string) (string, error) { return f.commits[ref], nil })
	require.NoError(t, err)
	f.gs.Status.Request = d.Status()
	return d
}

// In any order of events: a later change of the spec always wins, a lapsed request stays lapsed when
// the spec returns, a request to poll git changes nothing, and a repeated request takes effect.
func TestDesiredRefProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := &fleet{gs: verdicts.Smallest(), commits: map[string]string{}}
		f.gs.Annotations = map[string]string{}
		for _, ref := range walkRefs {
			f.commits[ref] = commit1
		}
		for range 25 {
			f.step(r)
			d := f.lead(t)
			require.Equal(t, f.want(), d.Ref, "seed %d: %s", seed, strings.Join(f.log, ", "))
			require.Equal(t, d.Ref != f.gs.Spec.Git.Ref, d.Override)
			again := f.lead(t)
			require.Equal(t, d, again, "seed %d: the second evaluation must give the same result", seed)
		}
	}
}

func annotate(gs *v1alpha1.GatewaySync, name, value string) {
	if value == "" {
		return
	}
	if gs.Annotations == nil {
		gs.Annotations = map[string]string{}
	}
	gs.Annotations[name] = value
}

// C20: what the sender says is not enough for a rollback; every record must have the commit.
func TestGoesBack(t *testing.T) {
	has := func(commits ...string) func(string) bool {
		return func(c string) bool { return slices.Contains(commits, c) }
	}
	rollback := desiredref.Desired{Ref: commit2, Override: true, Unless: commit1}
	for name, c := range map[string]struct {
		d      desiredref.Desired
		commit string
		ran    []func(string) bool
		want   bool
	}{
		"every record has it":        {rollback, commit2, []func(string) bool{has(commit1, commit2), has(commit2)}, true},
		"only the status has it":     {rollback, commit2, []func(string) bool{has(commit2), has(commit1)}, false},
		"only the gateway has it":    {rollback, commit2, []func(string) bool{has(commit1), has(commit2)}, false},
		"no record":                  {rollback, commit2, nil, false},
		"commit unknown":             {rollback, "", []func(string) bool{has("")}, false},
		"the commit that it blocks":  {rollback, commit1, []func(string) bool{has(commit1)}, false},
		"a request of an old commit": {desiredref.Desired{Ref: commit2, Override: true}, commit2, []func(string) bool{has(commit2)}, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, c.d.GoesBack(c.commit, c.ran...)) })
	}
}
