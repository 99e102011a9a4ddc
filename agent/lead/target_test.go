package lead

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

func TestRevisionCounts(t *testing.T) {
	s := v1alpha1.SyncTargetSpec{Format: 1, Ref: "main", Commit: commitA, Lead: v1alpha1.LeadRecord{Holder: "gw-0", Transitions: 3}}
	asks := func(name string) func(*v1alpha1.SyncTargetSpec) {
		gs := &v1alpha1.GatewaySync{}
		gs.Annotations = map[string]string{name: commitA}
		return func(s *v1alpha1.SyncTargetSpec) { s.Requests = annotation.Hash(gs) }
	}
	tell := func(change func(*v1alpha1.SyncTargetSpec)) int64 {
		want := *s.DeepCopy()
		want.Lead = v1alpha1.LeadRecord{Holder: "outdated"}
		change(&want)
		setTarget(&s, want, 0)
		return s.Revision
	}
	// sequence: each change raises the revision of the one before
	for i, change := range []func(*v1alpha1.SyncTargetSpec){
		func(s *v1alpha1.SyncTargetSpec) { s.Commit = commitB },
		func(s *v1alpha1.SyncTargetSpec) { s.Commit = commitA },
		func(s *v1alpha1.SyncTargetSpec) { s.Ref = "v2" },
		func(s *v1alpha1.SyncTargetSpec) { s.RefName = "refs/tags/v2" },
		func(s *v1alpha1.SyncTargetSpec) { s.Generation++ },
		asks(v1alpha1.AnnotationForceSync),
		asks(v1alpha1.AnnotationConfirmDeletion),
		asks(v1alpha1.AnnotationRestore),
		func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "now" },
		asks(v1alpha1.AnnotationRetry),
		func(s *v1alpha1.SyncTargetSpec) { s.Paused = true },
	} {
		assert.EqualValues(t, i+1, tell(change), "change %d", i)
	}
	assert.EqualValues(t, 11, tell(func(*v1alpha1.SyncTargetSpec) {}), "nothing changed")
	assert.EqualValues(t, 11, tell(func(s *v1alpha1.SyncTargetSpec) {
		s.Problem = &v1alpha1.TargetProblem{Reason: v1alpha1.ReasonAuthFailed}
	}))
	assert.NotNil(t, s.Problem)
	assert.EqualValues(t, 12, tell(asks("")), "the retry ends")
	for name, what := range map[string]string{v1alpha1.AnnotationPropose: "a proposal", v1alpha1.AnnotationApproved: "an approval"} { // sequence: each replaces the one before
		before := s.Requests
		assert.EqualValues(t, 12, tell(asks(name)), "no report becomes outdated by %s", what)
		assert.NotEqual(t, before, s.Requests)
	}
	assert.Equal(t, v1alpha1.LeadRecord{Holder: "gw-0", Transitions: 3}, s.Lead, "setTarget does not write the lock")

	for _, odd := range []int64{math.MaxInt64, math.MinInt64, maxRevision} {
		t.Run(fmt.Sprintf("after revision %d", odd), func(t *testing.T) {
			s.Revision = odd
			assert.EqualValues(t, 1, tell(func(s *v1alpha1.SyncTargetSpec) { s.Generation++ }), "the revision starts again at 1, because the API rejects a larger one")
		})
	}
}

func TestRecreatedTargetContinuesRevision(t *testing.T) {
	s := newFleet(3)
	s.Reports[0].Status.Revision, s.Reports[1].Status.Revision, s.Reports[2].Status.Revision = 7, math.MaxInt64, -3
	assert.EqualValues(t, 7, highestRevision(s.Reports))
	var made v1alpha1.SyncTargetSpec
	setTarget(&made, s.Target, highestRevision(s.Reports))
	assert.EqualValues(t, 8, made.Revision)
	assert.Zero(t, highestRevision(nil))
}

