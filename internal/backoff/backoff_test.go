package backoff

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// C10: every pause is positive and within its bound, for any number of failures.
func TestBackoffGrowsWithinBounds(t *testing.T) {
	for _, class := range []v1alpha1.Class{v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassHeld, v1alpha1.ClassStalled} {
		t.Run(string(class), func(t *testing.T) {
			for _, n := range []int{1, 2, 5, 20, 64, 1 << 30} {
				t.Run(fmt.Sprintf("%d failures", n), func(t *testing.T) {
					d := After(class, n, 30*time.Second)
					assert.Greater(t, d, 500*time.Millisecond)
					assert.LessOrEqual(t, d, MaxRetry+MaxRetry/10)
				})
			}
		})
	}
	assert.Less(t, After(v1alpha1.ClassRetry, 1, time.Hour), 2*time.Second, "the first retry comes within seconds")
	assert.Greater(t, After(v1alpha1.ClassRetry, 30, time.Second), 4*time.Minute, "later retries take minutes")
	assert.Less(t, After(v1alpha1.ClassWorking, 1, time.Hour), 3*time.Second, "a starting gateway is polled often")
	assert.Less(t, After(v1alpha1.ClassStalled, 1, time.Hour), 6*time.Minute, "what a user changes on a gateway is noticed within minutes")
	for _, d := range []time.Duration{0, 1, time.Hour, 1 << 61} {
		t.Run(d.String(), func(t *testing.T) {
			j := Jitter(d)
			assert.GreaterOrEqual(t, j, d-d/10)
			assert.LessOrEqual(t, j, d+d/10+1)
		})
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		assert.True(t, Wait(t.Context(), time.Hour))
		assert.Equal(t, time.Hour, time.Since(began))

		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		began = time.Now()
		assert.False(t, Wait(ctx, time.Hour))
		assert.Equal(t, time.Minute, time.Since(began))
		assert.False(t, Wait(ctx, time.Hour), "Wait must return false after its context ends")
		assert.Equal(t, time.Minute, time.Since(began))
		assert.True(t, Wait(t.Context(), -time.Second))
		assert.Equal(t, time.Minute, time.Since(began), "Wait must return at once if the time is in the past")
	})
}
