package lead

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// A lead whose renewals are carried out and answered late stays the lead, and repeats none of them.
func TestSlowRenewalKeepsLock(t *testing.T) {
	t.Parallel()
	s := newSite(t, 2, slow)
	one := s.candidate("gw-0", expiresSoon)
	require.Equal(t, one.Identity(), s.leads())
	s.untilTarget(s.first)
	s.takes("gw-0", "gw-1")
	s.untilReady("True/Synced")
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
	t.Parallel()
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
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 50)
		p.lead(func() {
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
	})
}

// A lead that follows one that has polled git polls at the usual interval, and at once if a user asks for it, the last poll failed, or the
// spec disables polling.
func TestNextLeadDoesNotPollAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*paper)
		polls  int
	}{
		{name: "the answer is known", change: func(*paper) {}},
		{name: "new request", polls: 1, change: func(p *paper) {
			p.change(func(gs *v1alpha1.GatewaySync) {
				gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "now"}
			})
		}},
		{name: "another ref", polls: 1, change: func(p *paper) {
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = "release", 2 })
		}},
		{name: "polling is disabled", polls: 1, change: func(p *paper) {
			p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Enabled = new(bool) })
		}},
		{name: "the last poll failed", polls: 1, change: func(p *paper) {
			p.change(func(gs *v1alpha1.GatewaySync) {
				meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved).Status = metav1.ConditionFalse
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaper(t, 3)
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
