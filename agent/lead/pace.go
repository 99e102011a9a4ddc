package lead

import (
	"math"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pace"
)

const (
	firstRetry = time.Second
	// minLook is the least time between the starts of two looks at git, however many ask for one.
	minLook = 2 * time.Second
	// minStatus is the least time between two writes of the status, and minSummary between two summaries that change
	// nothing.
	minStatus  = time.Second
	minSummary = 100 * time.Millisecond
)

const (
	// spread is how far apart candidates begin when the lock becomes free, and crowd the number of them it is made for.
	spread = time.Second
	crowd  = 1000
)

// turnIn is how long a candidate waits, of a random x from 0 to 1, before it takes a lock that is free. Each reads the
// GatewaySync and the reports, so that of many only a few may come before they see that another one was first. Nobody
// knows how many there are: early turns are rarer by as much as later ones are more, so that the first one comes soon of a
// few and of many, and those who come within the same moment are as few of the many as of the few.
func turnIn(x float64) time.Duration {
	early := math.Log(1-min(max(x, 0), 1)) / math.Log(crowd) // -1 for one of a crowd; -Inf for x = 1
	return time.Duration(float64(spread) * max(1+early, 0))
}

// retryIn is the pause after the nth failure in a row to look at git. interval is that of polling, polled whether a ref
// like this one is looked at by the clock; where it is not, and only somebody can help, ok is false.
func retryIn(reason v1alpha1.Reason, n int, interval time.Duration, polled bool) (pause time.Duration, ok bool) {
	switch {
	case reason == v1alpha1.ReasonRefNotFound, reason == v1alpha1.ReasonAmbiguousRef, reason == v1alpha1.ReasonRefNotAllowed,
		reason == v1alpha1.ReasonRefMoved:
		// Git answers, and what it does not have may be about to be pushed. Never slower than a branch that moves is found.
		return pace.Retry(n, interval), polled
	case reason.Class() == v1alpha1.ClassStalled:
		// Another spec wakes the lead; a secret is a file that may change.
		return pace.Jitter(max(interval, time.Minute)), true
	default:
		return pace.Retry(n, pace.MaxRetry), true
	}
}

// question is what git is asked. Where it changes, it is asked again at once.
type question struct {
	git         string // spec.git as a whole
	request     string // the annotations that a request is made of
	requestedAt string
	rotated     int64 // changes of secrets
}

// same is whether the answer to one is that to the other, but for its age.
func (q question) same(other question) bool { return q.git == other.git && q.request == other.request }

// turns says when git is to be looked at.
type turns struct {
	asked   question  // of the last look
	began   time.Time // the last look, zero for none
	due     time.Time // the next one by the clock, zero for never
	barred  time.Time // until when the server wants us away
	failed  int       // in a row
	running bool
}

// next is when to look for q; zero for never.
func (t *turns) next(q question, now time.Time) time.Time {
	if t.running {
		return time.Time{}
	}
	at := t.due
	if t.began.IsZero() || q != t.asked {
		at = now
	}
	if at.IsZero() {
		return at
	}
	if !t.began.IsZero() {
		at = later(at, t.began.Add(minLook))
	}
	if q.git == t.asked.git { // another server has not asked to be left alone
		at = later(at, t.barred)
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// follow takes up another polling interval.
func (t *turns) follow(interval time.Duration, polled bool, now time.Time) {
	if t.failed > 0 || t.running || t.began.IsZero() {
		return
	}
	switch latest := now.Add(interval + interval/10 + time.Second); {
	case !polled:
		t.due = time.Time{}
	case t.due.IsZero(), t.due.After(latest):
		t.due = now.Add(pace.Jitter(interval))
	}
}

// begin notes that a look for q begins.
func (t *turns) begin(q question, now time.Time) {
	if !q.same(t.asked) {
		t.failed = 0
	}
	t.asked, t.began, t.running = q, now, true
}

// end notes how it ended, and when the next one is due by the clock.
func (t *turns) end(reason v1alpha1.Reason, away, interval time.Duration, polled bool, now time.Time) {
	t.running, t.due, t.barred = false, time.Time{}, time.Time{}
	if reason == v1alpha1.ReasonRefResolved {
		t.failed = 0
		if polled {
			t.due = now.Add(pace.Jitter(interval))
		}
		return
	}
	t.failed++
	pause, ok := retryIn(reason, t.failed, interval, polled)
	if ok {
		t.due = now.Add(pause)
	}
	if away > 0 {
		t.barred = now.Add(min(away, pace.MaxAsked))
	}
}
