package wire

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"stoker.io/stoker/agent/repo/store"
)

var (
	errDeadline = errors.New("the time for it is over")
	errStalled  = errors.New("the server stopped sending")
)

// watchdog cancels an exchange that takes too long, or in which too few bytes arrive. Time in which the client itself is busy
// does not count as a stall.
type watchdog struct {
	arrived atomic.Int64 // bytes, and those that the server took
	waiting atomic.Int32 // reads under way
}

// watch starts a watchdog. The caller must call the returned stop function, which waits until the watchdog has ended.
func watch(ctx context.Context, total time.Duration, bytes int64, window time.Duration) (context.Context, *watchdog, func()) {
	ctx, expire := context.WithTimeoutCause(ctx, total, errDeadline)
	ctx, cancel := context.WithCancelCause(ctx)
	w, done := &watchdog{}, make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx, cancel, bytes, window)
	}()
	return ctx, w, func() {
		cancel(nil)
		expire()
		<-done
	}
}

func (w *watchdog) run(ctx context.Context, cancel context.CancelCauseFunc, bytes int64, window time.Duration) {
	tick := time.NewTicker(window)
	defer tick.Stop()
	last, waited := int64(0), true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, waits := w.arrived.Load(), w.waiting.Load() > 0
		if now-last < bytes && waits && waited {
			cancel(errStalled)
			return
		}
		last, waited = now, waits
	}
}

// wait marks that the client waits for the network, until the returned function is called.
func (w *watchdog) wait() func() {
	w.waiting.Add(1)
	return func() { w.waiting.Add(-1) }
}

// sent counts the bytes of a request's body, because a server that still reads has not stalled.
type sent struct {
	io.ReadCloser
	dog *watchdog
}

func (s *sent) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.dog.arrived.Add(int64(n))
	return n, err
}

// body counts the bytes that arrive, for the watchdog and for a limit.
type body struct {
	io.ReadCloser
	dog   *watchdog
	left  int64
	limit int64
}

func (b *body) Read(p []byte) (int, error) {
	defer b.dog.wait()()
	n, err := b.ReadCloser.Read(p)
	b.dog.arrived.Add(int64(n))
	if b.left -= int64(n); b.left < 0 {
		return 0, store.OverLimit("what the server sends is more than %d bytes", b.limit)
	}
	return n, err
}
