package simulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// Scans are the gateway's scans of its projects and of its configuration: those that a client starts, those of the projects
// timer, and those of a test.
type Scans struct {
	opts       *Options
	clock      *clock
	run        *run
	data       *Data
	locks      *Locks
	logs       *LogBook
	requests   *RequestLog
	redundancy *Redundancy
	trial      *Trial

	// run.mu guards the following fields.

	kinds map[string]*scanState
	due   time.Time // next run of the projects timer in the gateway's clock, or zero
	timed int       // scans started by the timer
}

// scanState is the state of the scans of one kind. run.mu guards it.
type scanState struct {
	kind      string
	active    bool
	queued    bool // another scan follows the active one
	last      time.Time
	duration  time.Duration
	completed int
	restarted bool // a scan was completed before the last start

	fault        ScanFault
	faultChanged chan struct{} // closed when the fault is replaced
}

// ScanFault makes the scans of one kind that a client starts fail or last long. Other scans have no faults.
type ScanFault struct {
	// NeverEnds keeps a scan active until the fault is replaced.
	NeverEnds bool `json:"neverEnds"`
	// Fails is how many scans end without a result: nothing is loaded, and lastScanTimestamp does not change.
	Fails int `json:"fails"`
	// Delay replaces Options.ScanDelay if it is positive.
	Delay time.Duration `json:"-"`
}

// resetLocked drops what a gateway does not keep across a restart. The caller holds run.mu.
func (s *Scans) resetLocked() {
	last := s.kinds
	s.kinds = map[string]*scanState{}
	for _, kind := range []string{kindProjects, kindConfig} {
		s.kinds[kind] = &scanState{kind: kind}
		if k := last[kind]; k != nil {
			s.kinds[kind].last, s.kinds[kind].restarted = k.last, k.restarted || k.completed > 0
		}
	}
	s.due = time.Time{}
}

// forget sets the times of the last scans to zero, unless the gateway starts for the first time.
func (s *Scans) forget() {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	for _, k := range s.kinds {
		if k.restarted {
			k.last = time.Time{}
		}
	}
}

// Fault replaces the fault of a kind of scans, "projects" or "config". The zero ScanFault removes it.
func (s *Scans) Fault(kind string, f ScanFault) error {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	k := s.kinds[kind]
	if k == nil {
		return errKind(kind)
	}
	k.fault = f
	if k.faultChanged != nil {
		close(k.faultChanged)
	}
	k.faultChanged = make(chan struct{})
	return nil
}

// Run reads a tree again like "Scan File System" of the web interface, and returns when it is done. It needs no token.
func (s *Scans) Run(kind string) error {
	s.run.mu.Lock()
	runCtx, known := s.run.ctx, s.kinds[kind] != nil
	s.run.mu.Unlock()
	if !known {
		return errKind(kind)
	}
	return s.scanAndReplicate(runCtx, kind)
}

// Completed returns the number of successful scans of a kind since the last start, including the one of the start.
func (s *Scans) Completed(kind string) int {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if k := s.kinds[kind]; k != nil {
		return k.completed
	}
	return 0
}

// Timed returns the number of scans that the timer started.
func (s *Scans) Timed() int {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	return s.timed
}

func errKind(kind string) error { return fmt.Errorf("no scans of %q: want projects or config", kind) }

func (s *Scans) state(kind string) *scanState {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	return s.kinds[kind]
}

// get answers the status of a kind.
func (s *Scans) get(w http.ResponseWriter, r *http.Request) {
	if kind := r.PathValue("kind"); s.state(kind) == nil {
		noRoute(w, r)
	} else if s.checkStrict(w, r) {
		scanAnswer(w, s.status(kind))
	}
}

