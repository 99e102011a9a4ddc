package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// scanLock keeps the gateway from writing to one of its trees. Gateway.mu guards it.
type scanLock struct {
	actor string
	taken time.Time // the gateway's clock
	until time.Time // our clock
	// changed is closed when the lock is taken or released.
	changed chan struct{}
}

func (l *scanLock) held() bool { return l.actor != "" && time.Now().Before(l.until) }

func (l *scanLock) release() {
	l.actor = ""
	l.wake()
}

// wake makes waiters check the lock again.
func (l *scanLock) wake() {
	if l.changed != nil {
		close(l.changed)
	}
	l.changed = make(chan struct{})
}

func (g *Gateway) lockDoc(l *scanLock) node {
	unit := time.Second
	if g.opts.Unknowns.RemainingMillis {
		unit = time.Millisecond
	}
	return object{
		{"timestamp", g.moment(l.taken)},
		{"remaining", int64(time.Until(l.until) / unit)},
		{"actor", l.actor},
	}
}

// HoldLock takes a scan lock for another actor, for at most d.
func (g *Gateway) HoldLock(kind, actor string, d time.Duration) error {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.locks[kind]
	if l == nil {
		return errKind(kind)
	}
	l.take(actor, now, d)
	return nil
}

// ReleaseLock releases a scan lock of any actor.
func (g *Gateway) ReleaseLock(kind string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.locks[kind]
	if l == nil {
		return errKind(kind)
	}
	l.release()
	return nil
}

func (l *scanLock) take(actor string, at time.Time, d time.Duration) {
	l.actor, l.taken, l.until = actor, at, time.Now().Add(d)
	l.wake()
}

// awaitLock waits until a lock is released or expires.
func (g *Gateway) awaitLock(ctx context.Context, kind string) error {
	for {
		g.mu.Lock()
		l := g.locks[kind]
		held, rest, changed, up := l.held(), time.Until(l.until), l.changed, g.up
		g.mu.Unlock()
		if !held {
			return ctx.Err()
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-changed:
		case <-up.Done(): // a restart drops the locks
			if g.life.Err() != nil {
				timer.Stop()
				return g.life.Err()
			}
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// getLock answers 204 if the lock is free.
func (g *Gateway) getLock(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	l := g.locks[r.PathValue("kind")]
	var doc node
	if l != nil && l.held() {
		doc = g.lockDoc(l)
	}
	g.mu.Unlock()
	switch {
	case l == nil:
		g.noRoute(w, r)
	case doc == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, doc)
	}
}

// postLock grants the lock: 200, 400 for an invalid body, 409 if it is held. While the gateway itself is writing it
// waits, and answers 408 after acquireTimeout.
func (g *Gateway) postLock(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	if kind != kindProjects && kind != kindConfig {
		g.noRoute(w, r)
		return
	}
	body := struct {
		AcquireTimeout int64 `json:"acquireTimeout"`
		HoldTimeout    int64 `json:"holdTimeout"`
	}{10, 60}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	const most = 24 * 60 * 60
	if err != nil || json.Unmarshal(raw, &body) != nil || body.AcquireTimeout < 0 || body.HoldTimeout <= 0 ||
		body.AcquireTimeout > most || body.HoldTimeout > most {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(body.AcquireTimeout)*time.Second)
	defer cancel()
	if !g.opts.Unknowns.LockWaits && g.lockHeld(kind) {
		htmlError(w, http.StatusConflict, "Conflict")
		return
	}
	if g.awaitLock(ctx, kind) != nil || !g.tryQuiet(ctx) {
		htmlError(w, http.StatusRequestTimeout, "Request Timeout")
		return
	}
	defer g.saving.Unlock()
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.locks[kind]
	if l.held() {
		htmlError(w, http.StatusConflict, "Conflict")
		return
	}
	l.take(tokenOf(r).name, now, time.Duration(body.HoldTimeout)*time.Second)
	writeJSON(w, http.StatusOK, g.lockDoc(l))
}

func (g *Gateway) lockHeld(kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.locks[kind].held()
}

// tryQuiet acquires the mutex of the gateway's own writes, unless ctx is done first.
func (g *Gateway) tryQuiet(ctx context.Context) bool {
	for !g.saving.TryLock() {
		if sleep(ctx, time.Millisecond) != nil {
			return false
		}
	}
	return true
}
