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

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/file"
)

// startup decides when the gateway's container may start. From then on, /startupz always answers 200.
//
// It allows the start at once in three cases: the volume holds a complete commit (startup: useExisting), Ignition has not seeded the volume
// yet (then the agent does not touch it before the gateway runs), or only the agent's container was restarted. Otherwise it waits for the
// first sync. If the sync waits for an operator, a gate or the gateway itself, startup allows the start. If the sync waits for something that
// may pass (a lead, git, a download, space), startup waits at most for the progress deadline. A gateway that answers a ping runs already, so
// startup allows its start, too.
//
// It allows the start only between two syncs, so that no sync that relies on a stopped gateway writes while the gateway starts.
type startup struct {
	engine *sync.Engine
	log    *slog.Logger
	now    func() time.Time
	file   string // for state; "" for none
	state  startupState

	policy   startPolicy
	loaded   bool      // policy was read from the volume
	nextPing time.Time // during the first start; zero for never

	mu   gosync.Mutex
	open bool   // the gateway may start
	why  string // the answer of /startupz
}

// startupState survives restarts of the agent's container, but not of the pod.
type startupState struct {
	Pod   string    `json:"pod"`   // Identity.start
	Began time.Time `json:"began"` // when the first agent of the pod began to wait
	// Opened is set if the gateway may have started, and Unseeded if the agent must not write before the gateway runs.
	Opened   bool `json:"opened,omitempty"`
	Unseeded bool `json:"unseeded,omitempty"`
	// NewVolume is set if the volume was not seeded when the pod started.
	NewVolume bool `json:"newVolume,omitempty"`
}

// policyNote is the note on the volume that stores the startPolicy, for a start without the API server.
const policyNote = "startup"

// startPolicy is what the spec says about the start: whether to wait for the target's commit even if the volume holds another one, and how
// long.
type startPolicy struct {
	Wait     bool          `json:"wait"`
	Deadline time.Duration `json:"deadline"`
}

var defaultPolicy = startPolicy{Deadline: v1alpha1.DefaultProgressDeadline}

const maxState = 4 << 10 // bytes

func newStartup(name, pod string, engine *sync.Engine, log *slog.Logger, now func() time.Time) *startup {
	s := &startup{engine: engine, log: log, now: now, file: name, policy: defaultPolicy, why: "the agent has not checked the volume yet"}
	if raw, err := file.Read(name, maxState); err == nil {
		_ = json.Unmarshal(raw, &s.state) // a damaged file counts as missing
	}
	if s.state.Pod != pod {
		s.state = startupState{Pod: pod}
	}
	if s.state.Began.IsZero() || s.state.Began.After(now()) { // the clock may have been set back
		s.state.Began = now()
		s.save()
	}
	if s.state.Opened {
		s.allow("the gateway was allowed to start before")
	}
	return s
}

func (s *startup) save() {
	raw, err := json.Marshal(s.state)
	if err == nil && s.file != "" {
		err = os.WriteFile(s.file, raw, 0o600)
	}
	if err != nil {
		s.log.Warn("the startup decision is not saved", "file", s.file, "error", err)
	}
}

// allow lets the gateway start, now and after a restart of the agent.
func (s *startup) allow(why string) {
	s.mu.Lock()
	already := s.open
	s.open, s.why = true, why
	s.mu.Unlock()
	if already {
		return
	}
	s.log.Info("the gateway may start", "why", why)
	if !s.state.Opened {
		s.state.Opened = true
		s.save()
	}
}

// allowed reports whether the gateway may start.
func (s *startup) allowed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// wait sets why the gateway may not start yet.
func (s *startup) wait(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = fmt.Sprintf(format, a...)
}

// checkVolume allows the start if the content of the volume is enough for it, or if the deadline is over.
func (s *startup) checkVolume() {
	if s.allowed() {
		return
	}
	d, err := s.engine.Open()
	switch {
	case failure.Is(err, v1alpha1.ReasonWaitingForGateway):
		s.state.Unseeded, s.state.NewVolume = true, true
		s.allow("Ignition has to seed the volume first")
		return
	case err != nil:
		s.wait("the data directory cannot be used: %v", err)
	default:
		s.loadPolicy(d)
		if h := d.Manifest().Header(); h.Complete && !h.Commit.IsZero() {
			if !s.policy.Wait {
				s.allow("the volume holds " + h.Commit.Short())
				return
			}
			s.wait("the volume holds %s; startup: wait waits for the commit of the target", h.Commit.Short())
		} else {
			s.wait("the volume has no complete commit yet")
		}
	}
	if !s.now().Before(s.due()) {
		s.allow(fmt.Sprintf("waited for %s", s.policy.Deadline))
	}
}

