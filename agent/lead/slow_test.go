package lead

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// A lead whose renewals are carried out and answered late stays the lead, and repeats none of them.
func TestSlowRenewalKeepsLock(t *testing.T) {
	s := newSite(t, 2, slow)
	one := s.candidate("gw-0", expiresSoon)
	require.Equal(t, one.Identity(), s.leads())
	s.runs(s.first, "gw-0", "gw-1")
	s.candidate("gw-1", expiresSoon)
	expires := func(d time.Duration) func() bool { return func() bool { return s.target().Lead.ValidFor() == d } }
	require.Eventually(t, expires(one.Timing.Lock), tenfold, 10*time.Millisecond)

	const late = slowAnswer * 3 / 2
	one.wire.answersLate(late)
	reads, renewals, began := one.wire.count("GET synctargets"), one.wire.count("PUT synctargets"), time.Now()
	require.Eventually(t, func() bool { return one.wire.count("PUT synctargets")-renewals >= 4 }, 2*tenfold, 100*time.Millisecond)
	during := time.Since(began)
	require.Greater(t, during, one.Timing.Lock, "without the extension another agent would lead by now")
	lead := s.target().Lead
	assert.Equal(t, one.Identity(), lead.Holder)
	assert.Zero(t, lead.Transitions, "no other agent led in between")
	assert.Equal(t, one.Timing.SlowLock, lead.ValidFor(), "the lock outlives a slow renewal")
	assert.True(t, one.Leading(), "the lead may write")
	assert.LessOrEqual(t, one.wire.count("GET synctargets")-reads, 1, "a renewal that was carried out is not looked for")
	assert.LessOrEqual(t, one.wire.count("PUT synctargets")-renewals, int(during/(late+one.Timing.Renew))+2)

	one.wire.answersLate(0)
	second := s.Commit("second")
	s.annotate(v1alpha1.AnnotationRequestedAt, now())
	s.untilTarget(second)
	require.Eventually(t, expires(one.Timing.Lock), 10*one.Timing.SlowFor, 100*time.Millisecond,
		"once the API server is fast, a lead that dies is replaced soon")
}

// A candidate whose API server is slow cannot tell a dead lead from a slow one.
func TestSlowCandidateWaits(t *testing.T) {
	s := newSite(t, 2, slow)
	one := s.candidate("gw-0", expiresSoon)
	require.Equal(t, one.Identity(), s.leads())
	s.untilTarget(s.first)
	two := s.candidate("gw-1", expiresSoon)
	require.Eventually(t, func() bool { return two.lockWatch.state().heldByOther }, tenfold, 10*time.Millisecond)
	before := two.wire.total()
	one.wire.cutIt()
	two.wire.answersLate(2 * slowAnswer)
	require.Eventually(t, func() bool { return two.wire.total() > before && two.lockWatch.state().heldByOther }, tenfold, 50*time.Millisecond,
		"after the lock has expired, a slow read of it extends it")
	assert.Equal(t, one.Identity(), s.target().Lead.Holder)
	assert.LessOrEqual(t, two.wire.total()-before, 1, "it reads the lock once")
	require.Eventually(t, func() bool { return s.target().Lead.Holder == two.Identity() }, 10*two.Timing.SlowLock, 50*time.Millisecond)
}

