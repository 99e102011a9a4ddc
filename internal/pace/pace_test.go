package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// C10: every pause is above zero and below its bound, for any number of failures.
func TestPausesGrowWithFailuresAndStayWithinTheirBounds(t *testing.T) {
	for _, class := range []v1alpha1.Class{v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld, v1alpha1.ClassStalled} {
		for _, n := range []int{1, 2, 5, 20, 64, 1 << 30} {
			d := Backoff(class, n, 30*time.Second)
			assert.Greater(t, d, 500*time.Millisecond, "%s %d", class, n)
			assert.LessOrEqual(t, d, MaxRetry+MaxRetry/10, "%s %d", class, n)
		}
	}
	assert.Less(t, Backoff(v1alpha1.ClassRetry, 1, time.Hour), 2*time.Second, "the first retry is soon")
	assert.Greater(t, Backoff(v1alpha1.ClassRetry, 30, time.Second), 4*time.Minute, "later ones are rare")
	assert.Less(t, Backoff(v1alpha1.ClassWorking, 1, time.Hour), 3*time.Second, "a gateway that starts is looked at often")
	for _, d := range []time.Duration{0, 1, time.Hour, 1 << 61} {
		j := Jitter(d)
		assert.GreaterOrEqual(t, j, d-d/10)
		assert.LessOrEqual(t, j, d+d/10+1)
	}
}
