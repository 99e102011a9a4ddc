package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// Locks are the scan locks of the projects and of the configuration.
type Locks struct {
	opts  *Options
	clock *clock
	run   *run
	data  *Data
	kinds map[string]*scanLock // run.mu guards it
}

// scanLock is the scan lock of one kind. While that of the projects is held, Designers wait with a save and the projects timer
// skips its scan. The Administrator ignores that of the configuration. run.mu guards it.
type scanLock struct {
	actor    string
	acquired time.Time // the gateway's clock
	expires  time.Time // the real clock
	// changed is closed when the lock is taken or released, or its end moves.
	changed chan struct{}
}

func (l *scanLock) held() bool { return l.actor != "" && time.Now().Before(l.expires) }

func (l *scanLock) release() {
	l.actor = ""
	l.wake()
}

func (l *scanLock) take(actor string, at time.Time, d time.Duration) {
	l.actor, l.acquired, l.expires = actor, at, time.Now().Add(d)
	l.wake()
}

// wake makes waiters check the lock again.
func (l *scanLock) wake() {
	if l.changed != nil {
		close(l.changed)
	}
	l.changed = make(chan struct{})
}

// resetLocked releases all locks. The caller holds run.mu.
func (l *Locks) resetLocked() { l.kinds = map[string]*scanLock{kindProjects: {}, kindConfig: {}} }

// releaseLocked releases a lock. The caller holds run.mu.
func (l *Locks) releaseLocked(kind string) { l.kinds[kind].release() }

// shortenLocked brings the end of each lock closer. The caller holds run.mu.
func (l *Locks) shortenLocked(d time.Duration) {
	for _, k := range l.kinds {
		k.expires = k.expires.Add(-d)
		k.wake()
	}
}

func (l *Locks) doc(k *scanLock) ordered.Value {
	unit := time.Second
	if l.opts.Unknowns.RemainingMillis {
		unit = time.Millisecond
	}
	return ordered.Object{
		{"timestamp", l.clock.moment(k.acquired)},
		{"remaining", int64(time.Until(k.expires) / unit)},
		{"actor", k.actor},
	}
}

// Hold takes a scan lock for an actor, for at most d, even if another actor holds it.
func (l *Locks) Hold(kind, actor string, d time.Duration) error {
	now := l.clock.now()
	l.run.mu.Lock()
	defer l.run.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		return errKind(kind)
	}
	k.take(actor, now, d)
	return nil
}

// Release releases a scan lock of any actor.
func (l *Locks) Release(kind string) error {
	l.run.mu.Lock()
	defer l.run.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		return errKind(kind)
	}
	k.release()
	return nil
}

// await waits until no actor holds a lock. It returns an error if ctx is done or the gateway is closed first.
func (l *Locks) await(ctx context.Context, kind string) error {
	for {
		l.run.mu.Lock()
		k := l.kinds[kind]
		held, rest, changed, runCtx := k.held(), time.Until(k.expires), k.changed, l.run.ctx
		l.run.mu.Unlock()
		if !held {
			return ctx.Err()
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-changed:
		case <-runCtx.Done(): // a restart drops the locks
			if l.run.life.Err() != nil {
				timer.Stop()
				return l.run.life.Err()
			}
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// get answers who holds the lock and for how long, or 204 if it is free.
func (l *Locks) get(w http.ResponseWriter, r *http.Request) {
	l.run.mu.Lock()
	k := l.kinds[r.PathValue("kind")]
	var doc ordered.Value
	if k != nil && k.held() {
		doc = l.doc(k)
	}
	l.run.mu.Unlock()
	switch {
	case k == nil:
		noRoute(w, r)
	case doc == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, doc)
	}
}

// post grants the lock: 200, 400 for an invalid body, 409 if it is held. While the gateway itself is writing, and with
// Unknowns.LockWaits while the lock is held, post waits. It answers 408 after acquireTimeout.
func (l *Locks) post(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	if kind != kindProjects && kind != kindConfig {
		noRoute(w, r)
		return
	}
	body := struct {
		AcquireTimeout int64 `json:"acquireTimeout"`
		HoldTimeout    int64 `json:"holdTimeout"`
	}{10, 60}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	const maxSeconds = 24 * 60 * 60
	if err != nil || json.Unmarshal(raw, &body) != nil || body.AcquireTimeout < 0 || body.HoldTimeout <= 0 ||
		body.AcquireTimeout > maxSeconds || body.HoldTimeout > maxSeconds {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(body.AcquireTimeout)*time.Second)
	defer cancel()
	if !l.opts.Unknowns.LockWaits && l.held(kind) {
		htmlError(w, http.StatusConflict, "Conflict")
		return
	}
	if l.await(ctx, kind) != nil || !l.data.lockWriting(ctx) {
		htmlError(w, http.StatusRequestTimeout, "Request Timeout")
		return
	}
	defer l.data.writing.Unlock() // locked by lockWriting
	now := l.clock.now()
	l.run.mu.Lock()
	defer l.run.mu.Unlock()
	k := l.kinds[kind]
	if k.held() {
		htmlError(w, http.StatusConflict, "Conflict")
		return
	}
	k.take(tokenOf(r), now, time.Duration(body.HoldTimeout)*time.Second)
	writeJSON(w, http.StatusOK, l.doc(k))
}

func (l *Locks) held(kind string) bool {
	l.run.mu.Lock()
	defer l.run.mu.Unlock()
	return l.kinds[kind].held()
}