// loadPolicy reads the last known policy from the volume, once. A missing or damaged one leaves the policy unchanged.
func (s *startup) loadPolicy(d *disk.Dir) {
	if s.loaded {
		return
	}
	s.loaded = true
	raw, err := d.Note(policyNote)
	var p startPolicy
	if err == nil && raw != nil && json.Unmarshal(raw, &p) == nil && p.Deadline > 0 {
		s.policy = p
	}
}

// setPolicy adopts what the spec says about the start, and stores it on the volume.
func (s *startup) setPolicy(start v1alpha1.Startup, gs *v1alpha1.GatewaySync) {
	p := startPolicy{start == v1alpha1.StartupWait, effective.ProgressDeadline(&gs.Spec)}
	d, err := s.engine.Open()
	if err != nil {
		s.policy = p
		return
	}
	s.loadPolicy(d)
	if p == s.policy {
		return
	}
	s.policy = p
	var raw []byte
	if p != defaultPolicy {
		raw, _ = json.Marshal(p) // two plain fields
	}
	if err := d.SetNote(policyNote, raw); err != nil {
		s.log.Warn("the startup policy is not saved", "error", err)
	}
}

// due returns when the wait ends. Once the gateway may start, due returns when the next ping is due; zero for never.
func (s *startup) due() time.Time {
	if s.allowed() {
		return s.nextPing
	}
	return s.state.Began.Add(s.policy.Deadline)
}

// beforeStart reports whether the gateway has not started yet. Only a refused connection proves this: in a pod that does not wait for
// /startupz, a running gateway may also be slow to answer.
func (s *startup) beforeStart(ctx context.Context, gateway sync.Gateway) bool {
	if s.allowed() {
		return false
	}
	_, err := gateway.Ping(ctx)
	if err == nil {
		s.allow("the gateway is already running")
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

// pingEvery is how often the agent pings a gateway during its first start.
const pingEvery = 2 * time.Second

// holdFirstStart blocks all syncs while a gateway that has to seed its volume refuses connections. When it answers, a sync waits until it runs.
func (s *startup) holdFirstStart(ctx context.Context, d loop.Decision) loop.Decision {
	s.nextPing = time.Time{}
	if !s.state.Unseeded || d.Order == nil || d.DoNotTouch {
		return d
	}
	p, err := d.Order.Connections.Gateway.Ping(ctx)
	switch {
	case err == nil && p.Running():
		s.state.Unseeded = false
		s.save()
		return d
	case !errors.Is(err, syscall.ECONNREFUSED):
		return d // the sync waits for the gateway and reports why
	}
	s.nextPing = s.now().Add(backoff.Jitter(pingEvery))
	d.DoNotTouch = true
	d.Problems = append([]loop.Problem{{
		Reason: v1alpha1.ReasonWaitingForGateway, Message: fmt.Sprintf("the gateway starts with an empty volume; the agent syncs it when it runs, but it does not answer yet: %v", err),
	}}, d.Problems...)
	return d
}

// afterIteration allows the start if the outcome of an iteration leaves nothing to wait for.
func (s *startup) afterIteration(state loop.State, order *loop.Order) {
	if s.allowed() {
		return
	}
	if n := len(state.Problems); n > 0 {
		p := state.Problems[n-1]
		if p.Reason.Class() == v1alpha1.ClassWorking {
			s.wait("%s", p.Message)
			return
		}
		s.allow("waiting for an operator: " + p.Message)
		return
	}
	r := state.Report
	if r == nil || state.Of != order || order.Commit.IsZero() {
		return
	}
	tooLate := r.Reason == v1alpha1.ReasonProgressing && !s.now().Before(s.due()) // checkVolume allows the start then
	gitFails := r.Reason.Cause() == v1alpha1.CauseGit && r.Reason.Class() == v1alpha1.ClassRetry
	switch {
	case tooLate, gitFails, errors.Is(r.Err, archive.ErrDownloading), r.Reason == v1alpha1.ReasonNoSpace, r.Reason == v1alpha1.ReasonWriteFailed, r.Reason == v1alpha1.ReasonWaitingForLead:
		s.wait("%s: %s", r.Reason, r.Message)
	default:
		s.allow(fmt.Sprintf("%s: %s", r.Phase, r.Message))
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
