package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
)

// A lead whose CRD is older than its agent does not write again and again what the API server drops.
func TestPrunedField(t *testing.T) {
	duringTerm(t, 3, func(p *fakeFleet) {
		p.Subject, p.prunes = "Fill tank 4", true
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, len(p.times(&p.statuses)), 3+int(time.Hour/v1alpha1.ConfirmEvery))
	})
}

// C3, P6: an idle fleet costs polls, a single write of the target, and status writes that only confirm the status.
func TestIdleFleet(t *testing.T) {
	duringTerm(t, 50, nil, func(t *testing.T, p *fakeFleet) {
		time.Sleep(5 * time.Second)
		targets, statuses, polls := len(p.times(&p.targets)), len(p.times(&p.statuses)), len(p.times(&p.polls))
		assert.Equal(t, 1, targets)
		assert.LessOrEqual(t, statuses, 2)
		time.Sleep(time.Hour)
		assert.Len(t, p.times(&p.targets), targets)
		confirmed := p.times(&p.statuses)[statuses:]
		assert.Len(t, confirmed, int(time.Hour/v1alpha1.ConfirmEvery))
		for _, gap := range gaps(confirmed) {
			assert.InDelta(t, v1alpha1.ConfirmEvery, gap, float64(minStatus), "a poll may be confirmed by the same write")
		}
		gs, err := p.sync()
		require.NoError(t, err)
		assert.True(t, gs.Status.Confirmed(time.Now()))
		assert.False(t, gs.Status.Confirmed(time.Now().Add(v1alpha1.ConfirmedFor+time.Second)), "a status without a lead is not confirmed")
		assert.InDelta(t, 60, len(p.times(&p.polls))-polls, 7)
		for _, gap := range gaps(p.times(&p.polls)) {
			assert.InDelta(t, time.Minute, gap, float64(7*time.Second), "jittered by a tenth")
		}
	})
}

// C3: retries back off, and the lead honors the delay that a server asks for. Only one Event reports the failure.
func TestFailedPollBacksOff(t *testing.T) {
	duringTerm(t, 1, func(p *fakeFleet) {
		p.answer = func(n int) pollResult {
			return pollResult{desired: "main", err: failure.New(v1alpha1.ReasonGitUnreachable, "try %d", n)}
		}
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(40 * time.Minute)
		least := minPoll // the first delays are shorter than the minimum between two polls
		for i, gap := range gaps(p.times(&p.polls)) {
			nominal := max(min(firstRetry<<i, backoff.MaxRetry), least)
			assert.InDelta(t, nominal, gap-200*time.Millisecond, float64(nominal)/8+float64(200*time.Millisecond), "pause %d", i)
		}
		assert.InDelta(t, 14, len(p.times(&p.polls)), 3)
		assert.LessOrEqual(t, len(p.times(&p.statuses)), 3+int(40*time.Minute/v1alpha1.ConfirmEvery), "one write for the error, one for the deadline")
		told := 0
		for _, e := range p.sentEvents() {
			if e.Reason == v1alpha1.EventRefResolutionFailed {
				told++
			}
		}
		assert.Equal(t, 1, told)
	})
}

func TestChangedSecretIsTriedOnce(t *testing.T) {
	duringTerm(t, 1, func(p *fakeFleet) {
		p.answer = func(int) pollResult {
			return pollResult{desired: "main", err: failure.New(v1alpha1.ReasonAuthFailed, "refused")}
		}
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(10 * time.Second)
		require.Len(t, p.times(&p.polls), 1, "the next poll is in a minute")
		p.secrets.Add(1)
		signal(p.wake)
		time.Sleep(10 * time.Second)
		require.Len(t, p.times(&p.polls), 2)
		assert.Less(t, gaps(p.times(&p.polls))[0], 11*time.Second)
	})
}

func TestRequestBurst(t *testing.T) {
	duringTerm(t, 1, nil, func(t *testing.T, p *fakeFleet) {
		time.Sleep(10 * time.Second)
		polls := len(p.times(&p.polls))
		var last string
		for i := range 1000 {
			last = fmt.Sprint("at-", i)
			p.change(func(gs *v1alpha1.GatewaySync) {
				gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: last}
			})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		assert.Equal(t, last, p.target().RequestedAt)
		assert.LessOrEqual(t, len(p.times(&p.polls))-polls, 7, "in ten seconds of hints")
		for _, gap := range gaps(p.times(&p.polls)[polls:]) {
			assert.GreaterOrEqual(t, gap, minPoll)
		}
		assert.LessOrEqual(t, len(p.times(&p.statuses)), 26, "at most one a second, in 25 seconds")
	})
}

