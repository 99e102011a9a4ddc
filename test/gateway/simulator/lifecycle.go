package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/test/gateway/simulator/access"
	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/port"
)

// Restart stops the gateway and starts it again. With a positive d it returns at once, and the gateway shows STARTING for d.
func (g *Gateway) Restart(d time.Duration) error {
	g.stop(Starting)
	return g.startUp(d)
}

// SetState changes the state. Running starts the gateway if it is down, starting or faulted, and commissions it if it
// waits for that. Starting and Faulted last until the next call.
func (g *Gateway) SetState(to State) error {
	now, _ := g.State()
	switch to {
	case Down:
		g.stop(Down)
		g.closePorts()
		return nil
	case Running:
		if now == Running {
			return nil
		}
		if now == Commissioning {
			g.mu.Lock()
			g.commissioning = false
			g.mu.Unlock()
		}
		return g.Restart(0)
	case Starting, Faulted, Commissioning:
		g.stop(to)
		if err := g.openPorts(); err != nil {
			return err
		}
		g.run.set(g.run.life, to, "set by hand")
		return nil
	}
	return fmt.Errorf("no state %q: want DOWN, STARTING, COMMISSIONING, RUNNING or FAULTED", to)
}

// restartInBackground restarts the gateway as a user of its web interface does.
func (g *Gateway) restartInBackground() {
	g.run.spawn(func() {
		if err := g.Restart(0); err != nil {
			g.log.Error("the simulated gateway could not restart", "error", err)
		}
	})
}

// stop ends everything in progress and shows the state next. It neither opens nor closes ports.
func (g *Gateway) stop(next State) {
	g.run.mu.Lock()
	defer g.run.mu.Unlock()
	g.run.renewLocked()
	g.resetLocked()
	g.run.setLocked(next, "")
}

// resetLocked drops what a gateway does not keep across a restart. The caller holds run.mu.
func (g *Gateway) resetLocked() {
	g.Scans.resetLocked()
	g.Locks.resetLocked()
	g.Designers.resetLocked()
}

// startUp opens the ports, seeds, and completes the startup after delay. If delay is zero, it returns when that is done.
func (g *Gateway) startUp(delay time.Duration) error {
	if err := g.openPorts(); err != nil {
		return err
	}
	g.run.set(g.run.life, Starting, "")
	runCtx := g.run.current()
	if err := g.seedOnce(); err != nil {
		return err
	}
	if delay <= 0 {
		return g.finishStartup(runCtx)
	}
	g.run.spawn(func() {
		if sleep(runCtx, delay) == nil {
			if err := g.finishStartup(runCtx); err != nil {
				g.log.Error("the simulated gateway could not start", "error", err)
			}
		}
	})
	return nil
}

// finishStartup issues the token, loads the data directory and enters the state that follows Starting: Faulted, Commissioning
// or Running. A fault is a state, not an error. A gateway that waits for its commissioning loads nothing yet.
func (g *Gateway) finishStartup(runCtx context.Context) error {
	if err := g.issueOwnToken(); err != nil {
		return err
	}
	if err := g.Data.startupFault(); err != nil {
		g.Logs.add(levelError, "GatewayContext", "startup failed: "+err.Error())
		g.run.set(runCtx, Faulted, err.Error())
		return nil
	}
	g.mu.Lock()
	commission, reset := g.commissioning, g.opts.ResetAlways || g.opts.ResetPermissions && g.firstStart
	g.mu.Unlock()
	if commission {
		g.run.set(runCtx, Commissioning, "")
		return nil
	}
	for _, kind := range []string{kindConfig, kindProjects} {
		if err := g.Scans.scanAndReplicate(runCtx, kind); err != nil && runCtx.Err() == nil {
			return err
		}
	}
	if reset {
		// Commissioning at the first start overwrites the permissions with the defaults.
		collection := "core"
		if g.opts.Unknowns.ResetInMode && g.opts.Mode != "" {
			collection = g.opts.Mode
		}
		if err := g.Data.putConfig(collection, access.PermissionsPath, "initialization", access.Permissions()); err != nil {
			return err
		}
	}
	if g.opts.Unknowns.ForgetScans {
		g.Scans.forget()
	}
	g.mu.Lock()
	g.firstStart = false
	g.mu.Unlock()
	g.Restarts.clear()
	g.run.set(runCtx, Running, "")
	g.Scans.startTimer(runCtx)
	return nil
}

// issueOwnToken issues the token of Gateway.Token once, as soon as the data directory has a collection for it.
func (g *Gateway) issueOwnToken() error {
	if g.opts.before83() || g.Token() != "" || !datadir.Exists(g.root, path.Join(datadir.ResourcesDir, "core")) {
		return nil
	}
	name, key, _ := strings.Cut(g.opts.Token, ":")
	if name == "" {
		name = "stoker"
	}
	issued, err := g.Administrator.IssueToken(TokenSpec{Name: name, Key: key, Levels: []string{ownTokenLevel}})
	g.mu.Lock()
	g.token = issued
	g.mu.Unlock()
	return err
}

func (g *Gateway) openPorts() error {
	if err := g.http.Open(); err != nil {
		return err
	}
	if g.https == nil {
		return nil
	}
	return g.https.Open()
}

func (g *Gateway) closePorts() {
	for _, p := range []*port.Port{g.http, g.https} {
		if p != nil {
			p.Close()
		}
	}
}

// Restarts are the changes that take effect only after a restart.
type Restarts struct {
	restart func() // restarts the gateway in the background
	mu      sync.Mutex
	tasks   []string
}

// SetPending sets the changes that take effect only after a restart. A restart clears the list.
func (p *Restarts) SetPending(tasks ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks = tasks
}

func (p *Restarts) clear() { p.SetPending() }

// getPending answers the pending changes.
func (p *Restarts) getPending(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	tasks := ordered.Array{}
	for _, t := range p.tasks {
		tasks = append(tasks, t)
	}
	p.mu.Unlock()
	writeJSON(w, http.StatusOK, ordered.Object{{"pending", tasks}})
}

// post restarts the gateway, if the parameter confirm says so.
func (p *Restarts) post(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("confirm") != "true" {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"restarting", true}})
	p.restart()
}

// Trial is the trial of a gateway without license.
type Trial struct{ expired atomic.Bool }

// SetExpired ends or resets the trial.
func (t *Trial) SetExpired(expired bool) {
	t.expired.Store(expired)
}

func (t *Trial) isExpired() bool { return t.expired.Load() }

// get answers the state of the trial.
func (t *Trial) get(w http.ResponseWriter, _ *http.Request) {
	state, left, expired := "AllInDemo", "7200", t.isExpired()
	if expired {
		state, left = "NoneInDemo", "0"
	}
	writeJSON(w, http.StatusOK, ordered.Object{
		{"licenseMode", "Trial"}, {"trialState", state}, {"trialSecondsLeft", json.Number(left)}, {"expired", expired}, {"emergency", false},
	})
}

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