func TestProblemOfTarget(t *testing.T) {
	desired := status.Ref{Desired: desiredref.Desired{Ref: "main"}}
	given := func(err error) status.Ref { r := desired; r.Err = err; return r }
	fail := func(reason v1alpha1.Reason) status.Ref {
		return given(failure.New(reason, "why: %s", strings.Repeat("é", 999)))
	}
	gs := newFleet(0).GatewaySync
	gs.Generation = 4
	of := func(was v1alpha1.SyncTargetSpec, invalid error, ref status.Ref) v1alpha1.SyncTargetSpec {
		setProblem(&was, gs, invalid, ref)
		return was
	}
	var none v1alpha1.SyncTargetSpec
	got := of(none, nil, fail(v1alpha1.ReasonAuthFailed))
	require.NotNil(t, got.Problem)
	assert.EqualValues(t, 4, got.Problem.Generation)
	assert.Equal(t, v1alpha1.ReasonAuthFailed, got.Problem.Reason)
	assert.True(t, strings.HasPrefix(got.Problem.Message, "why: ") && len(got.Problem.Message) <= 512)
	assert.Equal(t, "main", got.Ref)
	assert.EqualValues(t, 4, got.Generation)
	assert.Empty(t, got.Commit)

	assert.Equal(t, got, of(got, nil, desired), "the problem stays during a poll")
	away := of(got, nil, fail(v1alpha1.ReasonGitUnreachable))
	assert.Nil(t, away.Problem)
	assert.EqualValues(t, 4, away.Generation, "the deadline of the spec reaches the agents")
	assert.Nil(t, of(none, nil, fail(v1alpha1.ReasonPodRestartNeeded)).Problem, "other agents may have the credential")
	assert.Equal(t, v1alpha1.ReasonProfilesInvalid, of(none, assert.AnError, status.Ref{Polled: true}).Problem.Reason)
	odd := given(failure.New(v1alpha1.ReasonRefNotFound, "no ref"))
	odd.Desired.Ref = "a..b"
	assert.Empty(t, of(none, nil, odd).Ref, "agents refuse a target with such a ref as a whole")

	running := newFleet(0).Target
	got = of(running, nil, fail(v1alpha1.ReasonRefNotFound))
	assert.EqualValues(t, 4, got.Problem.Generation)
	got.Problem = nil
	assert.Equal(t, running, got, "the rest of the target stays")
}

// P9: agents learn that the ref of their target has moved, also while git is polled again.
func TestMovedTarget(t *testing.T) {
	problem := &v1alpha1.TargetProblem{Generation: 3, Reason: v1alpha1.ReasonRefMoved, Message: "v2 is at bbbbbbb"}
	moved := v1alpha1.NewError(v1alpha1.ReasonRefMoved, "v2 is at bbbbbbb")
	target := v1alpha1.SyncTargetSpec{Generation: 3, Ref: "v2", Commit: commitA}
	with := target
	with.Problem = problem
	other := with
	other.Commit = commitB
	for name, c := range map[string]struct {
		is   v1alpha1.SyncTargetSpec
		ref  status.Ref
		want *v1alpha1.TargetProblem
	}{
		"moved":               {target, status.Ref{Err: moved, Polled: true}, problem},
		"polled again":        {with, status.Ref{}, problem},
		"back":                {with, status.Ref{Polled: true}, nil},
		"another target":      {other, status.Ref{}, nil},
		"git does not answer": {target, status.Ref{Err: v1alpha1.NewError(v1alpha1.ReasonGitUnreachable, "away"), Polled: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			want := target
			want.Problem = c.is.Problem
			setMoved(&want, c.is, c.ref)
			assert.Equal(t, c.want, want.Problem)
		})
	}
}

// If a GatewaySync has no stages, windows or snapshots, the target has no fields for them, and one commit is one write of the target.
func TestPlainTarget(t *testing.T) {
	resolved := metav1.NewTime(noon)
	duringTerm(t, 3, func(p *fakeFleet) {
		p.held = p.Target
		p.held.Format, p.held.ResolvedAt = v1alpha1.TargetFormat, &resolved
		p.answer = func(n int) pollResult {
			commit := commitA
			if n > 0 {
				commit = commitB
			}
			return pollResult{desired: "main", name: "refs/heads/main", commit: commit}
		}
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(30 * time.Second)
		synctest.Wait()
		assert.Empty(t, p.times(&p.targets))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, p.times(&p.targets), 1)
		statuses := len(p.times(&p.statuses))
		p.mu.Lock()
		for _, r := range p.Reports { // setup: the gateways follow
			r.Status.Commit, r.Status.Target, r.Status.Revision = commitB, commitB, p.held.Revision
		}
		p.mu.Unlock()
		signal(p.wake)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Len(t, p.times(&p.targets), 1, "no report changes the target")
		assert.Len(t, p.times(&p.statuses), statuses+1)
		gs, err := p.sync()
		require.NoError(t, err)
		assert.Equal(t, "True/Synced", condition(&gs.Status, v1alpha1.ConditionReady))
		assert.Nil(t, gs.Status.Rollout)
		is := p.target()
		is.ResolvedAt = &resolved
		raw, err := json.Marshal(is)
		require.NoError(t, err)
		assert.Equal(t, `{"format":1,"lead":{},"revision":2,"generation":1,"ref":"main","refName":"refs/heads/main","commit":"`+commitB+
			`","resolvedAt":"2026-01-02T12:00:00Z","requests":"`+annotation.Hash(gs)+`"}`, string(raw))
	})
}