func TestExtendedLock(t *testing.T) {
	now, lock, slow := time.Unix(1, 0), DefaultTiming().Lock, DefaultTiming().SlowLock
	w := newLockWatch("gw-0_1", func() time.Time { return now })
	seen := func(renewals int32) {
		w.saw(&v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gw-1_1", DurationSeconds: 15, Transitions: renewals}}})
	}
	seen(1)
	now = now.Add(lock)
	require.True(t, w.state().free)
	w.extend(slow)
	assert.True(t, w.state().heldByOther)
	assert.Equal(t, slow-lock, w.state().expiresIn)
	now = now.Add(slow - lock)
	assert.True(t, w.state().free, "the extension is counted from the last renewal")
	seen(2)
	assert.Equal(t, lock, w.state().expiresIn, "the next renewal counts as usual")
}

// Reports that arrive while the API server is slow share a write of the status.
func TestSlowStatusWrites(t *testing.T) {
	duringTerm(t, 50, nil, func(t *testing.T, p *fakeFleet) {
		time.Sleep(10 * time.Second)
		p.mu.Lock()
		p.delay = 3 * time.Second
		p.mu.Unlock()
		before := len(p.times(&p.statuses))
		for i := range 50 {
			p.mu.Lock()
			p.Reports[i].Status.Phase, p.Reports[i].Status.Reason = v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable
			p.mu.Unlock()
			signal(p.wake)
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, len(p.times(&p.statuses))-before, 5)
		time.Sleep(20 * time.Second)
		gs, err := p.sync()
		require.NoError(t, err)
		assert.Equal(t, "0/50", gs.Status.GatewaysReady, "the last report is in the status")
	})
}

// A lead that follows one that has polled git polls at the usual interval. It polls at once if a user asks for a poll or for another ref, the last
// poll failed, or the spec disables polling.
func TestNextLeadDoesNotPollAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*fakeFleet)
		polls  int
	}{
		{name: "the answer is known", change: func(*fakeFleet) {}},
		{name: "new request", polls: 1, change: func(p *fakeFleet) {
			p.change(func(gs *v1alpha1.GatewaySync) {
				gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "now"}
			})
		}},
		{name: "another ref", polls: 1, change: func(p *fakeFleet) {
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = "release", 2 })
		}},
		{name: "polling is disabled", polls: 1, change: func(p *fakeFleet) {
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Enabled = new(bool) })
		}},
		{name: "the last poll failed", polls: 1, change: func(p *fakeFleet) {
			p.change(func(gs *v1alpha1.GatewaySync) {
				meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved).Status = metav1.ConditionFalse
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFakeFleet(t, 3)
				p.lead(func() { time.Sleep(10 * time.Second) })
				require.Len(t, p.times(&p.polls), 1)
				c.change(p)
				p.lead(func() {
					time.Sleep(25 * time.Second)
					assert.Len(t, p.times(&p.polls), 1+c.polls)
					time.Sleep(45 * time.Second)
					assert.GreaterOrEqual(t, len(p.times(&p.polls)), 2, "the regular poll")
				})
			})
		})
	}
}

func TestWrongSecretThenFixed(t *testing.T) {
	s := newSite(t, 1)
	s.git.SetAuth(gitserver.Token("S3CR3T-right"))
	url := s.git.URL("site.git")
	token.Store(url, "S3CR3T-wrong")
	s.candidate("gw-0")
	gs := s.untilReady("False/AuthFailed")
	assert.Equal(t, "True/AuthFailed", condition(&gs.Status, v1alpha1.ConditionStalled))
	require.Eventually(t, func() bool { return s.events()["g:site:RefResolutionFailed"] == 1 }, tenfold, 50*time.Millisecond)
	for _, e := range s.eventList() {
		if e.Reason == v1alpha1.EventRefResolutionFailed {
			assert.Contains(t, e.Note, "AuthFailed")
			assert.Equal(t, corev1.EventTypeWarning, e.Type)
			assert.NotContains(t, e.Note, "S3CR3T")
		}
	}
	told := s.target()
	require.NotNil(t, told.Problem, "the target tells agents that a user must act")
	assert.Equal(t, v1alpha1.ReasonAuthFailed, told.Problem.Reason)
	assert.EqualValues(t, 1, told.Problem.Generation)
	assert.NotContains(t, told.Problem.Message, "S3CR3T")
	assert.EqualValues(t, 1, told.Generation, "the target names the generation of the spec")
	assert.Equal(t, "main", told.Ref)
	assert.Empty(t, told.Commit)

	token.Store(url, "S3CR3T-right")
	s.annotate(v1alpha1.AnnotationRequestedAt, now())
	after := s.untilTarget(s.first)
	assert.Nil(t, after.Problem)
	assert.Equal(t, told.Revision+1, after.Revision)
	s.takes("gw-0")
	s.untilReady("True/Synced")
}

