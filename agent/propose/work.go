package propose

import (
	"context"
	"time"

	"stoker.io/stoker/internal/backoff"
)

// work runs one job at a time beside the loop.
type work struct {
	cancel context.CancelFunc // nil if no job runs
	result chan outcome
	done   chan struct{}
}

// outcome is the result of a job: a change of the record, and an error. Both may be set.
type outcome struct {
	apply func(r *record)
	err   error
}

func newWork() work { return work{done: make(chan struct{}, 1)} }

func (w *work) runs() bool { return w.cancel != nil }

// start runs f. No other job may run.
func (w *work) start(ctx context.Context, f func(ctx context.Context) outcome) {
	ctx, w.cancel = context.WithCancel(ctx)
	w.result = make(chan outcome, 1)
	result, done := w.result, w.done
	go func() {
		result <- f(ctx)
		select {
		case done <- struct{}{}:
		default:
		}
	}()
}

// take returns the outcome of a job that has ended.
func (w *work) take() (o outcome, ended bool) {
	if !w.runs() {
		return outcome{}, false
	}
	select {
	case o = <-w.result:
	default:
		return outcome{}, false
	}
	w.cancel()
	w.cancel = nil
	return o, true
}

// stop stops the job and drops its outcome.
func (w *work) stop() {
	if w.runs() {
		w.cancel()
		<-w.result
		w.cancel = nil
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
