package lead

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// The lead checks deadlines against times that the previous lead wrote, whose node may have another clock.
func TestADeadlineLastsAsLongAsItSaysWhateverTheClocksOfLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, 2)
		p.fails(1, v1alpha1.ReasonGatewayUnreachable, "refused")
		p.report(1).Target = commitA
		began := time.Now()
		for i, wrong := range []time.Duration{-20 * time.Minute, 0, time.Hour, -time.Hour} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				clock := func() time.Time { return time.Now().Add(wrong) }
				term := newTerm(p, p.look, unmeasured{}, slog.New(slog.DiscardHandler), clock)
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

func TestTimesOfAStatusAreThoseOfTheAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	s.ahead = 20 * time.Minute
	s.candidate("gw-0")
	s.takesAll(s.first, "gw-0")
	gs := s.untilReady("True/Synced")
	is := time.Now().Add(s.ahead)
	assert.WithinDuration(t, is, gs.Status.LastGood.At.Time, tenfold)
	assert.WithinDuration(t, is, meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Time, tenfold)
	assert.WithinDuration(t, is, s.target().ResolvedAt.Time, tenfold)
}

func TestAClockThatWasAheadOnceIsNotTheLastForYears(t *testing.T) {
	s := newScene(t, 2)
	future := metav1.NewTime(noon.AddDate(10, 0, 0))
	s.report(0).Started = &future
	st := s.write()
	assert.Equal(t, commitA, st.LastSyncCommit)
	assert.WithinDuration(t, noon.Add(-time.Minute), st.LastSyncTime.Time, 0, "another one has a time that can be")

	s.moves(commitB)
	s.after(time.Minute).takes(0) // its clock is right by now
	st = s.write()
	assert.Equal(t, commitB, st.LastSyncCommit)
	assert.WithinDuration(t, s.Now, st.LastSyncTime.Time, 0)
	s.after(time.Minute).takes(1)
	assert.WithinDuration(t, s.Now, s.write().LastSyncTime.Time, 0)

	// Each sync counts for a single gateway whose clock is always ahead.
	for _, ahead := range []time.Duration{early / 2, 2 * early, time.Hour} {
		s = newScene(t, 1)
		for i, commit := range []string{commitB, commitA, commitB} {
			s.moves(commit)
			s.after(10 * time.Minute).takes(0)
			at := metav1.NewTime(s.Now.Add(ahead))
			s.report(0).Started = &at
			st = s.write()
			assert.Equal(t, commit, st.LastSyncCommit, "%d, %s ahead", i, ahead)
			assert.WithinDuration(t, at.Time, st.LastSyncTime.Time, 0)
		}
	}
	right := metav1.NewTime(s.after(time.Minute).Now)
	s.moves(commitA)
	s.takes(0)
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "and when it is set right, it goes on from there")
	s.moves(commitB)
	s.after(time.Minute).takes(0)
	earlier := metav1.NewTime(s.Now.Add(-time.Hour))
	s.report(0).Started = &earlier
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "what is earlier is not the last")
}

func TestWorkThatBeganInTheFutureBeginsNow(t *testing.T) {
	s := newScene(t, 1)
	s.moves(commitB)
	st := s.write()
	require.Equal(t, "True/Progressing", condition(st, v1alpha1.ConditionReconciling))
	meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = metav1.NewTime(noon.AddDate(10, 0, 0))
	st = s.after(time.Minute).write()
	assert.WithinDuration(t, s.Now, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime.Time, 0)
	assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	st = s.after(v1alpha1.DefaultProgressDeadline).write()
	assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled), "a deadline comes, whatever the clock was before")
}
