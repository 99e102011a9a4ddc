package standalone

import (
	"math/rand/v2"
	"time"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
)

const (
	firstRetry = time.Second
	maxRetry   = 5 * time.Minute
	// waiting is how often something is looked at that comes about by itself: a gateway that starts.
	waiting = 2 * time.Second
)

// backoff is the pause after the nth failure in a row of a class. Period is the pace at which the thing is looked at
// anyway.
func backoff(class v1alpha1.Class, n int, period time.Duration) time.Duration {
	switch class {
	case v1alpha1.ClassWorking:
		return jitter(min(waiting*time.Duration(min(n, 8)), maxRetry))
	case v1alpha1.ClassHeld:
		return jitter(period)
	case v1alpha1.ClassStalled:
		// Only another spec, commit or secret helps. The first two wake the loop; a secret is a file that may change.
		return jitter(max(period, time.Minute))
	default:
		return jitter(min(firstRetry<<min(n-1, 20), maxRetry))
	}
}

// jitter spreads d by a tenth to either side, so that many agents do not ask at once.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// interval is how often git is asked about a moving ref. A spec that is in force has been validated.
func (l *Loop) interval() time.Duration {
	d, err := l.spec.gs.Spec.Polling.Period()
	if err != nil {
		return v1alpha1.DefaultPollingInterval
	}
	return d
}

// deadline is how long Once waits for what comes about by itself.
func (l *Loop) deadline() time.Duration {
	if l.spec.gs == nil {
		return v1alpha1.DefaultProgressDeadline
	}
	d, err := l.spec.gs.Spec.Deadline()
	if err != nil {
		return v1alpha1.DefaultProgressDeadline
	}
	return d
}

// polled reports whether the ref can move by itself: a commit cannot.
func polled(gs *v1alpha1.GatewaySync, name string) bool {
	ref, err := repo.ParseRef(name)
	_, fixed := ref.Commit()
	return gs.Spec.Polling.IsEnabled() && err == nil && !fixed
}

// remoteName is the repository's URL without credentials.
func remoteName(gs *v1alpha1.GatewaySync) string {
	u, err := repo.ParseURL(gs.Spec.Git.Repo)
	if err != nil {
		return "(invalid)"
	}
	return u.String()
}
