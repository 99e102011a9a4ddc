package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// boot runs the steps before the loops under one deadline. If a step hangs, for example on unresponsive storage, the agent exits with its
// name, so that the orchestrator restarts the agent and users see the reason.
type boot struct {
	ctx     context.Context
	timeout time.Duration
}

func newBoot(ctx context.Context, timeout time.Duration) (*boot, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return &boot{ctx, timeout}, cancel
}

// step runs do. If do hangs, step abandons its goroutine, because the process exits.
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
		if errors.Is(b.ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%s: it is not done after %s", name, b.timeout)
		}
		return fmt.Errorf("%s: %w", name, context.Cause(b.ctx))
	}
}