func TestContinuousReports(t *testing.T) {
	duringTerm(t, 50, nil, func(t *testing.T, p *fakeFleet) {
		time.Sleep(5 * time.Second)
		before := len(p.times(&p.statuses))
		for i := range 2000 {
			p.mu.Lock()
			r := p.Reports[i%50].DeepCopy()
			r.Status.Message = fmt.Sprint("at ", i)
			r.Status.Drift.Files = int32(i + 1)
			p.Reports = append([]*v1alpha1.SyncReport{}, p.Reports...)
			p.Reports[i%50] = r
			p.mu.Unlock()
			signal(p.wake)
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		assert.InDelta(t, 11, len(p.times(&p.statuses))-before, 1)
		for _, gap := range gaps(p.times(&p.statuses)[before:]) {
			assert.GreaterOrEqual(t, gap, minStatus)
		}
		gs, err := p.sync()
		require.NoError(t, err)
		var most int32
		for _, g := range gs.Status.DiscoveredGateways {
			most = max(most, g.Drift)
		}
		assert.EqualValues(t, 2000, most, "the last report is not lost")
	})
}

func TestRefusedStatusBacksOff(t *testing.T) {
	duringTerm(t, 1, func(p *fakeFleet) {
		p.refuse = apierrors.NewForbidden(kube.GatewaySync.Resource().GroupResource(), "site", errors.New("no"))
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(10 * time.Minute)
		assert.Equal(t, commitA, p.target().Commit, "the target is published")
		assert.InDelta(t, 16, len(p.times(&p.statuses)), 4)
		assert.Empty(t, p.sentEvents(), "no Event for a status that was not written")
	})
}

func TestSilentWatch(t *testing.T) {
	for _, c := range []struct {
		name string
		wait time.Duration
		ends error
		most int
	}{
		{"late update", 20 * time.Second, nil, maxConflicts + 1},
		{"no update", time.Hour, errWatchStalled, maxConflicts + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFakeFleet(t, 1)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					done <- newTerm(p, p.poll, unmeasured{}, slog.New(slog.DiscardHandler), time.Now).run(ctx)
				}()
				time.Sleep(10 * time.Second)
				before := len(p.times(&p.statuses))
				p.mu.Lock()
				p.stuck = p.GatewaySync.DeepCopy()
				p.Reports = []*v1alpha1.SyncReport{}
				p.mu.Unlock()
				p.change(func(gs *v1alpha1.GatewaySync) { gs.Labels = map[string]string{"by": "a-user"} })
				time.Sleep(c.wait)
				p.mu.Lock()
				p.stuck = nil
				p.mu.Unlock()
				signal(p.wake)
				time.Sleep(time.Second)
				writes := len(p.times(&p.statuses)) - before
				assert.LessOrEqual(t, writes, c.most)
				assert.Greater(t, writes, 1)
				if c.ends == nil {
					gs, _ := p.sync()
					assert.Equal(t, "False/Progressing", condition(&gs.Status, v1alpha1.ConditionReady), "the lead writes the status as soon as the watch delivers")
					cancel()
				}
				assert.ErrorIs(t, <-done, c.ends)
				cancel()
			})
		})
	}
}

// C3: the lead does not spin if a summary is due before the status may be written again.
func TestSummaryWaitsForRefusedStatus(t *testing.T) {
	term := newTerm(nil, nil, unmeasured{}, slog.New(slog.DiscardHandler), func() time.Time { return noon })
	term.nextSummary, term.nextStatus, term.statusPending = noon.Add(-time.Second), noon.Add(time.Minute), true
	assert.Equal(t, time.Minute, term.pause(question{}))
}

func TestPollingIntervalChange(t *testing.T) {
	duringTerm(t, 1, func(p *fakeFleet) {
		p.GatewaySync.Spec.Polling.Interval = "24h"
	}, func(t *testing.T, p *fakeFleet) {
		time.Sleep(time.Hour)
		assert.Len(t, p.times(&p.polls), 1)
		p.change(func(gs *v1alpha1.GatewaySync) { gs.Generation++; gs.Spec.Polling.Interval = "10s" })
		time.Sleep(time.Minute)
		assert.InDelta(t, 6, len(p.times(&p.polls)), 1)
		off := false
		p.change(func(gs *v1alpha1.GatewaySync) { gs.Generation++; gs.Spec.Polling.Enabled = &off })
		time.Sleep(time.Minute)
		n := len(p.times(&p.polls))
		time.Sleep(24 * time.Hour)
		assert.Len(t, p.times(&p.polls), n)
	})
}

