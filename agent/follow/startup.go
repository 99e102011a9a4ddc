package follow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	gosync "sync"
	"syscall"
	"time"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
)

// startup decides when the gateway's container may start. From then on, /startupz answers 200 for good.
//
// It opens at once in three cases: the volume holds a complete commit with a settled journal (startup: useExisting), Ignition
// has not seeded the volume yet (then it is not touched before the gateway runs), or only the agent's container was restarted.
// Otherwise the first sync comes first. If that waits for a person, a gate or the gateway itself, startup opens. If it waits
// for something that may pass (a lead, git, space), startup waits at most for the progress deadline.
//
// It opens only between two syncs, so that no sync that relies on a stopped gateway writes while it starts.
type startup struct {
	engine *sync.Engine
	log    *slog.Logger
	now    func() time.Time
	name   string // of the file that stores memory
	memory memory

	wait     bool // wait for the target's commit even if the volume holds another one
	deadline time.Duration
	loaded   bool // wait and deadline were read from the volume
	ping     time.Time

	mu   gosync.Mutex
	open bool
	why  string
}

// memory survives restarts of the agent's container, but not of the pod.
type memory struct {
	Pod   string    `json:"pod"`
	Began time.Time `json:"began"`
	// Opened means that the gateway may have started, Unseeded that nothing is written before it runs.
	Opened   bool `json:"opened,omitempty"`
	Unseeded bool `json:"unseeded,omitempty"`
}

// policyNote stores on the volume what the spec says about the start, for a start without the API server.
const policyNote = "startup"

type policy struct {
	Wait     bool          `json:"wait"`
	Deadline time.Duration `json:"deadline"`
}

const maxMemory = 4 << 10

func newStartup(name, pod string, engine *sync.Engine, log *slog.Logger, now func() time.Time) *startup {
	s := &startup{engine: engine, log: log, now: now, name: name, deadline: v1alpha1.DefaultProgressDeadline, why: "the agent has not checked the volume yet"}
	if raw, err := file.Read(name, maxMemory); err == nil {
		_ = json.Unmarshal(raw, &s.memory) // a damaged file counts as missing
	}
	if s.memory.Pod != pod || s.memory.Began.After(now()) {
		s.memory = memory{Pod: pod, Began: now()}
		s.keep()
	}
	if s.memory.Opened {
		s.pass("the gateway was let start before")
	}
	return s
}

func (s *startup) keep() {
	raw, err := json.Marshal(s.memory)
	if err == nil && s.name != "" {
		err = os.WriteFile(s.name, raw, 0o600)
	}
	if err != nil {
		s.log.Warn("what was decided about the start of the gateway is not kept", "file", s.name, "error", err)
	}
}

func (s *startup) pass(why string) {
	s.mu.Lock()
	was := s.open
	s.open, s.why = true, why
	s.mu.Unlock()
	if was {
		return
	}
	s.log.Info("the gateway may start", "why", why)
	if !s.memory.Opened {
		s.memory.Opened = true
		s.keep()
	}
}

func (s *startup) passed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *startup) because(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = fmt.Sprintf(format, a...)
}

// look opens if the volume alone allows it, or if the deadline is over.
func (s *startup) look() {
	if s.passed() {
		return
	}
	d, err := s.engine.Open()
	switch {
	case failure.Is(err, v1alpha1.ReasonWaitingForGateway):
		s.memory.Unseeded = true
		s.pass("Ignition has to seed the volume first")
		return
	case err != nil:
		s.because("the data directory cannot be used: %v", err)
	default:
		if !s.loaded {
			s.loaded = true
			s.recall()
		}
		if h := d.Manifest().Header(); h.Complete && !h.Commit.IsZero() {
			if !s.wait {
				s.pass("the volume holds " + h.Commit.Short())
				return
			}
			s.because("the volume holds %s; startup: wait waits for the commit of the target", h.Commit.Short())
		} else {
			s.because("the volume holds no whole commit yet")
		}
	}
	if !s.now().Before(s.due()) {
		s.pass(fmt.Sprintf("it has waited for %s", s.deadline))
	}
}

// recall reads the last known policy from the volume.
func (s *startup) recall() {
	d, err := s.engine.Open()
	if err != nil {
		return
	}
	raw, err := d.Note(policyNote)
	var p policy
	if err != nil || raw == nil || json.Unmarshal(raw, &p) != nil || p.Deadline <= 0 {
		return // use the defaults
	}
	s.wait, s.deadline = p.Wait, p.Deadline
}

