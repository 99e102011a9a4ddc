package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestFutureTimestamps(t *testing.T) {
	s := newScene(t, 2)
	future := metav1.NewTime(noon.AddDate(10, 0, 0))
	s.report(0).Started = &future
	st := s.write()
	assert.WithinDuration(t, noon.Add(-time.Minute), st.LastSyncTime.Time, 0, "the time of another gateway must count")

	s.moves(commitB)
	s.after(time.Minute).takes(0) // its clock is right by now
	st = s.write()
	assert.WithinDuration(t, s.Now, st.LastSyncTime.Time, 0)
	s.after(time.Minute).takes(1)
	assert.WithinDuration(t, s.Now, s.write().LastSyncTime.Time, 0)

	// Each sync counts for a single gateway whose clock is always ahead.
	fast := func(t *testing.T, ahead time.Duration) *scene {
		s := newScene(t, 1)
		// sequence: each sync follows the one before
		for i, commit := range []string{commitB, commitA, commitB} {
			s.moves(commit)
			s.after(10 * time.Minute).takes(0)
			at := metav1.NewTime(s.Now.Add(ahead))
			s.report(0).Started = &at
			st := s.write()
			assert.WithinDuration(t, at.Time, st.LastSyncTime.Time, 0, "sync %d", i)
		}
		return s
	}
	for _, ahead := range []time.Duration{maxClockLead / 2, 2 * maxClockLead} {
		t.Run(ahead.String()+" ahead", func(t *testing.T) { fast(t, ahead) })
	}
	s = fast(t, time.Hour)
	right := metav1.NewTime(s.after(time.Minute).Now)
	s.moves(commitA)
	s.takes(0)
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "after a correction of the clock, new times must count")
	s.moves(commitB)
	s.after(time.Minute).takes(0)
	earlier := metav1.NewTime(s.Now.Add(-time.Hour))
	s.report(0).Started = &earlier
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "an earlier sync must not replace the last one")
}

func TestFutureStartTime(t *testing.T) {
	s := newScene(t, 1)
	s.moves(commitB)
	st := s.write()
	require.Equal(t, "True/Progressing", condition(st, v1alpha1.ConditionReconciling))
	meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = metav1.NewTime(noon.AddDate(10, 0, 0))
	st = s.after(time.Minute).write()
	assert.WithinDuration(t, s.Now, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime.Time, 0)
	assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	st = s.after(v1alpha1.DefaultProgressDeadline).write()
	assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled), "the deadline must not depend on the earlier clock")
}