func TestSpecDuringGitOutage(t *testing.T) {
	s := newSite(t, 1, slow, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"gw-0"}}}}
	})
	s.git.Inject(gitserver.Status(503))
	s.candidate("gw-0")
	s.untilReady("False/GitUnreachable")
	told := s.untilTarget("")
	assert.Equal(t, "main", told.Ref)
	assert.EqualValues(t, 1, told.Generation)
	assert.Nil(t, told.Problem, "a transient error is not a problem of the target")
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at) // before healing, so that an automatic retry sees the request
	s.git.Heal()
	s.untilTarget(s.first)
	require.Eventually(t, func() bool { return s.target().RequestedAt == at }, tenfold, 20*time.Millisecond)
	first := s.target()
	s.takes("gw-0")
	s.untilReady("True/Synced")

	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "release"}, "sync": map[string]any{"defaults": map[string]any{"excludePatterns": []string{"**/*.bak"}}}}})
	s.untilReady("False/RefNotFound")
	require.Eventually(t, func() bool { return s.target().Problem != nil }, tenfold, 20*time.Millisecond)
	told = s.target()
	assert.EqualValues(t, 2, told.Problem.Generation)
	told.Problem, told.Lead, first.Lead = nil, v1alpha1.LeadRecord{}, v1alpha1.LeadRecord{}
	assert.Equal(t, first, told, "gateways keep the commit that they run")
}

func TestPauseReachesAgents(t *testing.T) {
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.git.Inject(gitserver.Status(503))
	s.annotate(v1alpha1.AnnotationPaused, "true", v1alpha1.AnnotationForceSync, "now", v1alpha1.AnnotationRequestedAt, now())
	require.Eventually(t, func() bool { t := s.target(); return t.Paused && t.Requests == annotation.Hash(s.sync()) }, tenfold, 20*time.Millisecond, "a pause does not need git")
	s.until("Ready reports the pause", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "False/Paused" && condition(&gs.Status, v1alpha1.ConditionRefResolved) == "False/GitUnreachable"
	})
}

func TestNewSpecDuringGitOutage(t *testing.T) {
	s := newSite(t, 1)
	s.candidate("gw-0")
	s.takesAll(s.first, "gw-0")
	s.git.Inject(gitserver.Status(503))
	s.patch(map[string]any{"spec": map[string]any{"sync": map[string]any{"defaults": map[string]any{"syncPeriod": 60}}}})
	assert.EqualValues(t, 2, s.untilTarget(s.first).Generation)
	s.until("RefResolved is GitUnreachable", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionRefResolved) == "False/GitUnreachable"
	})
	s.takes("gw-0")
	s.untilReady("True/Synced")
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "release"}}})
	s.until("Ready is GitUnreachable at generation 3", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "False/GitUnreachable" && gs.Status.ObservedGeneration == 3
	})
	assert.EqualValues(t, 2, s.target().Generation, "the target gets the generation with its commit")
}

// newStaged returns a fleet in two stages, the first of which has gw-0. All three gateways ran commitA, and main has commitB.
func newStaged(t *testing.T) *fakeFleet {
	p := newFakeFleet(t, 3)
	gs := p.GatewaySync
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"gw-0"}}, {Name: "prod", Gateways: []string{"*"}}}}
	gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}
	gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: commitA, At: metav1.NewTime(noon)}
	p.held = p.Target
	resolved := metav1.NewTime(noon)
	p.held.Format, p.held.ResolvedAt = v1alpha1.TargetFormat, &resolved
	p.held.Rollout = &v1alpha1.TargetRollout{Revision: 1, Rules: rulesOf(gs), Order: orderOf(gs), Steps: 2, Open: 2, Done: true}
	p.answer = func(int) pollResult { return pollResult{desired: "main", name: "refs/heads/main", commit: commitB} }
	return p
}

