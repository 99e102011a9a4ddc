package lead

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

func TestElection(t *testing.T) {
	s := newSite(t, 3)
	agents := map[string]*candidate{}
	for _, pod := range []string{"gw-0", "gw-1", "gw-2"} {
		c := s.candidate(pod, renewsOften)
		agents[c.Identity()] = c
	}
	lead := s.leads()
	require.Contains(t, agents, lead)
	gs := s.runs(s.first, "gw-0", "gw-1", "gw-2")
	target, err := s.targets().Get(t.Context(), "site")
	require.NoError(t, err)
	assert.Equal(t, "refs/heads/main", target.Spec.RefName)
	assert.EqualValues(t, 15, target.Spec.Lead.DurationSeconds)
	require.Len(t, target.OwnerReferences, 1)
	assert.Equal(t, gs.UID, target.OwnerReferences[0].UID)

	s.untilEvents(map[string]int{"g:site:LeadElected": 1, "g:site:RefResolved": 1, "g:site:SyncCompleted": 1, "p:gw-0:SyncCompleted": 1, "p:gw-1:SyncCompleted": 1, "p:gw-2:SyncCompleted": 1})

	before := s.calm(agents, lead)
	statuses, began := agents[lead].wire.count("PATCH status"), time.Now()
	s.untilRenewed(agents[lead], 4)
	for id, c := range agents {
		if id != lead {
			assert.Equal(t, before[id], c.wire.total(), "an agent that does not lead makes no request besides its watch")
		}
	}
	assert.Equal(t, statuses, agents[lead].wire.count("PATCH status"), "the status of an idle fleet is not written")
	assert.LessOrEqual(t, agents[lead].wire.total()-before[lead], 2+int(time.Since(began)/time.Second), "the lead only renews its lock")
	assert.Equal(t, lead, s.leads())
	assert.Equal(t, 1, s.events()["g:site:LeadElected"])
}

func TestLeadHandover(t *testing.T) {
	s := newSite(t, 2)
	one := s.candidate("gw-0")
	require.Equal(t, one.Identity(), s.leads())
	s.runs(s.first, "gw-0", "gw-1")
	two := s.candidate("gw-1")
	s.untilEvents(map[string]int{"g:site:LeadElected": 1, "g:site:RefResolved": 1, "g:site:SyncCompleted": 1})

	holders := s.holders()
	began := time.Now()
	one.stop()
	stopped := time.Since(began)
	require.Eventually(t, func() bool { return s.target().Lead.Holder == two.Identity() }, tenfold, 5*time.Millisecond)
	took := time.Since(began)
	t.Logf("released in %s, handed over in %s", stopped, took)
	assert.Equal(t, []string{one.Identity(), "", two.Identity()}, holders(), "the holder released it; it did not expire")
	assert.Equal(t, s.target().Lead.Transitions, int32(1))

	second := s.Commit("second")
	s.takesAll(second, "gw-0", "gw-1")
	s.until("the new lead sums up", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.LastGood != nil && gs.Status.LastGood.Commit == second
	})
	s.untilEvents(map[string]int{"g:site:LeadElected": 2, "g:site:RefUpdated": 1, "g:site:SyncCompleted": 2})
	assert.Equal(t, 1, s.events()["g:site:RefResolved"], "a new lead does not repeat the Events of the old one")
}

// C4: a frozen lead resumes after another agent took over. Its delayed writes must change nothing.
func TestFrozenLead(t *testing.T) {
	s := newSite(t, 2)
	one := s.candidate("gw-0", func(c *Config) { c.Timing = DefaultTiming(); c.Timing.Lock = 6 * time.Second })
	require.Equal(t, one.Identity(), s.leads())
	s.runs(s.first, "gw-0", "gw-1")
	lost := one.lock.lost()

	thaw := one.wire.freeze()
	defer thaw()
	began := time.Now()
	frozen := one.wire.count("PUT synctargets")
	stale := s.Commit("stale")
	require.Eventually(t, func() bool { return one.wire.count("PUT synctargets") > frozen }, tenfold, 10*time.Millisecond)
	two := s.candidate("gw-1", expiresSoon)
	require.Eventually(t, func() bool { return s.target().Lead.Holder == two.Identity() }, 10*one.Timing.Lock, 50*time.Millisecond)
	assert.Greater(t, time.Since(began), one.Timing.Lock-2*two.Timing.Renew, "no takeover before the lock expires")
	s.untilTarget(stale)
	fresh := s.Commit("fresh")
	s.takesAll(fresh, "gw-0", "gw-1")
	gs := s.until("the new lead sums up", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "True/Synced" && gs.Status.Target.Commit == fresh
	})
	s.addCondition("example.com/Approved")
	before := s.target()

	thaw()
	select {
	case <-lost:
	case <-time.After(tenfold):
		require.Fail(t, "the frozen lead must learn that another agent leads")
	}
	s.untilRenewed(two, 2)
	after := s.target()
	assert.Equal(t, fresh, after.Commit)
	assert.Equal(t, two.Identity(), after.Lead.Holder)
	assert.Equal(t, before.Lead.Transitions, after.Lead.Transitions)
	now := s.sync()
	assert.Equal(t, fresh, now.Status.Target.Commit)
	assert.Equal(t, "True/ByBob", condition(&now.Status, "example.com/Approved"), "conditions of other writers stay")
	assert.Len(t, now.Status.Conditions, len(gs.Status.Conditions)+1)
	assert.False(t, one.Leading())
}

