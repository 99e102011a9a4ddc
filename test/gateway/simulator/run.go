package simulator

import (
	"context"
	"log/slog"
	"sync"
)

// State is a state of the gateway.
type State string

// Down refuses connections; Starting and Faulted answer 503 to every route below /data; Commissioning redirects them to
// /welcome.
const (
	Down          State = "DOWN"
	Starting      State = "STARTING"
	Commissioning State = "COMMISSIONING"
	Running       State = "RUNNING"
	Faulted       State = "FAULTED"
)

// run is the state of the gateway and its current run. Its mutex also guards what a restart drops, that is scans, scan locks
// and Designer sessions, so that a running gateway never appears without them.
type run struct {
	log *slog.Logger

	mu      sync.Mutex
	state   State
	reason  string          // why it is Faulted
	life    context.Context // ends with Close
	endLife context.CancelFunc
	ctx     context.Context // ends with Close, at a restart and when the gateway goes down
	endRun  context.CancelFunc
	wg      sync.WaitGroup
}

func newRun(log *slog.Logger) *run {
	r := &run{log: log, state: Down}
	r.life, r.endLife = context.WithCancel(context.Background())
	r.ctx, r.endRun = context.WithCancel(r.life)
	return r
}

func (r *run) status() (State, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.reason
}

// current returns the context of the current run.
func (r *run) current() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx
}

// renewLocked ends the current run and starts the next. The caller holds mu.
func (r *run) renewLocked() {
	r.endRun()
	r.ctx, r.endRun = context.WithCancel(r.life)
}

// close ends the life of the gateway.
func (r *run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLife()
}

// spawn runs f in a goroutine, unless the gateway is closed.
func (r *run) spawn(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() == nil {
		r.wg.Go(f)
	}
}

// set changes the state, unless ctx is done: then a later call controls the state.
func (r *run) set(ctx context.Context, to State, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() == nil {
		r.setLocked(to, reason)
	}
}

// setLocked is set for a caller that holds mu. It keeps the reason only for Faulted.
func (r *run) setLocked(to State, reason string) {
	if r.state != to {
		r.log.Info("simulated gateway", "state", to, "reason", reason)
	}
	r.state, r.reason = to, ""
	if to == Faulted {
		r.reason = reason
	}
}
