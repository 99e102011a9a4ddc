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
	waiting  atomic.Int32 // waits for the network under way
}

// watch starts a watchdog. It cancels the returned context after total, or if fewer than least bytes arrive in a window while
// the client waits for the network. The caller must call the returned function, which stops the watchdog and waits for its end.
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

// Watch is a watchdog for an exchange of another protocol.
type Watch struct{ dog *watchdog }

// Watch cancels the returned context after total, or if the server stalls. The caller must call stop.
func (o Options) Watch(ctx context.Context, total time.Duration) (_ context.Context, _ Watch, stop func()) {
	ctx, dog, stop := watch(ctx, total, o.StallBytes, o.StallWindow)
	return ctx, Watch{dog}, stop
}

// Wait notes that the client waits for an answer. The returned function ends the wait.
func (w Watch) Wait() func() { return w.dog.startWait() }

// Body returns a reader of body that counts what arrives as progress, and fails after limit bytes.
func (w Watch) Body(body io.Reader, limit int64) io.Reader {
	return &watchedBody{body, w.dog, limit, limit}
}

type watchedBody struct {
	body        io.Reader
	dog         *watchdog
	left, limit int64
}

func (b *watchedBody) Read(p []byte) (int, error) {
	defer b.dog.startWait()()
	n, err := b.body.Read(p)
	b.dog.progress.Add(int64(n))
	if b.left -= int64(n); b.left < 0 {
		return 0, store.OverLimit("the server sends more than %d bytes", b.limit)
	}
	return n, err
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