func mapping(source string) v1alpha1.SyncProfile {
	return v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: source, Destination: "projects"}}}
}

// Adding an incomplete profile must not stop gateways of other profiles.
func TestInvalidProfileInUse(t *testing.T) {
	const wrong = "spec.sync.profiles[next].mappings[0].source"
	synctest.Test(t, func(t *testing.T) {
		p := newFakeFleet(t, 2)
		now := func() *v1alpha1.GatewaySyncStatus {
			signal(p.wake)
			time.Sleep(5 * time.Second)
			gs, _ := p.sync()
			return &gs.Status
		}
		p.lead(func() {
			st := now()
			assert.Equal(t, "valid: default", messageOf(st, v1alpha1.ConditionProfilesValid))

			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["next"] = mapping("lines/{{.Vars.line") })
			st = now()
			assert.Equal(t, "True/ProfilesValid", condition(st, v1alpha1.ConditionProfilesValid))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionProfilesValid), "valid: default; used by no gateway, and wrong: next: "+wrong)
			assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
			assert.Empty(t, condition(st, v1alpha1.ConditionStalled))

			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["default"] = mapping("{{end}}") })
			st = now()
			assert.Equal(t, "False/ProfilesInvalid", condition(st, v1alpha1.ConditionReady))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "spec.sync.profiles[default]")
			assert.NotContains(t, messageOf(st, v1alpha1.ConditionReady), "next", "Ready does not report an unused profile")
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["default"] = mapping("projects") })
			assert.Equal(t, "True/Synced", condition(now(), v1alpha1.ConditionReady))

			p.mu.Lock()
			p.Reports[1].Status.Profile = "next"
			p.mu.Unlock()
			st = now()
			assert.Equal(t, "False/ProfilesInvalid", condition(st, v1alpha1.ConditionProfilesValid))
			assert.Equal(t, "True/ProfilesInvalid", condition(st, v1alpha1.ConditionStalled))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), wrong)
		})
	})
}

// An invalid profile matters if a pod uses it, also one whose agent has not reported yet. A spec that is invalid as a whole always matters.
func TestProfilesValid(t *testing.T) {
	mirrored := mapping("projects")
	mirrored.Prune = "mirrored"
	for name, c := range map[string]struct {
		profiles    map[string]v1alpha1.SyncProfile // in addition to the valid profile default
		gateways    int
		asked       string // by another pod, without a report
		ready, want string
		says        string
	}{
		"no profile":      {map[string]v1alpha1.SyncProfile{"next": mapping("{{if}}")}, 1, "", "False/Progressing", "True/ProfilesValid", "valid: default"},
		"default profile": {map[string]v1alpha1.SyncProfile{"next": mapping("{{if}}")}, 1, "default", "False/Progressing", "True/ProfilesValid", "valid: default"},
		"invalid profile": {map[string]v1alpha1.SyncProfile{"next": mapping("{{if}}")}, 1, "next", "False/ProfilesInvalid", "False/ProfilesInvalid", "next"},
		"no gateways": {map[string]v1alpha1.SyncProfile{"b": mapping("{{if}}"), "a": mapping("{{end}}"), "default": mapping("{{end}}")}, 0, "none", "Unknown/NoGateways", "True/ProfilesValid",
			"valid: none; used by no gateway, and wrong: a, b, default: [spec.sync.profiles[a]"},
		"an invalid spec": {map[string]v1alpha1.SyncProfile{"next": mirrored}, 1, "none", "False/ProfilesInvalid", "False/ProfilesInvalid", "prune"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFleet(c.gateways)
			maps.Copy(s.GatewaySync.Spec.Sync.Profiles, c.profiles)
			if c.asked != "none" {
				s.Pods = append(s.Pods, newFleet(2).Pods[1])
				s.Pods[1].Annotations[v1alpha1.AnnotationProfile] = c.asked
			}
			s.Flawed, s.Invalid = validate(s.GatewaySync)
			st := statusOf(s)
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Equal(t, c.want, condition(st, v1alpha1.ConditionProfilesValid))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionProfilesValid), c.says)
		})
	}
}
