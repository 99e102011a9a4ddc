package reconcile

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// The clock of the lead may be wrong. Only the time without a change counts, measured by our clock.
func TestLockIsFree(t *testing.T) {
	const held = 15 // seconds, which is also LeadDuration
	target := func(holder string, renewed time.Time, seconds int32) *v1alpha1.SyncTarget {
		st := &v1alpha1.SyncTarget{}
		st.Spec.Lead = v1alpha1.LeadRecord{Holder: holder, Renewed: &metav1.MicroTime{Time: renewed}, DurationSeconds: seconds}
		return st
	}
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	expired := v1alpha1.LeadDuration + time.Second // when a lock without a change is read again, and found to be free
	t.Run("no SyncTarget", func(t *testing.T) {
		var l lock
		assert.True(t, l.free(nil, noon))
	})
	t.Run("released", func(t *testing.T) {
		var l lock
		released := target("", noon, held)
		assert.False(t, l.free(released, noon), "a lock released now is not free")
		assert.Equal(t, after(expired), l.nextRead)
		assert.False(t, l.free(released, after(v1alpha1.LeadDuration)))
		assert.True(t, l.free(released, after(expired)))
		assert.True(t, l.free(released, after(expired+time.Second)))
	})
	t.Run("renewed", func(t *testing.T) {
		var l lock
		yesterday := noon.Add(-24 * time.Hour) // the lead's clock is a day behind
		assert.False(t, l.free(target("a", yesterday, held), noon), "a lock is not free when it is first seen")
		second := v1alpha1.LeadDuration * 4 / 3 // a lock that was never seen before is read again after 4/3 of its duration
		assert.Equal(t, after(second), l.nextRead)
		renewed := target("a", yesterday.Add(5*time.Second), held)
		assert.False(t, l.free(renewed, after(second)), "a renewed lock is not free")
		third := second + lockReadInterval // one that is being renewed is read once in this interval
		assert.Equal(t, after(third), l.nextRead)
		assert.True(t, l.free(renewed, after(third)))
		assert.False(t, l.free(target("b", noon, held), after(third+time.Second)), "a lock with a new holder is not free")
	})
	t.Run("handover", func(t *testing.T) { // the lock has no holder for a second
		l := lock{holder: "b", renewed: "before", since: noon}
		assert.False(t, l.free(target("", noon, held), noon))
		assert.False(t, l.free(target("c", noon, held), after(time.Second)))
		released := 8 * time.Second
		assert.False(t, l.free(target("", noon, held), after(released)))
		assert.False(t, l.free(target("", noon, held), after(released+v1alpha1.LeadDuration)))
		assert.True(t, l.free(target("", noon, held), after(released+expired)))
	})
	t.Run("lock without duration", func(t *testing.T) { // LeadDuration counts
		var l lock
		assert.False(t, l.free(target("a", noon, 0), noon))
		assert.False(t, l.free(target("a", noon, 0), after(10*time.Second)))
		assert.True(t, l.free(target("a", noon, 0), after(expired)))
	})
	t.Run("lock with a long duration", func(t *testing.T) {
		var l lock
		assert.False(t, l.free(target("gone", noon, 3600), noon))
		assert.False(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration)))
		assert.True(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration+time.Second)), "the duration must be limited to MaxLeadDuration")
	})
}

func TestReportedEventsAreBounded(t *testing.T) {
	var s sentEvents
	for i := range 3 * maxSent {
		s.add(strconv.Itoa(i))
	}
	assert.LessOrEqual(t, len(s.current)+len(s.previous), maxSent)
	assert.True(t, s.has(strconv.Itoa(3*maxSent-1)))
	assert.False(t, s.has("0"))
}

func TestEventName(t *testing.T) {
	long := "a" + strings.Repeat("-", 253)
	assert.Len(t, eventName(long, "k"), len("a")+len(".")+16, "a name without trailing dashes, and 16 hex digits")
	assert.NotEqual(t, eventName("gw-0", "a"), eventName("gw-0", "b"))
	assert.Equal(t, eventName("gw-0", "a"), eventName("gw-0", "a"))
}

func TestForeignPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"x": "y"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}, ServiceAccountName: "web"},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}

// I7: large annotations and many labels of a gateway pod take no memory. A name that is too long is not taken for another one.
func TestGatewayPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant", Annotations: map[string]string{
			"ignition-sync.io/inject": "true", v1alpha1.AnnotationCRName: strings.Repeat("x", 200_000), v1alpha1.AnnotationExcludePatterns: "a",
		}, Labels: map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line", "stoker.io/other": "x"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway"}}},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant",
		Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: strings.Repeat("x", maxValue)},
		Labels:      map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line"}}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}
