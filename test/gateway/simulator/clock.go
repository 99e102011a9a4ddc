package simulator

import (
	"context"
	"time"
)

// now returns the time of the gateway's clock.
func (g *Gateway) now() time.Time {
	return time.Now().Add(g.opts.ClockSkew + time.Duration(g.skipped.Load()))
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
		runCtx, due := g.runCtx, g.timerDue
		g.mu.Unlock()
		if due.IsZero() || due.After(end) {
			g.moveClock(end.Sub(g.now()))
			return nil
		}
		g.moveClock(due.Sub(g.now()))
		if err := g.scanIfDue(runCtx); err != nil {
			return err
		}
	}
}

// moveClock moves the gateway's clock, and with it the end of each scan lock.
func (g *Gateway) moveClock(d time.Duration) {
	if d <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.skipped.Add(int64(d))
	for _, l := range g.locks {
		l.expires = l.expires.Add(-d)
		l.wake()
	}
}

// startTimer starts the periodic scan of the projects [3P: 300 s, -Dignition.projects.scanFrequency].
func (g *Gateway) startTimer(runCtx context.Context) {
	if g.opts.ProjectsTimer < 0 {
		return
	}
	next := g.now().Add(g.opts.ProjectsTimer)
	g.mu.Lock()
	g.timerDue = next
	g.mu.Unlock()
	g.spawn(func() {
		for {
			g.mu.Lock()
			due := g.timerDue
			g.mu.Unlock()
			if sleep(runCtx, max(due.Sub(g.now()), time.Millisecond)) != nil {
				return
			}
			if err := g.scanIfDue(runCtx); err != nil && runCtx.Err() == nil {
				g.logs.add(levelError, "ProjectScan", "timer: "+err.Error())
			}
		}
	})
}

// scanIfDue scans the projects if the timer is due, the gateway runs, and no scan lock forbids it.
func (g *Gateway) scanIfDue(runCtx context.Context) error {
	now := g.now()
	g.mu.Lock()
	due := !g.timerDue.IsZero() && !g.timerDue.After(now) && g.state == Running
	locked := g.locks[kindProjects].held() && !g.opts.Unknowns.TimerIgnoresLock
	if !g.timerDue.IsZero() && !g.timerDue.After(now) {
		g.timerDue = now.Add(g.opts.ProjectsTimer)
	}
	if due && !locked {
		g.timerScans++
	}
	g.mu.Unlock()
	if !due || locked {
		return nil
	}
	return g.scanAndReplicate(runCtx, kindProjects)
}

// TimedScans returns the number of scans that the timer started.
func (g *Gateway) TimedScans() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.timerScans
}
