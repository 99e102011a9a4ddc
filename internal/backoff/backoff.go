// Package backoff computes bounded, jittered pauses between retries, and waits for them.
package backoff

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	firstRetry = time.Second
	// MaxRetry is the longest pause between retries without a limit of their own, before 10 % jitter.
	MaxRetry = 5 * time.Minute
	// MaxRetryAfter is the longest pause that a server can ask for, for example by Retry-After.
	MaxRetryAfter = time.Hour
	// waiting is the first pause before checking again for what needs no action, such as a gateway that starts. It grows to 16 s.
	waiting = 2 * time.Second
)

// After returns the pause after the nth failure in a row of a class. period is the regular poll interval.
func After(class v1alpha1.Class, n int, period time.Duration) time.Duration {
	switch class {
	case v1alpha1.ClassWorking:
		return Jitter(min(waiting*time.Duration(min(n, 8)), MaxRetry))
	case v1alpha1.ClassHeld:
		return Jitter(period)
	case v1alpha1.ClassStalled:
		// Another spec, commit or Secret ends the pause early. A permission or a certificate that a user changes on the gateway does not.
		return Jitter(min(max(period, time.Minute), MaxRetry))
	default:
		return Retry(n, MaxRetry)
	}
}

// Retry returns the pause before the nth retry. It doubles from one second up to most.
func Retry(n int, most time.Duration) time.Duration {
	return Jitter(min(firstRetry<<min(max(n-1, 0), 20), most))
}

// AfterTimeout returns the pause after the nth time that a large transfer exceeded its time limit and was discarded. It doubles from
// MaxRetry up to about 21 hours.
func AfterTimeout(n int) time.Duration {
	return Jitter(MaxRetry << min(max(n-1, 0), 8))
}

// Jitter varies d by up to 10 % in either direction, so that many agents do not send requests at the same time.
func Jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// ThrottledError has the time that a server asked the client to wait.
type ThrottledError struct {
	Status string // such as "HTTP 429, "; may be empty
	After  time.Duration
}

func (e *ThrottledError) Error() string { return e.Status + "retry after " + e.After.String() }

// Asked returns how long the server asked the client to wait, at most MaxRetryAfter, and whether it did.
func Asked(err error) (time.Duration, bool) {
	t, ok := errors.AsType[*ThrottledError](err)
	if !ok {
		return 0, false
	}
	return min(t.After, MaxRetryAfter), true
}

// Wait waits for d. It returns false if ctx ended first.
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
