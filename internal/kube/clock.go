package kube

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is the clock of the API server, estimated from the Date headers of its answers. Use it to compare times that another
// node or the API server wrote: unsynchronized node clocks differ by minutes or more.
type Clock struct {
	offset atomic.Int64 // nanoseconds that the API server is ahead of this node, as far as the answers prove it
}

// maxRoundTrip is the longest duration of a request whose Date header is used.
const maxRoundTrip = 2 * time.Second

// Now returns the time with the monotonic reading of this node's clock. A nil Clock, and one that has not seen an answer yet,
// returns the time of this node.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(c.offset.Load()))
}

// update updates the offset from the Date header of an answer. The request was sent and answered at these times of this node's clock.
// The header has a resolution of one second, and the API server may have written it at any moment in between, so the answer proves only an
// interval. update takes 0 if that is in the interval, and otherwise the value in it that is nearest to the last offset.
func (c *Clock) update(date string, sent, got time.Time) {
	at, err := http.ParseTime(date)
	if err != nil || got.Sub(sent) > maxRoundTrip {
		return
	}
	first, last := at.Sub(got.Round(0)), at.Add(time.Second).Sub(sent.Round(0))
	if first <= 0 && 0 <= last {
		c.offset.Store(0)
		return
	}
	c.offset.Store(int64(min(max(time.Duration(c.offset.Load()), first), last)))
}

// transport returns a RoundTripper that passes the Date headers of the answers of next to c.
func (c *Clock) transport(next http.RoundTripper) http.RoundTripper { return clockTransport{c, next} }

type clockTransport struct {
	*Clock
	next http.RoundTripper
}

func (l clockTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	answer, err := l.next.RoundTrip(r)
	if err == nil {
		l.update(answer.Header.Get("Date"), sent, time.Now())
	}
	return answer, err
}

// WrappedRoundTripper gives client-go access to the wrapped RoundTripper.
func (l clockTransport) WrappedRoundTripper() http.RoundTripper { return l.next }
