package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"stoker.io/stoker/test/gateway/simulator/ordered"
)

// scanLock keeps Designers and the web interface from writing to one of the gateway's trees. Gateway.mu guards it.
type scanLock struct {
	actor    string
	acquired time.Time // the gateway's clock
	expires  time.Time // the real clock
	// changed is closed when the lock is taken or released.
	changed chan struct{}
}

func (l *scanLock) held() bool { return l.actor != "" && time.Now().Before(l.expires) }

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

func (g *Gateway) lockDoc(l *scanLock) ordered.Value {
	unit := time.Second
	if g.opts.Unknowns.RemainingMillis {
		unit = time.Millisecond
	}
	return ordered.Object{
		{"timestamp", g.moment(l.acquired)},
		{"remaining", int64(time.Until(l.expires) / unit)},
		{"actor", l.actor},
	}
}

// HoldLock takes a scan lock for an actor, for at most d, even if another actor holds it.
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
	l.actor, l.acquired, l.expires = actor, at, time.Now().Add(d)
	l.wake()
}

// awaitLock waits until no actor holds a lock. It returns an error if ctx is done or the gateway is closed first.
func (g *Gateway) awaitLock(ctx context.Context, kind string) error {
	for {
		g.mu.Lock()
		l := g.locks[kind]
		held, rest, changed, runCtx := l.held(), time.Until(l.expires), l.changed, g.runCtx
		g.mu.Unlock()
		if !held {
			return ctx.Err()
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-changed:
		case <-runCtx.Done(): // a restart drops the locks
			if g.lifeCtx.Err() != nil {
				timer.Stop()
				return g.lifeCtx.Err()
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
	var doc ordered.Value
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
	const maxSeconds = 24 * 60 * 60
	if err != nil || json.Unmarshal(raw, &body) != nil || body.AcquireTimeout < 0 || body.HoldTimeout <= 0 ||
		body.AcquireTimeout > maxSeconds || body.HoldTimeout > maxSeconds {
		htmlError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(body.AcquireTimeout)*time.Second)
	defer cancel()
	if !g.opts.Unknowns.LockWaits && g.lockHeld(kind) {
		htmlError(w, http.StatusConflict, "Conflict")
		return
	}
	if g.awaitLock(ctx, kind) != nil || !g.lockFiles(ctx) {
		htmlError(w, http.StatusRequestTimeout, "Request Timeout")
		return
	}
	defer g.filesMu.Unlock() // locked by lockFiles
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

// lockFiles locks filesMu. It returns false if ctx is done first.
func (g *Gateway) lockFiles(ctx context.Context) bool {
	for !g.filesMu.TryLock() {
		if sleep(ctx, time.Millisecond) != nil {
			return false
		}
	}
	return true
}
