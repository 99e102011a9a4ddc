package sync

import (
	"context"
	"time"
)

// lasting returns a context that outlives ctx by grace, for the scan that makes the gateway load its files and releases
// its scan lock.
func lasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { t.Stop() })
	})
	return longer, func() { stop(); cancel() }
}
