package simulator

import (
	"context"
	"sync/atomic"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// clock is the gateway's clock.
type clock struct {
	skew    time.Duration
	skipped atomic.Int64 // nanoseconds that Advance added
	asText  bool         // Unknowns.TimesAsText
}

// now returns the time of the gateway's clock.
func (c *clock) now() time.Time {
	return time.Now().Add(c.skew + time.Duration(c.skipped.Load()))
}

// moment returns a time as the interface reports it.
func (c *clock) moment(t time.Time) ordered.Value {
	if c.asText && !t.IsZero() {
		return t.UTC().Format(time.RFC3339Nano)
	}
	if t.IsZero() {
		return int64(0)
	}
	return t.UnixMilli()
}

// Advance moves the gateway's clock forward by d: scan locks come closer to their end, and each scan of the projects
// timer that becomes due is done before Advance returns.
func (g *Gateway) Advance(d time.Duration) error {
	if d < 0 {
		d = 0
	}
	end := g.clock.now().Add(d)
	for {
		runCtx, due := g.Scans.nextTimed()
		if due.IsZero() || due.After(end) {
			g.moveClock(end.Sub(g.clock.now()))
			return nil
		}
		g.moveClock(due.Sub(g.clock.now()))
		if err := g.Scans.runIfDue(runCtx); err != nil {
			return err
		}
	}
}

// moveClock moves the gateway's clock, and with it the end of each scan lock.
func (g *Gateway) moveClock(d time.Duration) {
	if d <= 0 {
		return
	}
	g.run.mu.Lock()
	defer g.run.mu.Unlock()
	g.clock.skipped.Add(int64(d))
	g.Locks.shortenLocked(d)
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
