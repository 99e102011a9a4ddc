package simulator

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// scanner is the state of the scans of one kind, guarded by Gateway.mu.
type scanner struct {
	kind     string
	active   bool
	queued   bool // another pass follows
	last     time.Time
	duration time.Duration
	passes   int

	fault   ScanFault
	changed chan struct{} // closed when the fault is replaced
}

// ScanFault makes scans of one kind fail.
type ScanFault struct {
	// NeverEnds keeps a scan active until the fault is replaced.
	NeverEnds bool `json:"neverEnds"`
	// Fails is how many scans end without a result: nothing is loaded, and lastScanTimestamp does not change.
	Fails int `json:"fails"`
	// Delay replaces Options.ScanDelay.
	Delay time.Duration `json:"-"`
}

// FaultScans replaces the fault of a kind of scans, "projects" or "config". The zero ScanFault removes it.
func (g *Gateway) FaultScans(kind string, f ScanFault) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.scans[kind]
	if s == nil {
		return errKind(kind)
	}
	s.fault = f
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
	return nil
}

// Scan reads a tree again like "Scan File System" of the web interface, and returns when it is done. It needs no token.
func (g *Gateway) Scan(kind string) error {
	g.mu.Lock()
	up, s := g.up, g.scans[kind]
	g.mu.Unlock()
	if s == nil {
		return errKind(kind)
	}
	return g.pass(up, s)
}

// Scans returns the number of successful passes over a tree since the last start, including the one of the start.
func (g *Gateway) Scans(kind string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.scans[kind]; s != nil {
		return s.passes
	}
	return 0
}

func errKind(kind string) error { return fmt.Errorf("no scans of %q: want projects or config", kind) }

func (g *Gateway) scanner(kind string) *scanner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.scans[kind]
}

// scanStatus returns the answer of the scan routes, or nil if the gateway is not running any more.
func (g *Gateway) scanStatus(kind string) node {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Running {
		return nil
	}
	return g.statusOf(g.scans[kind])
}

func (g *Gateway) statusOf(s *scanner) node {
	return object{{"scanActive", s.active}, {"lastScanTimestamp", g.moment(s.last)}, {"lastScanDuration", s.duration.Milliseconds()}}
}

// postScan starts a scan in the background and releases the scan lock. It returns nil if the gateway is not running any
// more.
func (g *Gateway) postScan(kind string) node {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Running {
		return nil
	}
	g.locks[kind].release()
	s := g.scans[kind]
	before := g.statusOf(s)
	switch up := g.up; {
	case s.active:
		s.queued = s.queued || !g.opts.Unknowns.CoalescePosts
	case g.life.Err() == nil:
		s.active = true
		g.wg.Go(func() { g.runScans(up, s) })
	}
	if g.opts.Unknowns.LateActive {
		return before
	}
	return g.statusOf(s)
}

func (g *Gateway) runScans(up context.Context, s *scanner) {
	for {
		err := g.waitScan(up, s)
		if err == nil {
			err = g.pass(up, s)
		}
		if err != nil && up.Err() == nil {
			g.logs.add(levelError, "ScanFileSystem", s.kind+" scan: "+err.Error())
		}
		g.mu.Lock()
		more := s.queued && up.Err() == nil
		s.active, s.queued = more, false
		g.mu.Unlock()
		if !more {
			return
		}
	}
}

var errScanFault = errors.New("the scan failed")

// waitScan waits between the request and the reading of the tree, and applies the fault.
func (g *Gateway) waitScan(up context.Context, s *scanner) error {
	g.mu.Lock()
	f, delay := s.fault, g.opts.ScanDelay
	g.mu.Unlock()
	if f.Delay > 0 {
		delay = f.Delay
	}
	if err := sleep(up, delay); err != nil {
		return err
	}
	for {
		g.mu.Lock()
		f, changed := s.fault, s.changed
		if !f.NeverEnds && f.Fails > 0 {
			s.fault.Fails--
		}
		g.mu.Unlock()
		switch {
		case f.NeverEnds:
			select {
			case <-changed:
				continue
			case <-up.Done():
				return up.Err()
			}
		case f.Fails > 0, g.refusesScan(s.kind):
			return errScanFault
		}
		return nil
	}
}

// pass loads the current tree into the snapshot, and copies changes to a peer.
func (g *Gateway) pass(up context.Context, s *scanner) error {
	if err := g.passQuiet(up, s.kind); err != nil {
		return err
	}
	return g.spread()
}

// passQuiet is pass without copying to a peer.
func (g *Gateway) passQuiet(up context.Context, kind string) error {
	s := g.scanner(kind)
	g.saving.Lock()
	defer g.saving.Unlock()
	if up.Err() != nil {
		return up.Err()
	}
	began, now := time.Now(), g.now()
	var problems []problem
	if s.kind == kindProjects {
		problems = g.passProjects()
	} else {
		problems = g.passConfig()
	}
	for _, p := range problems {
		g.logs.add(levelError, "ScanFileSystem", p.String())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range problems {
		if len(g.loadErrors) < maxLoadErrors {
			g.loadErrors = append(g.loadErrors, p.String())
		}
	}
	s.passes++
	s.duration = time.Since(began)
	// No two scans end in the same millisecond.
	s.last = later(now.Add(time.Since(began)), s.last.Add(time.Millisecond))
	return nil
}

const maxLoadErrors = 10_000

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (g *Gateway) passProjects() []problem {
	g.mu.Lock()
	old := g.projects
	g.mu.Unlock()
	loaded, problems := loadProjects(g.root, old)
	for _, p := range loaded {
		if before := old[p.name]; before != nil && g.opts.Unknowns.SkipUnchanged {
			p.tree.keepUnchanged(before.tree)
		}
	}
	for _, p := range loaded {
		if g.older() {
			problems = append(problems, p.tree.readRaw(g.root)...)
		}
		g.signExternal(p.tree, true)
	}
	refuseProjects(g.loadFaultsOf(projectsDir), loaded, old)
	g.mu.Lock()
	g.projects = loaded
	g.mu.Unlock()
	return problems
}

func (g *Gateway) passConfig() []problem {
	g.mu.Lock()
	old := g.config
	g.mu.Unlock()
	loaded, problems := loadConfig(g.root, g.opts.Mode, old)
	for _, c := range loaded {
		if before := old.collection(c.name); before != nil && g.opts.Unknowns.SkipUnchanged {
			c.tree.keepUnchanged(before.tree)
		}
	}
	for _, c := range loaded {
		if g.opts.Unknowns.SignConfig && c.name != "external" && c.name != "local" {
			g.signExternal(c.tree, false)
		}
	}
	refuseConfig(g.loadFaultsOf(resourcesDir), loaded)
	g.mu.Lock()
	g.config = loaded
	g.mu.Unlock()
	return problems
}