// A spec with another ref and other mappings begins a rollout when its ref has a commit. Until then, nothing changes.
func TestSpecWithOtherRefAndMappings(t *testing.T) {
	edit := func(gs *v1alpha1.GatewaySync, ref, destination string) {
		gs.Spec.Git.Ref, gs.Generation = ref, gs.Generation+1
		gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: destination}}}}
	}
	for name, c := range map[string]struct {
		abort bool
		edits []func(*v1alpha1.GatewaySync)
		check func(t *testing.T, was, is v1alpha1.SyncTargetSpec)
	}{
		"a commit of the history": {false, []func(*v1alpha1.GatewaySync){func(gs *v1alpha1.GatewaySync) { edit(gs, "v1", "data") }},
			func(t *testing.T, _, is v1alpha1.SyncTargetSpec) {
				assert.Equal(t, commitB, is.Commit)
				assert.False(t, is.Rollout.Done)
				assert.EqualValues(t, 1, is.Rollout.Open)
			}},
		"a tag that does not exist": {true, []func(*v1alpha1.GatewaySync){func(gs *v1alpha1.GatewaySync) { edit(gs, "v2", "data") }},
			func(t *testing.T, was, is v1alpha1.SyncTargetSpec) { assert.Equal(t, was.Rollout, is.Rollout) }},
		"a tag that does not exist, without stages": {true, []func(*v1alpha1.GatewaySync){func(gs *v1alpha1.GatewaySync) { edit(gs, "v2", "data"); gs.Spec.Deployment = nil }},
			func(t *testing.T, was, is v1alpha1.SyncTargetSpec) { assert.Equal(t, was.Rollout, is.Rollout) }},
		"a tag that does not exist, and back": {true, []func(*v1alpha1.GatewaySync){
			func(gs *v1alpha1.GatewaySync) { edit(gs, "v2", "data") },
			func(gs *v1alpha1.GatewaySync) { edit(gs, "main", "projects") },
		}, func(t *testing.T, was, is v1alpha1.SyncTargetSpec) {
			assert.EqualValues(t, 3, is.Generation)
			assert.Equal(t, was.Rollout, is.Rollout, "the rollout stays aborted")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newStaged(t)
				p.GatewaySync.Status.History = []v1alpha1.CommitRecord{{Ref: "v1", Commit: commitB, At: metav1.NewTime(noon)}}
				if c.abort {
					p.held.Rollout.Done, p.held.Rollout.Open, p.held.Rollout.Failed = false, 1, "stage dev: gw-0 ScanFailed"
				}
				was := p.target()
				p.leadWith(func(_ context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
					time.Sleep(200 * time.Millisecond)
					f := pollResult{question: q, desired: gs.Spec.Git.Ref, commit: map[string]string{"main": commitA, "v1": commitB}[gs.Spec.Git.Ref]}
					if f.commit == "" {
						f.err = failure.New(v1alpha1.ReasonRefNotFound, "there is no %s", f.desired)
					}
					return f
				}, func() {
					for _, edit := range c.edits {
						time.Sleep(5 * time.Second)
						p.change(edit)
					}
					time.Sleep(5 * time.Second)
					synctest.Wait()
				})
				c.check(t, was, p.target())
			})
		})
	}
}

// The API server may carry out a write of the target whose answer is lost. The lead continues from what is published.
func TestLostTargetAnswer(t *testing.T) {
	wait := func() {
		time.Sleep(5 * time.Second)
		synctest.Wait()
	}
	says := func(p *fakeFleet, phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason) {
		r := &p.Reports[0].Status
		r.Phase, r.Reason, r.Commit, r.Target, r.Revision = phase, reason, commitB, commitB, p.held.Revision
	}
	t.Run("when the rollout begins", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newStaged(t)
			p.loseAnswer = func() {}
			p.lead(func() {
				wait()
				is := p.target()
				assert.EqualValues(t, 2, is.Revision, "the rollout begins once")
				assert.EqualValues(t, 2, is.Rollout.Revision)
				assert.EqualValues(t, 1, is.Rollout.Open)
				gs, err := p.sync()
				require.NoError(t, err)
				assert.Equal(t, v1alpha1.RolloutProgressing, gs.Status.Rollout.Phase)
			})
		})
	})
	t.Run("when the rollout aborts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newStaged(t)
			p.lead(func() {
				wait()
				p.mu.Lock()
				revision := p.held.Revision
				says(p, v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed)
				p.loseAnswer = func() { // the gateway reports once more about the revision before
					says(p, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced)
					p.Reports[0].Status.Revision = revision
				}
				p.mu.Unlock()
				signal(p.wake)
				wait()
				is := p.target()
				assert.Contains(t, is.Rollout.Failed, "stage dev: gw-0")
				assert.True(t, is.Rollout.Back)
				assert.EqualValues(t, 1, is.Rollout.Open)
				assert.Equal(t, revision+1, is.Revision)
			})
		})
	})
	t.Run("when a step opens", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newStaged(t)
			p.lead(func() {
				wait()
				p.mu.Lock()
				says(p, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced)
				p.loseAnswer = func() {}
				p.mu.Unlock()
				signal(p.wake)
				wait()
				is := p.target()
				assert.EqualValues(t, 2, is.Rollout.Open)
				assert.EqualValues(t, 2, is.Revision)
				assert.False(t, is.Rollout.Done)
			})
		})
	})
}

