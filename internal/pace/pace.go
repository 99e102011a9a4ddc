// Package pace says how long to wait before something is done again, bounded, jittered, longer after each failure, and waits.
package pace

import (
	"context"
	"math/rand/v2"
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	firstRetry = time.Second
	// MaxRetry bounds the pause between two retries, but for a tenth of jitter.
	MaxRetry = 5 * time.Minute
	// MaxAsked bounds how long a server that is asked can keep us away.
	MaxAsked = time.Hour
	// waiting is how often something is looked at that comes about by itself: a gateway that starts.
	waiting = 2 * time.Second
)

// Backoff is the pause after the nth failure in a row of a class. Period is the pace at which the thing is looked at
// anyway.
func Backoff(class v1alpha1.Class, n int, period time.Duration) time.Duration {
	switch class {
	case v1alpha1.ClassWorking:
		return Jitter(min(waiting*time.Duration(min(n, 8)), MaxRetry))
	case v1alpha1.ClassHeld:
		return Jitter(period)
	case v1alpha1.ClassStalled:
		// Only another spec, commit or secret helps. The first two wake the loop; a secret is a file that may change.
		return Jitter(max(period, time.Minute))
	default:
		return Retry(n, MaxRetry)
	}
}

// Retry is the pause before the nth try after a failure: it doubles from a second up to most.
func Retry(n int, most time.Duration) time.Duration {
	return Jitter(min(firstRetry<<min(max(n-1, 0), 20), most))
}

// TooSlow is the pause after the nth time that something big did not come in the time that there was for it, and was thrown
// away: it doubles from MaxRetry up to most of a day.
func TooSlow(n int) time.Duration {
	return Jitter(MaxRetry << min(max(n-1, 0), 8))
}

// Jitter spreads d by a tenth to either side, so that many agents do not ask at once.
func Jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// Wait waits for d, and reports whether ctx let it: false where ctx ended before.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
