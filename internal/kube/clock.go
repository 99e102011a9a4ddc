package kube

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is that of the API server, which says in each answer how late it is. Whoever compares a time with what somebody on
// another node wrote, or the API server, goes by it: clocks of nodes that nobody sets differ by minutes and more.
type Clock struct {
	ahead atomic.Int64 // of this node's, in nanoseconds, as far as that is proven
}

// brisk is how long an answer may take that tells the time.
const brisk = 2 * time.Second

// Now is the time, with the monotonic part of this node's clock. A nil Clock is this node's, and so is one that has not heard
// of an API server yet.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(c.ahead.Load()))
}

// heard takes the time of an answer to a request that was sent and answered when this node's clock said so. A date has no
// parts of a second, and nobody knows at which moment it was written: of what that leaves open, nothing is corrected.
func (c *Clock) heard(date string, sent, got time.Time) {
	at, err := http.ParseTime(date)
	if err != nil || got.Sub(sent) > brisk {
		return
	}
	first, last := at.Sub(got.Round(0)), at.Add(time.Second).Sub(sent.Round(0))
	if first <= 0 && 0 <= last {
		c.ahead.Store(0)
		return
	}
	c.ahead.Store(int64(min(max(time.Duration(c.ahead.Load()), first), last)))
}

// told lets c hear what is answered by way of next.
func (c *Clock) told(next http.RoundTripper) http.RoundTripper { return listener{c, next} }

type listener struct {
	*Clock
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	answer, err := l.next.RoundTrip(r)
	if err == nil {
		l.heard(answer.Header.Get("Date"), sent, time.Now())
	}
	return answer, err
}

// WrappedRoundTripper lets client-go reach what is behind.
func (l listener) WrappedRoundTripper() http.RoundTripper { return l.next }
