package simulator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
	"stoker.io/stoker/test/gateway/simulator/resource"
)

// scanState is the state of the scans of one kind. Gateway.mu guards it.
type scanState struct {
	kind      string
	active    bool
	queued    bool // another scan follows the active one
	last      time.Time
	duration  time.Duration
	completed int

	fault        ScanFault
	faultChanged chan struct{} // closed when the fault is replaced
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
	if s.faultChanged != nil {
		close(s.faultChanged)
	}
	s.faultChanged = make(chan struct{})
	return nil
}

// Scan reads a tree again like "Scan File System" of the web interface, and returns when it is done. It needs no token.
func (g *Gateway) Scan(kind string) error {
	g.mu.Lock()
	runCtx, known := g.runCtx, g.scans[kind] != nil
	g.mu.Unlock()
	if !known {
		return errKind(kind)
	}
	return g.scanAndReplicate(runCtx, kind)
}

// Scans returns the number of successful scans of a kind since the last start, including the one of the start.
func (g *Gateway) Scans(kind string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.scans[kind]; s != nil {
		return s.completed
	}
	return 0
}

func errKind(kind string) error { return fmt.Errorf("no scans of %q: want projects or config", kind) }

func (g *Gateway) scanState(kind string) *scanState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.scans[kind]
}

// scanStatus returns the answer of the scan routes, or nil if the gateway is not running any more.
func (g *Gateway) scanStatus(kind string) ordered.Value {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Running {
		return nil
	}
	return g.statusOf(g.scans[kind])
}

func (g *Gateway) statusOf(s *scanState) ordered.Value {
	return ordered.Object{{"scanActive", s.active}, {"lastScanTimestamp", g.moment(s.last)}, {"lastScanDuration", s.duration.Milliseconds()}}
}

// postScan starts a scan in the background and releases the scan lock. It returns nil if the gateway is not running any
// more.
func (g *Gateway) postScan(kind string) ordered.Value {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Running {
		return nil
	}
	g.locks[kind].release()
	s := g.scans[kind]
	before := g.statusOf(s)
	switch runCtx := g.runCtx; {
	case s.active:
		s.queued = s.queued || !g.opts.Unknowns.CoalescePosts
	case g.lifeCtx.Err() == nil:
		s.active = true
		g.wg.Go(func() { g.runScans(runCtx, s) })
	}
	if g.opts.Unknowns.LateActive {
		return before
	}
	return g.statusOf(s)
}

func (g *Gateway) runScans(runCtx context.Context, s *scanState) {
	for {
		err := g.delayScan(runCtx, s)
		if err == nil {
			err = g.scanAndReplicate(runCtx, s.kind)
		}
		if err != nil && runCtx.Err() == nil {
			g.logs.add(levelError, "ScanFileSystem", s.kind+" scan: "+err.Error())
		}
		g.mu.Lock()
		more := s.queued && runCtx.Err() == nil
		s.active, s.queued = more, false
		g.mu.Unlock()
		if !more {
			return
		}
	}
}

var errScanFault = errors.New("the scan failed")

// delayScan waits as long as a scan shows as active before it reads the tree. It returns errScanFault if the scan must
// fail.
func (g *Gateway) delayScan(runCtx context.Context, s *scanState) error {
	g.mu.Lock()
	f, delay := s.fault, g.opts.ScanDelay
	g.mu.Unlock()
	if f.Delay > 0 {
		delay = f.Delay
	}
	if err := sleep(runCtx, delay); err != nil {
		return err
	}
	for {
		g.mu.Lock()
		f, changed := s.fault, s.faultChanged
		if !f.NeverEnds && f.Fails > 0 {
			s.fault.Fails--
		}
		g.mu.Unlock()
		switch {
		case f.NeverEnds:
			select {
			case <-changed:
				continue
			case <-runCtx.Done():
				return runCtx.Err()
			}
		case f.Fails > 0, g.scanFails(s.kind):
			return errScanFault
		}
		return nil
	}
}

// scanAndReplicate loads the current tree into the snapshot, and copies changes to a peer.
func (g *Gateway) scanAndReplicate(runCtx context.Context, kind string) error {
	if err := g.scanTree(runCtx, kind); err != nil {
		return err
	}
	return g.replicate()
}

// scanTree is scanAndReplicate without copying to a peer. It fails only if runCtx is done; what it cannot load becomes
// load errors.
func (g *Gateway) scanTree(runCtx context.Context, kind string) error {
	s := g.scanState(kind)
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	if runCtx.Err() != nil {
		return runCtx.Err()
	}
	began, now := time.Now(), g.now()
	var problems []resource.Problem
	if kind == kindProjects {
		problems = g.scanProjects()
	} else {
		problems = g.scanConfig()
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
	s.completed++
	s.duration = time.Since(began)
	// No two scans end in the same millisecond.
	s.last = s.last.Add(time.Millisecond)
	if end := now.Add(time.Since(began)); end.After(s.last) {
		s.last = end
	}
	return nil
}

const maxLoadErrors = 10_000

func (g *Gateway) scanProjects() []resource.Problem {
	old := g.loadedProjects()
	loaded, problems := resource.LoadProjects(g.root, old)
	for _, p := range loaded {
		if before := old[p.Name]; before != nil && g.opts.Unknowns.SkipUnchanged {
			p.Tree.KeepUnchanged(before.Tree)
		}
	}
	for _, p := range loaded {
		if g.before83() {
			problems = append(problems, p.Tree.ReadRaw(g.root)...)
		}
		g.signExternal(p.Tree, true)
	}
	applyProjectFaults(g.activeLoadFaults(datadir.ProjectsDir), loaded, old)
	g.mu.Lock()
	g.projects = loaded
	g.mu.Unlock()
	return problems
}

func (g *Gateway) scanConfig() []resource.Problem {
	old := g.loadedConfig()
	loaded, problems := resource.LoadConfig(g.root, g.opts.Mode, old)
	for _, c := range loaded {
		if before := old.Collection(c.Name); before != nil && g.opts.Unknowns.SkipUnchanged {
			c.Tree.KeepUnchanged(before.Tree)
		}
	}
	for _, c := range loaded {
		if g.opts.Unknowns.SignConfig && c.Name != "external" && c.Name != "local" {
			g.signExternal(c.Tree, false)
		}
	}
	applyConfigFaults(g.activeLoadFaults(datadir.ResourcesDir), loaded)
	g.mu.Lock()
	g.config = loaded
	g.mu.Unlock()
	return problems
}