// policy adopts what the spec says about the start.
func (s *startup) policy(says v1alpha1.Startup, gs *v1alpha1.GatewaySync) {
	deadline, err := gs.Spec.Deadline()
	if err != nil {
		deadline = v1alpha1.DefaultProgressDeadline
	}
	p := policy{says == v1alpha1.StartupWait, deadline}
	d, err := s.engine.Open()
	if err != nil {
		s.wait, s.deadline = p.Wait, p.Deadline
		return
	}
	if !s.loaded {
		s.loaded = true
		s.recall()
	}
	if p == (policy{s.wait, s.deadline}) {
		return
	}
	s.wait, s.deadline = p.Wait, p.Deadline
	var raw []byte
	if p != (policy{false, v1alpha1.DefaultProgressDeadline}) {
		raw, _ = json.Marshal(p) // two plain fields
	}
	if err := d.SetNote(policyNote, raw); err != nil {
		s.log.Warn("what the spec says about the start of the gateway is not kept", "error", err)
	}
}

// due returns when the wait ends, or, once open, when the next ping is due; zero for never.
func (s *startup) due() time.Time {
	if s.passed() {
		return s.ping
	}
	return s.memory.Began.Add(s.deadline)
}

// beforeStart reports whether the gateway has not started yet. Only a refused connection proves that: in a pod that does not
// wait for /startupz, a gateway that runs may also be slow to answer.
func (s *startup) beforeStart(ctx context.Context, gateway sync.Gateway) bool {
	if s.passed() {
		return false
	}
	_, err := gateway.Ping(ctx)
	if err == nil {
		s.pass("the gateway runs already")
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// until returns when a sync before the start must give way to the start.
func (s *startup) until(before bool) time.Time {
	if !before {
		return time.Time{}
	}
	return s.due()
}

// hold blocks all syncs while the gateway seeds its volume, until the gateway runs.
func (s *startup) hold(ctx context.Context, w loop.Decision) loop.Decision {
	s.ping = time.Time{}
	if !s.memory.Unseeded || w.Order == nil || w.HandsOff {
		return w
	}
	p, err := w.Order.Connections.Gateway.Ping(ctx)
	switch {
	case err == nil && p.Running():
		s.memory.Unseeded = false
		s.keep()
		return w
	case !errors.Is(err, syscall.ECONNREFUSED):
		return w // the sync waits for the gateway and reports why
	}
	s.ping = s.now().Add(backoff.Jitter(firstRun))
	w.HandsOff = true
	w.Problems = append([]loop.Problem{{
		Reason: v1alpha1.ReasonWaitingForGateway, Message: fmt.Sprintf("the gateway starts with an empty volume; it is synced when it runs, and it does not answer yet: %v", err),
	}}, w.Problems...)
	return w
}

// firstRun is how often a gateway is pinged during its first start.
const firstRun = 2 * time.Second

// after opens if the outcome of an iteration leaves nothing to wait for.
func (s *startup) after(state loop.State, order *loop.Order) {
	if s.passed() {
		return
	}
	if n := len(state.Problems); n > 0 {
		p := state.Problems[n-1]
		if p.Reason.Class() == v1alpha1.ClassWorking {
			s.because("%s", p.Message)
			return
		}
		s.pass("it waits for a person: " + p.Message)
		return
	}
	r := state.Report
	if r == nil || state.Of != order || order.Commit.IsZero() {
		return
	}
	switch r.Reason {
	case v1alpha1.ReasonGitUnreachable, v1alpha1.ReasonGitTimeout, v1alpha1.ReasonGitThrottled, v1alpha1.ReasonNoSpace, v1alpha1.ReasonWriteFailed,
		v1alpha1.ReasonWaitingForLead:
		s.because("%s: %s", r.Reason, r.Message)
	default:
		s.pass(fmt.Sprintf("%s: %s", r.Phase, r.Message))
	}
}

// serve answers /startupz.
func (s *startup) serve(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	open, why := s.open, s.why
	s.mu.Unlock()
	if !open {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, why)
}

// Routes returns the HTTP routes of the agent.
func (f *Follower) Routes() []loop.Route {
	return append(f.loop.Routes(), loop.Route{Pattern: "GET /startupz", Serve: f.startup.serve})
}
