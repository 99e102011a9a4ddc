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
	errDeadline = errors.New("the time limit is exceeded")
	errStalled  = errors.New("the server stopped sending")
)

// watchdog cancels an exchange that takes too long, or in which too few bytes arrive while the client waits for the network.
type watchdog struct {
	progress atomic.Int64 // bytes that the server sent or accepted
	waiting  atomic.Int32 // reads under way
}

// watch starts a watchdog. It cancels the returned context after total, or if fewer than least bytes arrive in a window. The
// caller must call the returned function, which stops the watchdog and waits for its end.
func watch(ctx context.Context, total time.Duration, least int64, window time.Duration) (context.Context, *watchdog, func()) {
	ctx, expire := context.WithTimeoutCause(ctx, total, errDeadline)
	ctx, cancel := context.WithCancelCause(ctx)
	w, done := &watchdog{}, make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx, cancel, least, window)
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
	last, wasWaiting := int64(0), true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, isWaiting := w.progress.Load(), w.waiting.Load() > 0
		if now-last < bytes && isWaiting && wasWaiting {
			cancel(errStalled)
			return
		}
		last, wasWaiting = now, isWaiting
	}
}

// startWait notes that the client waits for the network. The returned function ends the wait.
func (w *watchdog) startWait() func() {
	w.waiting.Add(1)
	return func() { w.waiting.Add(-1) }
}

// sentBody counts the bytes of a request's body as progress: a server that reads them has not stalled.
type sentBody struct {
	io.ReadCloser
	dog *watchdog
}

func (s *sentBody) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.dog.progress.Add(int64(n))
	return n, err
}

// receivedBody counts the bytes of an answer as progress, and limits them.
type receivedBody struct {
	io.ReadCloser
	x         *exchange
	remaining int64
	limit     int64
}

// raise allows an answer of more bytes, including those that were read.
func (b *receivedBody) raise(limit int64) {
	b.remaining, b.limit = b.remaining+limit-b.limit, limit
}

func (b *receivedBody) Read(p []byte) (int, error) {
	defer b.x.dog.startWait()()
	n, err := b.ReadCloser.Read(p)
	b.x.dog.progress.Add(int64(n))
	if b.remaining -= int64(n); b.remaining < 0 {
		return 0, b.x.fail(store.OverLimit("the server sends more than %d bytes", b.limit))
	}
	return n, err
}