// post starts a scan.
func (s *Scans) post(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	switch {
	case s.state(kind) == nil:
		noRoute(w, r)
	case !s.checkStrict(w, r):
	case !s.redundancy.status().access && s.opts.Unknowns.NoScanOnBackup, s.trial.isExpired() && s.opts.Unknowns.TrialStopsScans:
		htmlError(w, http.StatusForbidden, "Forbidden")
	default:
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 1<<20))
		scanAnswer(w, s.start(kind))
	}
}

// scanAnswer answers a scan request. answer is nil if the gateway stopped after serve had found it running.
func scanAnswer(w http.ResponseWriter, answer ordered.Value) {
	if answer == nil {
		htmlError(w, http.StatusServiceUnavailable, "Service Unavailable")
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// checkStrict reports whether a request of a scan route has no parameter and no body, or Options.Strict is not set.
// Otherwise it has answered 400.
func (s *Scans) checkStrict(w http.ResponseWriter, r *http.Request) bool {
	if !s.opts.Strict {
		return true
	}
	var what string
	if r.URL.RawQuery != "" {
		what = fmt.Sprintf("%s %s has the parameters %q: the route takes none", r.Method, r.URL.Path, r.URL.RawQuery)
	} else if n, _ := r.Body.Read(make([]byte, 1)); n > 0 {
		what = fmt.Sprintf("%s %s has a body: the route takes none", r.Method, r.URL.Path)
	}
	if what == "" {
		return true
	}
	s.requests.addViolation(what)
	htmlError(w, http.StatusBadRequest, "Bad Request")
	return false
}

// status returns the answer of the scan routes, or nil if the gateway is not running any more.
func (s *Scans) status(kind string) ordered.Value {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if s.run.state != Running {
		return nil
	}
	return s.statusOf(s.kinds[kind])
}

func (s *Scans) statusOf(k *scanState) ordered.Value {
	return ordered.Object{
		{"scanActive", k.active}, {"lastScanTimestamp", s.clock.moment(k.last)}, {"lastScanDuration", k.duration.Milliseconds()},
	}
}

// start starts a scan in the background and releases the scan lock. It returns nil if the gateway is not running any
// more.
func (s *Scans) start(kind string) ordered.Value {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if s.run.state != Running {
		return nil
	}
	s.locks.releaseLocked(kind)
	k := s.kinds[kind]
	before := s.statusOf(k)
	switch runCtx := s.run.ctx; {
	case k.active:
		k.queued = k.queued || !s.opts.Unknowns.CoalescePosts
	case s.run.life.Err() == nil:
		k.active = true
		s.run.wg.Go(func() { s.runAll(runCtx, k) })
	}
	if s.opts.Unknowns.LateActive {
		return before
	}
	return s.statusOf(k)
}

// runAll runs scans until no other is queued.
func (s *Scans) runAll(runCtx context.Context, k *scanState) {
	for {
		err := s.delay(runCtx, k)
		if err == nil {
			err = s.scanAndReplicate(runCtx, k.kind)
		}
		if err != nil && runCtx.Err() == nil {
			s.logs.add(levelError, "ScanFileSystem", k.kind+" scan: "+err.Error())
		}
		s.run.mu.Lock()
		more := k.queued && runCtx.Err() == nil
		k.active, k.queued = more, false
		s.run.mu.Unlock()
		if !more {
			return
		}
	}
}

var errScanFault = errors.New("the scan failed")

// delay waits as long as a scan shows as active before it reads the tree. It returns errScanFault if the scan must fail.
func (s *Scans) delay(runCtx context.Context, k *scanState) error {
	s.run.mu.Lock()
	f, delay := k.fault, s.opts.ScanDelay
	s.run.mu.Unlock()
	if f.Delay > 0 {
		delay = f.Delay
	}
	if err := sleep(runCtx, delay); err != nil {
		return err
	}
	for {
		s.run.mu.Lock()
		f, changed := k.fault, k.faultChanged
		if !f.NeverEnds && f.Fails > 0 {
			k.fault.Fails--
		}
		s.run.mu.Unlock()
		switch {
		case f.NeverEnds:
			select {
			case <-changed:
				continue
			case <-runCtx.Done():
				return runCtx.Err()
			}
		case f.Fails > 0, s.data.faults.fails(k.kind):
			return errScanFault
		}
		return nil
	}
}

// scanAndReplicate loads the current tree into the snapshot, and copies changes to a peer.
func (s *Scans) scanAndReplicate(runCtx context.Context, kind string) error {
	if err := s.scan(runCtx, kind); err != nil {
		return err
	}
	return s.redundancy.replicate()
}

// scan is scanAndReplicate without copying to a peer. It fails only if runCtx is done; what it cannot load becomes load
// errors.
func (s *Scans) scan(runCtx context.Context, kind string) error {
	k := s.state(kind)
	s.data.writing.Lock()
	defer s.data.writing.Unlock()
	if runCtx.Err() != nil {
		return runCtx.Err()
	}
	began, now := time.Now(), s.clock.now()
	s.data.load(kind)
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	k.completed++
	k.duration = time.Since(began)
	// No two scans end in the same millisecond.
	k.last = k.last.Add(time.Millisecond)
	if end := now.Add(time.Since(began)); end.After(k.last) {
		k.last = end
	}
	return nil
}

// startTimer starts the periodic scan of the projects. A gateway scans every 300 s by default (-Dignition.projects.scanFrequency).
func (s *Scans) startTimer(runCtx context.Context) {
	if s.opts.ProjectsTimer < 0 {
		return
	}
	next := s.clock.now().Add(s.opts.ProjectsTimer)
	s.run.mu.Lock()
	s.due = next
	s.run.mu.Unlock()
	s.run.spawn(func() {
		for {
			_, due := s.nextTimed()
			if sleep(runCtx, max(due.Sub(s.clock.now()), time.Millisecond)) != nil {
				return
			}
			if err := s.runIfDue(runCtx); err != nil && runCtx.Err() == nil {
				s.logs.add(levelError, "ProjectScan", "timer: "+err.Error())
			}
		}
	})
}

// nextTimed returns the context of the current run, and the time of the timer's next scan, or zero.
func (s *Scans) nextTimed() (runCtx context.Context, due time.Time) {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	return s.run.ctx, s.due
}

// runIfDue scans the projects if the timer is due, the gateway runs, and no scan lock forbids it.
func (s *Scans) runIfDue(runCtx context.Context) error {
	now := s.clock.now()
	s.run.mu.Lock()
	due := !s.due.IsZero() && !s.due.After(now)
	if due {
		s.due = now.Add(s.opts.ProjectsTimer)
	}
	scan := due && s.run.state == Running && (s.opts.Unknowns.TimerIgnoresLock || !s.locks.kinds[kindProjects].held())
	if scan {
		s.timed++
	}
	s.run.mu.Unlock()
	if !scan {
		return nil
	}
	return s.scanAndReplicate(runCtx, kindProjects)
}

// scanModule is the third-party project-scan module. Before 8.3 its routes need no token.
type scanModule struct {
	opts      *Options
	auth      *authorizer
	scans     *Scans
	designers *Designers
}

func (m *scanModule) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !m.opts.ScanModule:
			noRoute(w, r)
		case m.opts.before83():
			next(w, r)
		default:
			if _, refused := m.auth.authorizeFor(r, false); refused != nil {
				htmlError(w, refused.status, refused.message)
				return
			}
			next(w, r)
		}
	}
}

func (m *scanModule) getSupport(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, ordered.Object{{"supported", true}})
}

func (m *scanModule) post(w http.ResponseWriter, r *http.Request) {
	err := m.scans.Run(kindProjects)
	notify := r.URL.Query().Get("updateDesigners") == "true"
	if notify {
		m.designers.notify()
	}
	writeJSON(w, http.StatusOK, ordered.Object{{"gatewayProjectScanSuccess", err == nil}, {"sentDesignerUpdateNotification", notify}})
}