// The same on a real API server: each write of the target of a rollout is carried out, and its first answer is lost.
func TestLostAPIServerAnswer(t *testing.T) {
	s := newSite(t, 1, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"gw-0"}}}}
	})
	c := s.synced("gw-0")
	before := s.target().Revision
	c.wire.mu.Lock()
	c.wire.mute = map[string]int{"PUT synctargets": 1}
	c.wire.mu.Unlock()
	s.annotate("stoker.io/force-sync", "now")
	require.Eventually(t, func() bool { return s.target().Requests == annotation.Hash(s.sync()) }, tenfold, 20*time.Millisecond)
	c.wire.mu.Lock()
	c.wire.mute = map[string]int{"PUT synctargets": 1}
	c.wire.mu.Unlock()
	second := s.Commit("second", gitserver.Write("projects/a/project.json", "{ }"))
	s.takesAll(second, "gw-0")
	require.Eventually(t, func() bool { return s.target().Rollout.Done }, tenfold, 20*time.Millisecond)
	target := s.target()
	assert.Equal(t, before+2, target.Revision, "a request and a commit")
	assert.Equal(t, target.Revision, target.Rollout.Revision)
}

// The commit of an artifact is known when its layer has arrived, which takes longer than an answer of git.
func TestPollLimit(t *testing.T) {
	for address, c := range map[string]struct {
		limit time.Duration
		says  string
	}{
		"https://git.example.com/plants/line.git": {5 * time.Minute, "git did not answer within 5m0s"},
		"oci://registry.example.com/plants/line":  {30 * time.Minute, "the layer did not arrive within 30m0s"},
		"oci+http://127.0.0.1:5000/plants/line":   {30 * time.Minute, "the layer did not arrive within 30m0s"},
	} {
		t.Run(address, func(t *testing.T) {
			limit, late := pollLimit(address)
			assert.Equal(t, c.limit, limit)
			assert.ErrorContains(t, late, c.says)
		})
	}
}

// A download of a layer does not keep the fleet from another ref that is desired meanwhile. A poll of git goes on, because it is short.
func TestPollIsAbandoned(t *testing.T) {
	for repository, within := range map[string]time.Duration{"oci://registry.example.com/plants/line": 10 * time.Second, "https://git.example.com/line.git": maxDownload} {
		t.Run(repository, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFakeFleet(t, 1)
				p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Repo, gs.Spec.Git.Ref = repository, "slow" })
				began := time.Now()
				var asked []time.Duration
				p.leadWith(func(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
					asked = append(asked, time.Since(began))
					f := pollResult{question: q, desired: gs.Spec.Git.Ref, commit: strings.Repeat("1", 40)}
					if gs.Spec.Git.Ref == "slow" {
						select {
						case <-ctx.Done():
							f.err = ctx.Err()
						case <-time.After(20 * time.Minute):
						}
					}
					return f
				}, func() {
					time.Sleep(time.Minute)
					p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = "quick", gs.Generation+1 })
					time.Sleep(maxDownload)
				})
				require.GreaterOrEqual(t, len(asked), 2)
				assert.Less(t, asked[1]-time.Minute, within)
				assert.Equal(t, within < time.Minute, asked[1] < 10*time.Minute)
			})
		})
	}
}
