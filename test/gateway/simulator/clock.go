package simulator

import (
	"context"
	"time"
)

// now returns the time of the gateway's clock.
func (g *Gateway) now() time.Time {
	return time.Now().Add(g.opts.ClockSkew + time.Duration(g.ahead.Load()))
}

// Advance moves the gateway's clock forward by d: scan locks come closer to their end, and each scan of the projects
// timer that becomes due is done before Advance returns.
func (g *Gateway) Advance(d time.Duration) error {
	if d < 0 {
		d = 0
	}
	end := g.now().Add(d)
	for {
		g.mu.Lock()
		up, due := g.up, g.due
		g.mu.Unlock()
		if due.IsZero() || due.After(end) {
			g.elapse(end.Sub(g.now()))
			return nil
		}
		g.elapse(due.Sub(g.now()))
		if err := g.tick(up); err != nil {
			return err
		}
	}
}

// elapse moves the clock forward.
func (g *Gateway) elapse(d time.Duration) {
	if d <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ahead.Add(int64(d))
	for _, l := range g.locks {
		l.until = l.until.Add(-d)
		l.wake()
	}
}

// startTimer starts the periodic scan of the projects [3P: 300 s, -Dignition.projects.scanFrequency].
func (g *Gateway) startTimer(up context.Context) {
	if g.opts.ProjectsTimer < 0 {
		return
	}
	next := g.now().Add(g.opts.ProjectsTimer)
	g.mu.Lock()
	g.due = next
	g.mu.Unlock()
	g.spawn(func() {
		for {
			g.mu.Lock()
			due := g.due
			g.mu.Unlock()
			if sleep(up, max(due.Sub(g.now()), time.Millisecond)) != nil {
				return
			}
			if err := g.tick(up); err != nil && up.Err() == nil {
				g.logs.add(levelError, "ProjectScan", "timer: "+err.Error())
			}
		}
	})
}

// tick scans the projects if due.
func (g *Gateway) tick(up context.Context) error {
	now := g.now()
	g.mu.Lock()
	due := !g.due.IsZero() && !g.due.After(now) && g.state == Running
	locked := g.locks[kindProjects].held() && !g.opts.Unknowns.TimerIgnoresLock
	if !g.due.IsZero() && !g.due.After(now) {
		g.due = now.Add(g.opts.ProjectsTimer)
	}
	s := g.scans[kindProjects]
	if due && !locked {
		g.timed++
	}
	g.mu.Unlock()
	if !due || locked {
		return nil
	}
	return g.pass(up, s)
}

// TimedScans returns the number of scans that the timer started.
func (g *Gateway) TimedScans() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.timed
}