// C10: whatever is requested, polls keep their minimum distance, delays are bounded, and each request causes a poll.
func TestPollSchedule(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 9))
		var polls pollSchedule
		now := noon
		var last time.Time
		intervals := []time.Duration{time.Second, time.Minute, 24 * time.Hour}
		for range 200 {
			q := question{git: "g", request: fmt.Sprint(r.IntN(2)), requestedAt: fmt.Sprint(r.IntN(3))}
			interval := intervals[r.IntN(3)]
			polls.setInterval(interval, r.IntN(2) == 0, now)
			at := polls.next(q, now)
			if q != polls.lastQuestion || polls.began.IsZero() {
				require.False(t, at.IsZero(), "a request causes a poll")
			}
			if at.IsZero() || at.After(now) {
				if !at.IsZero() {
					require.LessOrEqual(t, at.Sub(now), max(backoff.MaxRetryAfter, 27*time.Hour))
				}
				now = now.Add(time.Duration(r.IntN(5000)) * time.Millisecond)
				continue
			}
			if !last.IsZero() {
				require.GreaterOrEqual(t, now.Sub(last), minPoll)
			}
			last = now
			polls.begin(q, now)
			require.True(t, polls.next(question{git: "other"}, now).IsZero(), "one poll at a time")
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			reasons := []v1alpha1.Reason{v1alpha1.ReasonRefResolved, v1alpha1.ReasonGitUnreachable, v1alpha1.ReasonAuthFailed, v1alpha1.ReasonRefNotFound, "Odd"}
			away := time.Duration(r.IntN(3)-1) * time.Duration(r.Int64N(int64(1000*time.Hour)))
			polls.end(reasons[r.IntN(5)], away, interval, r.IntN(2) == 0, now)
		}
	}
}

func TestRetryBounds(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 2, 10, 63, 64, 1 << 30} {
		for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonGitUnreachable, v1alpha1.ReasonAuthFailed, v1alpha1.ReasonRefNotFound} {
			t.Run(fmt.Sprintf("%s after %d failures", reason, n), func(t *testing.T) {
				pause, ok := retryIn(reason, n, time.Second, true)
				assert.True(t, ok)
				assert.GreaterOrEqual(t, pause, 900*time.Millisecond)
				assert.LessOrEqual(t, pause, backoff.MaxRetry+backoff.MaxRetry/10)
			})
		}
	}
	_, ok := retryIn(v1alpha1.ReasonRefNotFound, 1, time.Minute, false)
	assert.False(t, ok, "no retry without polling")
	_, ok = retryIn(v1alpha1.ReasonGitUnreachable, 1, time.Minute, false)
	assert.True(t, ok, "a transient error is retried even without polling")
}

func TestRetryAfterAppliesToRequests(t *testing.T) {
	var polls pollSchedule
	polls.begin(question{git: "g"}, noon)
	polls.end(v1alpha1.ReasonGitThrottled, 10*time.Minute, time.Minute, true, noon)
	assert.Equal(t, noon.Add(10*time.Minute), polls.next(question{git: "g", requestedAt: "now"}, noon.Add(time.Second)))
	assert.Equal(t, noon.Add(minPoll), polls.next(question{git: "another"}, noon.Add(time.Second)), "the delay applies to one server")
}

// The lead checks deadlines against times that the previous lead wrote, whose node may have another clock.
func TestDeadlineIgnoresLeadClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeFleet(t, 2)
		p.unreachable(1)
		began := time.Now()
		// sequence: each lead continues from the status of the one before
		for i, wrong := range []time.Duration{-20 * time.Minute, 0, time.Hour, -time.Hour} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				clock := func() time.Time { return time.Now().Add(wrong) }
				term := newTerm(p, p.poll, unmeasured{}, slog.New(slog.DiscardHandler), clock)
				term.stamp = time.Now
				done <- term.run(ctx)
			}()
			time.Sleep(time.Minute)
			gs, _ := p.sync()
			assert.Equal(t, "True/GatewayUnreachable", condition(&gs.Status, v1alpha1.ConditionReconciling), "lead %d", i)
			if wrong == -time.Hour {
				time.Sleep(v1alpha1.DefaultProgressDeadline - time.Since(began) - time.Second)
				gs, _ = p.sync()
				assert.Equal(t, "True/GatewayUnreachable", condition(&gs.Status, v1alpha1.ConditionReconciling))
				time.Sleep(5 * time.Second)
				gs, _ = p.sync()
				assert.Equal(t, "True/ProgressDeadlineExceeded", condition(&gs.Status, v1alpha1.ConditionStalled))
			}
			cancel()
			assert.NoError(t, <-done)
		}
	})
}

// unmeasured has no metrics.
type unmeasured struct{}

func (unmeasured) Iterated(string, string, time.Duration) {}
func (unmeasured) Resolved(string, time.Duration)         {}
func (unmeasured) Set(metrics.FleetState)                 {}
func (unmeasured) Converged(time.Duration)                {}
func (unmeasured) Elected()                               {}
func (unmeasured) Clear()                                 {}
func (unmeasured) RolledBack(string)                      {}
