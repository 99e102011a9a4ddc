package simulator

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Restart stops the gateway and starts it again. It shows STARTING for d.
func (g *Gateway) Restart(d time.Duration) error {
	g.stop(Starting)
	return g.power(d)
}

// SetState changes the state. Running starts the gateway if it is down, starting or faulted, and commissions it if it
// waits for that. Starting and Faulted last until the next call.
func (g *Gateway) SetState(to State) error {
	now, _ := g.State()
	switch to {
	case Down:
		g.stop(Down)
		g.closeFront()
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
		if err := g.openFront(); err != nil {
			return err
		}
		g.enter(g.life, to, "set by hand")
		return nil
	}
	return fmt.Errorf("no state %q: want DOWN, STARTING, COMMISSIONING, RUNNING or FAULTED", to)
}

// stop ends everything in progress. The port stays open or closed.
func (g *Gateway) stop(next State) {
	g.mu.Lock()
	g.goDown()
	g.up, g.goDown = context.WithCancel(g.life)
	g.forget()
	g.show(next, "") // under the same lock as forget, so that a running gateway never appears without its state
	g.mu.Unlock()
}

// forget drops what a gateway does not keep across a restart. The caller holds mu, or has the only reference.
func (g *Gateway) forget() {
	last := map[string]time.Time{}
	for kind, s := range g.scans {
		if !g.opts.Unknowns.ForgetScans {
			last[kind] = s.last
		}
	}
	g.scans = map[string]*scanner{}
	g.locks = map[string]*scanLock{}
	for _, kind := range []string{kindProjects, kindConfig} {
		g.scans[kind] = &scanner{kind: kind, last: last[kind]}
		g.locks[kind] = &scanLock{}
	}
	g.designers = map[string]*session{}
	g.due = time.Time{}
}

// power starts the gateway.
func (g *Gateway) power(delay time.Duration) error {
	if err := g.openFront(); err != nil {
		return err
	}
	g.enter(g.life, Starting, "")
	g.mu.Lock()
	up := g.up
	g.mu.Unlock()
	if err := g.trySeed(); err != nil {
		return err
	}
	if delay <= 0 {
		return g.boot(up)
	}
	g.spawn(func() {
		if sleep(up, delay) == nil {
			if err := g.boot(up); err != nil {
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
	if g.life.Err() == nil {
		g.wg.Go(f)
	}
}

// boot completes the start after the web server is up.
func (g *Gateway) boot(up context.Context) error {
	if err := g.issueOwn(); err != nil {
		return err
	}
	if err := g.startupFault(); err != nil {
		g.logs.add(levelError, "GatewayContext", "startup failed: "+err.Error())
		g.enter(up, Faulted, err.Error())
		return nil
	}
	g.mu.Lock()
	waits, reset := g.opts.Commissioning, g.opts.ResetPermissions && g.first
	g.mu.Unlock()
	if waits {
		g.enter(up, Commissioning, "")
		return nil
	}
	for _, kind := range []string{kindConfig, kindProjects} {
		if err := g.pass(up, g.scanner(kind)); err != nil && up.Err() == nil {
			return err
		}
	}
	if reset {
		// Commissioning at the first start overwrites the permissions with the defaults.
		into := "core"
		if g.opts.Unknowns.ResetInMode && g.opts.Mode != "" {
			into = g.opts.Mode
		}
		if err := g.putConfig(into, "ignition/security-properties", "initialization", securityProperties(nil)); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.first, g.pending = false, nil
	g.mu.Unlock()
	g.enter(up, Running, "")
	g.startTimer(up)
	return nil
}

// issueOwn issues the gateway's own token once, as soon as a collection can store it.
func (g *Gateway) issueOwn() error {
	if g.older() || g.Token() != "" || !exists(g.root, path.Join(resourcesDir, "core")) {
		return nil
	}
	name, key, _ := strings.Cut(g.opts.Token, ":")
	if name == "" {
		name = "stoker"
	}
	made, err := g.IssueToken(TokenSpec{Name: name, Key: key, Levels: []string{strings.Join(ownLevel, "/")}})
	g.mu.Lock()
	g.token = made
	g.mu.Unlock()
	return err
}

// startupFault returns what prevents a gateway from starting on this data directory.
func (g *Gateway) startupFault() error {
	if err := g.writable(); err != nil {
		return fmt.Errorf("the data directory cannot be written to: %w", err)
	}
	if g.older() {
		return nil // its configuration is in a database
	}
	if !exists(g.root, path.Join(resourcesDir, "core", "config-mode.json")) {
		return errors.New("there is no resource collection core: the data directory was not empty, and so was never seeded")
	}
	external, err := entries(g.root, path.Join(resourcesDir, "external"))
	if err != nil {
		return err
	}
	if len(external) > 0 && !exists(g.root, path.Join(resourcesDir, "external", "config-mode.json")) {
		return errors.New("the collection external exists but is not empty and has no config-mode.json")
	}
	loaded, _ := loadConfig(g.root, g.opts.Mode, nil)
	if lonely := singletonOnlyInMode(loaded, g.opts.Mode); lonely != "" {
		return fmt.Errorf("the singleton %s is defined in the mode %s only: it must be in core or external", lonely, g.opts.Mode)
	}
	_, problems := loadProjects(g.root, nil)
	for _, p := range problems {
		if errors.Is(p.err, errNoAttributes) {
			return fmt.Errorf("ProjectResourceBuilder.setAttributes: %s", p)
		}
	}
	return nil
}

func (g *Gateway) writable() error {
	probe := "var/ignition/probe"
	if err := writeFile(g.root, probe, nil); err != nil {
		return err
	}
	return g.root.Remove(probe)
}

// singletonOnlyInMode returns a singleton resource that only the mode defines, or "".
func singletonOnlyInMode(c config, mode string) string {
	if mode == "" {
		return ""
	}
	for _, name := range c.collection(mode).tree.names("") {
		_, _, in := c.effective(name)
		if strings.Count(name, "/") == 1 && !slices.Contains(in, "core") && !slices.Contains(in, "external") {
			return name
		}
	}
	return ""
}

// enter changes the state, unless up has ended, because then another call controls the state.
func (g *Gateway) enter(up context.Context, to State, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if up.Err() == nil {
		g.show(to, reason)
	}
}

// show is enter for a caller that holds mu.
func (g *Gateway) show(to State, reason string) {
	if g.state != to {
		g.log.Info("simulated gateway", "state", to, "reason", reason)
	}
	g.state, g.reason = to, ""
	if to == Faulted {
		g.reason = reason
	}
}

func (g *Gateway) openFront() error {
	if err := g.front.open(); err != nil {
		return err
	}
	if g.frontTLS == nil {
		return nil
	}
	return g.frontTLS.open()
}

func (g *Gateway) closeFront() {
	for _, d := range []*door{g.front, g.frontTLS} {
		if d != nil {
			d.close()
		}
	}
}
