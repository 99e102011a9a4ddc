package simulator

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/port"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// Restart stops the gateway and starts it again. It shows STARTING for d.
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
			g.opts.Commissioning = false
			g.mu.Unlock()
		}
		return g.Restart(0)
	case Starting, Faulted, Commissioning:
		g.stop(to)
		if err := g.openPorts(); err != nil {
			return err
		}
		g.setState(g.lifeCtx, to, "set by hand")
		return nil
	}
	return fmt.Errorf("no state %q: want DOWN, STARTING, COMMISSIONING, RUNNING or FAULTED", to)
}

// stop ends everything in progress and shows the state next. It neither opens nor closes ports.
func (g *Gateway) stop(next State) {
	g.mu.Lock()
	g.cancelRun()
	g.runCtx, g.cancelRun = context.WithCancel(g.lifeCtx)
	g.resetRuntime()
	g.setStateLocked(next, "") // under the same lock as resetRuntime, so that a running gateway never appears without its state
	g.mu.Unlock()
}

// resetRuntime drops what a gateway does not keep across a restart. The caller holds mu, or no other goroutine has g.
func (g *Gateway) resetRuntime() {
	last := map[string]time.Time{}
	for kind, s := range g.scans {
		if !g.opts.Unknowns.ForgetScans {
			last[kind] = s.last
		}
	}
	g.scans = map[string]*scanState{}
	g.locks = map[string]*scanLock{}
	for _, kind := range []string{kindProjects, kindConfig} {
		g.scans[kind] = &scanState{kind: kind, last: last[kind]}
		g.locks[kind] = &scanLock{}
	}
	g.designers = map[string]*session{}
	g.timerDue = time.Time{}
}

// startUp opens the ports, seeds, and completes the startup after delay. If delay is zero, it returns when that is done.
func (g *Gateway) startUp(delay time.Duration) error {
	if err := g.openPorts(); err != nil {
		return err
	}
	g.setState(g.lifeCtx, Starting, "")
	runCtx := g.currentRun()
	if err := g.seedOnce(); err != nil {
		return err
	}
	if delay <= 0 {
		return g.finishStartup(runCtx)
	}
	g.spawn(func() {
		if sleep(runCtx, delay) == nil {
			if err := g.finishStartup(runCtx); err != nil {
				g.log.Error("the simulated gateway could not start", "error", err)
			}
		}
	})
	return nil
}

// spawn runs f in a goroutine, unless the gateway is closed.
func (g *Gateway) spawn(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lifeCtx.Err() == nil {
		g.wg.Go(f)
	}
}

// finishStartup loads the data directory and enters the state that follows Starting. A fault is a state, not an error.
func (g *Gateway) finishStartup(runCtx context.Context) error {
	if err := g.issueOwnToken(); err != nil {
		return err
	}
	if err := g.startupFault(); err != nil {
		g.logs.add(levelError, "GatewayContext", "startup failed: "+err.Error())
		g.setState(runCtx, Faulted, err.Error())
		return nil
	}
	g.mu.Lock()
	commission, reset := g.opts.Commissioning, g.opts.ResetPermissions && g.firstStart
	g.mu.Unlock()
	if commission {
		g.setState(runCtx, Commissioning, "")
		return nil
	}
	for _, kind := range []string{kindConfig, kindProjects} {
		if err := g.scanAndReplicate(runCtx, kind); err != nil && runCtx.Err() == nil {
			return err
		}
	}
	if reset {
		// Commissioning at the first start overwrites the permissions with the defaults.
		collection := "core"
		if g.opts.Unknowns.ResetInMode && g.opts.Mode != "" {
			collection = g.opts.Mode
		}
		if err := g.putConfig(collection, "ignition/security-properties", "initialization", securityProperties(nil)); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.firstStart, g.restartTasks = false, nil
	g.mu.Unlock()
	g.setState(runCtx, Running, "")
	g.startTimer(runCtx)
	return nil
}

// issueOwnToken issues the token of Gateway.Token once, as soon as the data directory has a collection for it.
func (g *Gateway) issueOwnToken() error {
	if g.before83() || g.Token() != "" || !datadir.Exists(g.root, path.Join(datadir.ResourcesDir, "core")) {
		return nil
	}
	name, key, _ := strings.Cut(g.opts.Token, ":")
	if name == "" {
		name = "stoker"
	}
	issued, err := g.IssueToken(TokenSpec{Name: name, Key: key, Levels: []string{strings.Join(ownTokenLevel, "/")}})
	g.mu.Lock()
	g.token = issued
	g.mu.Unlock()
	return err
}

// startupFault returns what prevents a gateway from starting on this data directory, or nil.
func (g *Gateway) startupFault() error {
	if err := g.checkWritable(); err != nil {
		return fmt.Errorf("the data directory cannot be written to: %w", err)
	}
	if g.before83() {
		return nil // its configuration is in a database
	}
	if !datadir.Exists(g.root, path.Join(datadir.ResourcesDir, "core", "config-mode.json")) {
		return errors.New("there is no resource collection core: the data directory was not empty, and so was never seeded")
	}
	external, err := datadir.List(g.root, path.Join(datadir.ResourcesDir, "external"))
	if err != nil {
		return err
	}
	if len(external) > 0 && !datadir.Exists(g.root, path.Join(datadir.ResourcesDir, "external", "config-mode.json")) {
		return errors.New("the collection external exists but is not empty and has no config-mode.json")
	}
	loaded, _ := resource.LoadConfig(g.root, g.opts.Mode, nil)
	if singleton := singletonOnlyInMode(loaded, g.opts.Mode); singleton != "" {
		return fmt.Errorf("the singleton %s is defined in the mode %s only: it must be in core or external", singleton, g.opts.Mode)
	}
	_, problems := resource.LoadProjects(g.root, nil)
	for _, p := range problems {
		if errors.Is(p.Err, resource.ErrNoAttributes) {
			return fmt.Errorf("ProjectResourceBuilder.setAttributes: %s", p)
		}
	}
	return nil
}

func (g *Gateway) checkWritable() error {
	probe := "var/ignition/probe"
	if err := datadir.Write(g.root, probe, nil); err != nil {
		return err
	}
	return g.root.Remove(probe)
}

// singletonOnlyInMode returns a singleton resource that only the mode defines, or "".
func singletonOnlyInMode(c resource.Config, mode string) string {
	if mode == "" {
		return ""
	}
	for _, name := range c.Collection(mode).Tree.Names("") {
		_, _, in := c.Effective(name)
		if strings.Count(name, "/") == 1 && !slices.Contains(in, "core") && !slices.Contains(in, "external") {
			return name
		}
	}
	return ""
}

// setState changes the state, unless runCtx is done: then a later call controls the state.
func (g *Gateway) setState(runCtx context.Context, to State, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if runCtx.Err() == nil {
		g.setStateLocked(to, reason)
	}
}

// setStateLocked is setState for a caller that holds mu. It keeps the reason only for Faulted.
func (g *Gateway) setStateLocked(to State, reason string) {
	if g.state != to {
		g.log.Info("simulated gateway", "state", to, "reason", reason)
	}
	g.state, g.reason = to, ""
	if to == Faulted {
		g.reason = reason
	}
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