func TestAgentThatCannotLead(t *testing.T) {
	s := newSite(t, 2)
	without := s.candidate("gw-0", func(c *Config) { c.Eligible = func(*v1alpha1.GatewaySync) error { return assert.AnError } })
	without.says(t, "this agent cannot lead")
	_, err := s.targets().Get(t.Context(), "site")
	require.Error(t, err, "no agent leads")
	requests := without.wire.total()
	time.Sleep(3 * time.Second)
	assert.Equal(t, requests, without.wire.total(), "an agent that cannot lead makes no requests")
	with := s.candidate("gw-1")
	assert.Equal(t, with.Identity(), s.leads())
}

// If no agent has the credential that the spec names, one leads to report that, until an agent with the credential arrives.
func TestLeadWithoutCredentialYields(t *testing.T) {
	s := newSite(t, 2)
	lacks := failure.New(v1alpha1.ReasonPodRestartNeeded, "spec.git.auth.token names Secret git, which this pod does not mount: restart the pod")
	without := s.candidate("gw-0", func(c *Config) {
		c.asideLimit = 2 * time.Second
		c.Eligible = func(*v1alpha1.GatewaySync) error { return lacks }
	})
	gs := s.untilReady("False/PodRestartNeeded")
	assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), "names Secret git")
	assert.Equal(t, without.Identity(), s.leads())
	assert.Empty(t, s.git.Requests())

	s.report("gw-1", func(r *v1alpha1.SyncReportStatus) { r.Message = "of a pod that was there before" })
	time.Sleep(time.Second)
	assert.True(t, without.Leading())
	s.gateway("gw-2")
	with := s.candidate("gw-2")
	s.report("gw-2", func(r *v1alpha1.SyncReportStatus) { r.Message = "of a pod that started since" })
	s.untilTarget(s.first)
	assert.Equal(t, with.Identity(), s.leads())
}

