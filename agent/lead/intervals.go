package lead

import (
	"math"
	"math/rand/v2"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
)

const (
	// firstRetry is the pause after a failed write of the target.
	firstRetry = time.Second
	// minPoll is the minimum time between the starts of two polls, however many are requested.
	minPoll = 2 * time.Second
	// maxInherited is how long after its start a lead polls git at the latest, if it adopts the answer of an earlier lead.
	maxInherited = 5 * time.Minute
	// minStatus is the minimum time between two writes of the status, unless the first one caused a conflict. minSummary is the minimum time
	// between two summaries that change nothing.
	minStatus  = time.Second
	minSummary = 100 * time.Millisecond
	// slowdown is the ratio of the pause after a write of the status to the time that the write took, and maxSlowed the longest such pause.
	slowdown, maxSlowed = 10, 10 * time.Second
)

// statusPause returns the pause after a write of the status. A slow API server gets fewer of them: reports that arrive meanwhile share the
// next one.
func statusPause(took time.Duration) time.Duration {
	return max(minStatus, min(slowdown*took, maxSlowed))
}

const (
	// spread is the time over which candidates start when the lock becomes free, and crowd the number of candidates that it is
	// designed for.
	spread = time.Second
	crowd  = 1000
)

// startDelay returns how long a candidate waits before it takes a free lock, for a random x from 0 to 1. Each candidate reads the
// GatewaySync and the reports, so only a few should start before they see that another one was first. Their number is unknown.
// Therefore early times are exponentially rarer than late ones: the first candidate starts soon, and few start in the same
// moment, both among few and among many.
func startDelay(x float64) time.Duration {
	early := math.Log(1-min(max(x, 0), 1)) / math.Log(crowd) // -1 for one of crowd candidates; -Inf for x = 1
	return time.Duration(float64(spread) * max(1+early, 0))
}

// retryIn returns the pause after the nth failed poll in a row. interval is that of polling, and polled whether a ref of this
// kind is polled at all. If it is not, and only a change by the user helps, ok is false.
func retryIn(reason v1alpha1.Reason, n int, interval time.Duration, polled bool) (pause time.Duration, ok bool) {
	switch {
	case reason == v1alpha1.ReasonRefNotFound, reason == v1alpha1.ReasonAmbiguousRef, reason == v1alpha1.ReasonRefNotAllowed,
		reason == v1alpha1.ReasonRefMoved:
		// Git answers, but the ref may be pushed soon. Poll at least as often as for a branch that moves.
		return backoff.Retry(n, interval), polled
	case reason.Class() == v1alpha1.ClassStalled:
		// Another spec wakes the lead; a secret is a file that may change.
		return backoff.Jitter(max(interval, time.Minute)), true
	default:
		return backoff.Retry(n, backoff.MaxRetry), true
	}
}

// question is what a poll depends on. A change causes a new poll at once.
type question struct {
	git         string // the whole spec.git
	request     string // the annotations of the request
	requestedAt string
	rotated     int64 // changes of secrets
}

// same reports whether the answers to both questions are the same, except for their age.
func (q question) same(other question) bool { return q.git == other.git && q.request == other.request }

// pollSchedule schedules the polls of git.
type pollSchedule struct {
	lastQuestion question  // the question of the last poll
	began        time.Time // start of the last poll, zero for none
	due          time.Time // the next regular poll, zero for never
	notBefore    time.Time // no polls before this time, by request of the server
	failed       int       // number of failures in a row
	running      bool
}

// next returns when to poll for q; zero for never.
func (s *pollSchedule) next(q question, now time.Time) time.Time {
	if s.running {
		return time.Time{}
	}
	at := s.due
	if s.began.IsZero() || q != s.lastQuestion {
		at = now
	}
	if at.IsZero() {
		return at
	}
	if !s.began.IsZero() {
		at = later(at, s.began.Add(minPoll))
	}
	if q.git == s.lastQuestion.git { // another server did not ask for this pause
		at = later(at, s.notBefore)
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// setInterval adopts another polling interval.
func (s *pollSchedule) setInterval(interval time.Duration, polled bool, now time.Time) {
	if s.failed > 0 || s.running || s.began.IsZero() {
		return
	}
	switch latest := now.Add(interval + interval/10 + time.Second); {
	case !polled:
		s.due = time.Time{}
	case s.due.IsZero(), s.due.After(latest):
		s.due = now.Add(backoff.Jitter(interval))
	}
}

// inherit adopts the answer to q of an earlier lead, so that a new lead does not poll at once. When the earlier lead polled is not known, so the
// next poll is due before an interval is over.
func (s *pollSchedule) inherit(q question, interval time.Duration, now time.Time) {
	soon := min(interval, maxInherited) / 2
	s.lastQuestion, s.began, s.due = q, now, now.Add(soon+rand.N(soon))
}

// begin records the start of a poll for q.
func (s *pollSchedule) begin(q question, now time.Time) {
	if !q.same(s.lastQuestion) {
		s.failed = 0
	}
	s.lastQuestion, s.began, s.running = q, now, true
}

// end records the outcome of a poll and schedules the next one.
func (s *pollSchedule) end(reason v1alpha1.Reason, retryAfter, interval time.Duration, polled bool, now time.Time) {
	s.running, s.due, s.notBefore = false, time.Time{}, time.Time{}
	if reason == v1alpha1.ReasonRefResolved {
		s.failed = 0
		if polled {
			s.due = now.Add(backoff.Jitter(interval))
		}
		return
	}
	s.failed++
	pause, ok := retryIn(reason, s.failed, interval, polled)
	if ok {
		s.due = now.Add(pause)
	}
	if retryAfter > 0 {
		s.notBefore = now.Add(min(retryAfter, backoff.MaxRetryAfter))
	}
}
