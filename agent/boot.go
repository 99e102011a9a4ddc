package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// boot runs the steps before the loops under one deadline. If a step hangs, for example on unresponsive storage, the
// agent names it and exits, so that the orchestrator restarts it and users see the reason.
type boot struct {
	ctx    context.Context
	within time.Duration
}

func newBoot(ctx context.Context, within time.Duration) (*boot, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, within)
	return &boot{ctx, within}, cancel
}

// step runs do. If do hangs, its goroutine is abandoned, because the process exits.
func (b *boot) step(name string, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	case <-b.ctx.Done():
		if errors.Is(context.Cause(b.ctx), context.DeadlineExceeded) {
			return fmt.Errorf("%s: it is not done after %s", name, b.within)
		}
		return fmt.Errorf("%s: %w", name, context.Cause(b.ctx))
	}
}