// reportsNewer reports as a newer agent would, and waits until the API server also serves the report from its cache.
func (s *site) reportsNewer(name string) {
	s.t.Helper()
	s.report(name, func(r *v1alpha1.SyncReportStatus) { r.Format = v1alpha1.ReportFormat + 1 })
	require.Eventually(s.t, func() bool {
		list, _, err := s.reports().List(s.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && slices.ContainsFunc(list, func(r *v1alpha1.SyncReport) bool { return r.Name == name && r.Status.Format > v1alpha1.ReportFormat })
	}, tenfold, 10*time.Millisecond)
}

func TestOlderAgentDoesNotCampaign(t *testing.T) {
	s := newSite(t, 1)
	s.reportsNewer("gw-0")
	older := s.candidate("gw-0")
	older.says(t, "this agent does not campaign")
	looked := older.wire.count("GET syncreports")
	s.annotate("example.com/look", "again")
	require.Eventually(t, func() bool { return older.wire.count("GET syncreports") > looked }, tenfold, 10*time.Millisecond)
	_, err := s.targets().Get(t.Context(), "site")
	require.Error(t, err)
}

// After a rollback of the agent to an older version, all pods restarted: only the target of the newer version is left.
func TestDowngradedAgentsLead(t *testing.T) {
	s := newSite(t, 1)
	gs := s.sync()
	at := metav1.Now().Rfc3339Copy()
	s.newer(v1alpha1.SyncTargetSpec{Revision: 7, Generation: gs.Generation, Ref: "main", RefName: "refs/heads/main", Commit: s.first, ResolvedAt: &at})
	s.report("gw-0", func(*v1alpha1.SyncReportStatus) {})
	c := s.candidate("gw-0", func(c *Config) { c.asideLimit = 2 * time.Second })
	assert.Equal(t, c.Identity(), s.leads())
	assert.Contains(t, c.log.String(), "waiting for a newer agent to lead")
	s.untilTarget(s.first)
	target := s.target()
	assert.Equal(t, v1alpha1.TargetFormat, target.Format, "the agents of this version can follow it")
	assert.GreaterOrEqual(t, target.Revision, int64(7), "reports on an earlier target do not count")
	s.takes("gw-0")
	s.untilReady("True/Synced")
}

// C13: any token of a gateway can claim a newer format. The claim only delays older agents while a newer agent could still
// lead.
func TestNewerReportDelaysOlderAgents(t *testing.T) {
	s := newSite(t, 1)
	s.reportsNewer("gw-0")
	older := s.candidate("gw-0", func(c *Config) { c.asideLimit = time.Nanosecond }) // so that an agent that started slowly also stands aside once
	assert.Equal(t, older.Identity(), s.leads())
	assert.Contains(t, older.log.String(), "this agent does not campaign")
}

// An evicted pod keeps its report until the pod is deleted.
func TestReportOfEndedPod(t *testing.T) {
	s := newSite(t, 2)
	s.reportsNewer("gw-0")
	pods := s.admin.Core.CoreV1().Pods(s.ns)
	evicted, err := pods.Get(t.Context(), "gw-0", metav1.GetOptions{})
	require.NoError(t, err)
	evicted.Status.Phase = corev1.PodFailed
	_, err = pods.UpdateStatus(t.Context(), evicted, metav1.UpdateOptions{})
	require.NoError(t, err)
	c := s.candidate("gw-1")
	assert.Equal(t, c.Identity(), s.leads())
}

// All candidates compete when the lock becomes free, which is often when the API server has trouble.
func TestCandidateRetriesAfterAPIError(t *testing.T) {
	for request, refused := range map[string]int{"GET syncreports": 0, "POST synctargets": 1} {
		t.Run(request, func(t *testing.T) {
			s := newSite(t, 1)
			c := s.candidateBy(&wire{counts: map[string]int{}, failing: map[string]int{request: 2}}, "gw-0")
			assert.Equal(t, c.Identity(), s.leads())
			assert.Contains(t, c.log.String(), "etcdserver: leader changed")
			assert.NotContains(t, c.log.String(), "does not campaign", "the agent is not too old")
			assert.Equal(t, refused, strings.Count(c.log.String(), "takeover refused"), "C13: an agent that the API server keeps from taking the lock logs this once")
			s.untilTarget(s.first)
		})
	}
}

func TestLeadEndsWithGatewaySync(t *testing.T) {
	s := newSite(t, 1)
	c := s.candidate("gw-0", renewsOften)
	s.untilTarget(s.first)
	s.delete(true)
	require.Eventually(t, func() bool { return !c.Leading() }, tenfold, 20*time.Millisecond)
	s.deleteTarget()
	time.Sleep(3 * c.Timing.Renew)
	_, err := s.targets().Get(t.Context(), "site")
	require.Error(t, err, "the target stays deleted")

	s.create("main")
	s.untilTarget(s.first)
	assert.True(t, strings.HasPrefix(s.leads(), "gw-0_"))
}

// A target left by a deleted GatewaySync of the same name must not count for the new one, although both have generation 1.
func TestTargetOfEarlierGatewaySync(t *testing.T) {
	s := newSite(t, 1)
	c := s.candidate("gw-0")
	s.untilTarget(s.first)
	c.stop()
	s.delete(false)
	s.create("nowhere")
	s.candidate("gw-0")
	gs := s.untilReady("False/RefNotFound")
	got, err := s.targets().Get(t.Context(), "site")
	require.NoError(t, err)
	assert.Empty(t, got.Spec.Commit)
	assert.Equal(t, gs.UID, got.OwnerReferences[0].UID)
}

// calm waits until every agent watches and has tried to become lead, and until the lead has written its status. It returns the
// number of requests of each agent so far.
func (s *site) calm(agents map[string]*candidate, lead string) map[string]int {
	s.t.Helper()
	before, statuses := map[string]int{}, -1
	require.Eventually(s.t, func() bool {
		calm := true
		for id, c := range agents {
			waits := id == lead || c.lockWatch.state().heldByOther && c.wire.count("WATCH synctargets") > 0 && c.wire.total() == before[id]
			calm, before[id] = calm && waits, c.wire.total()
		}
		last := statuses
		statuses = agents[lead].wire.count("PATCH status")
		return calm && statuses == last
	}, 2*tenfold, 2*minStatus)
	return before
}

func TestFiftyCandidatesOneLead(t *testing.T) {
	const n = 50
	s := newSite(t, n, slow)
	agents := map[string]*candidate{}
	for i := range n {
		c := s.candidate(fmt.Sprintf("gw-%d", i), renewsOften)
		agents[c.Identity()] = c
	}
	lead := s.leads()
	s.untilTarget(s.first)
	before := s.calm(agents, lead)
	s.untilRenewed(agents[lead], 4)
	for id, c := range agents {
		if id != lead {
			assert.Equal(t, before[id], c.wire.total(), "%s does not lead", id)
		}
	}
	holders := s.holders()
	began := time.Now()
	go agents[lead].stop()
	require.Eventually(t, func() bool { h := s.target().Lead.Holder; return h != "" && h != lead }, tenfold, 10*time.Millisecond)
	took := time.Since(began)
	time.Sleep(2 * time.Second)
	requests := 0
	for id, c := range agents {
		if id != lead {
			requests += c.wire.total() - before[id]
		}
	}
	t.Logf("handed over in %s, with %d requests of %d candidates", took, requests, n-1)
	assert.Equal(t, []string{lead, "", s.target().Lead.Holder}, holders(), "the holder released it; it did not expire")
	assert.Less(t, requests, 3*n, "most candidates see the new holder before they send a request")
	assert.EqualValues(t, 1, s.target().Lead.Transitions)
}

func TestCandidatesAreSpread(t *testing.T) {
	const moment, times = 100 * time.Millisecond, 300 // moment is the time until the others can see a new holder
	for _, n := range []int{1, 3, 20, 200, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			together := 0
			for range times {
				turns := make([]time.Duration, n)
				for i := range turns {
					turns[i] = startDelay(random.Float64())
				}
				first := slices.Min(turns)
				assert.LessOrEqual(t, first, spread)
				for _, turn := range turns {
					if turn <= first+moment {
						together++
					}
				}
			}
			assert.Less(t, float64(together)/times, 3.0, "few candidates start before they can see the first one")
		})
	}
}

