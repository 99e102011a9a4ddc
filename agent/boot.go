package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// boot runs the steps before the steady state, all within one deadline. A step that hangs, on storage that does not
// answer, is named and ends the agent: an orchestrator then starts it again, and people see where it stands.
type boot struct {
	ctx    context.Context
	within time.Duration
}

func newBoot(ctx context.Context, within time.Duration) (*boot, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, within)
	return &boot{ctx, within}, cancel
}

// step runs do. What do hangs in is left behind, as the process ends.
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
