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
	for _, ahead := range []time.Duration{maxClockLead / 2, 2 * maxClockLead, time.Hour} {
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
	assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled), "a deadline comes, whatever the clock was before")
}