func TestCandidateDelayBounds(t *testing.T) {
	for _, x := range []float64{-1, 0, 1e-300, 0.5, 0.999, 0.9999999, 1, 2} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			assert.GreaterOrEqual(t, startDelay(x), time.Duration(0))
			assert.LessOrEqual(t, startDelay(x), spread)
		})
	}
	assert.Equal(t, spread, startDelay(0))
	assert.Zero(t, startDelay(1))
}

// A client that can write SyncTargets can enter a holder that does not exist. This delays other agents by at most a minute.
func TestLockDurationIsCapped(t *testing.T) {
	for _, c := range []struct {
		seconds int32
		expires time.Duration
	}{{15, 15 * time.Second}, {60, time.Minute}, {3600, time.Minute}, {1 << 30, time.Minute}, {0, v1alpha1.LeadDuration}, {-1, v1alpha1.LeadDuration}} {
		t.Run(fmt.Sprintf("%d seconds", c.seconds), func(t *testing.T) {
			now := time.Unix(1, 0)
			s := newLockWatch("gw-0_1", func() time.Time { return now })
			s.saw(&v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gone", DurationSeconds: c.seconds}}})
			st := s.state()
			assert.True(t, st.heldByOther)
			assert.Equal(t, c.expires, st.expiresIn)
			now = now.Add(c.expires - time.Millisecond)
			assert.False(t, s.state().free)
			now = now.Add(time.Millisecond)
			assert.True(t, s.state().free)
		})
	}
}

// The table of type role.
func TestRoleTransitions(t *testing.T) {
	for from, c := range map[role]struct {
		released, barred role
		led              bool
	}{
		campaigning: {campaigning, excluded, false}, holding: {former, deposed, true}, former: {former, deposed, true},
		excluded: {excluded, excluded, false}, deposed: {deposed, deposed, true},
	} {
		t.Run(string(from), func(t *testing.T) {
			assert.Equal(t, c.released, from.released())
			assert.Equal(t, c.barred, from.barred())
			assert.Equal(t, c.led, from.led())
		})
	}
}
