package wire

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trickle is a slow server that keeps sending.
type trickle struct{}

func (trickle) Read([]byte) (int, error) {
	time.Sleep(50 * time.Second)
	return 10, nil
}

func TestWatchdog(t *testing.T) {
	start := func(ctx context.Context) (context.Context, *watchdog, func()) {
		return watch(ctx, time.Hour, 10, time.Minute)
	}
	t.Run("nothing in a window ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			dog.startWait()
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), errStalled)
		})
	})
	t.Run("a trickle is enough until the total time is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			began := time.Now()
			trickles := &receivedBody{ReadCloser: io.NopCloser(trickle{}), dog: dog, remaining: 1 << 20, limit: 1 << 20}
			for ctx.Err() == nil {
				_, err := trickles.Read(make([]byte, 100))
				require.NoError(t, err)
			}
			assert.ErrorIs(t, context.Cause(ctx), errDeadline)
			assert.GreaterOrEqual(t, time.Since(began), time.Hour)
		})
	})
	t.Run("time in which we are busy ourselves is no stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			dog.startWait()()
			time.Sleep(50 * time.Minute)
			assert.NoError(t, ctx.Err())
		})
	})
}
