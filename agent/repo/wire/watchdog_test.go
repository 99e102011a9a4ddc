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

// trickle sends 10 bytes every 50 seconds, just enough for each window of the test.
type trickle struct{}

func (trickle) Read([]byte) (int, error) {
	time.Sleep(50 * time.Second)
	return 10, nil
}

func TestWatchdog(t *testing.T) {
	start := func(ctx context.Context) (context.Context, *watchdog, func()) {
		return watch(ctx, time.Hour, 10, time.Minute) // at most an hour, and at least 10 bytes in each minute
	}
	t.Run("a window without bytes is a stall", func(t *testing.T) {
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
			trickles := &receivedBody{ReadCloser: io.NopCloser(trickle{}), x: &exchange{dog: dog}, remaining: 1 << 20, limit: 1 << 20}
			for ctx.Err() == nil {
				_, err := trickles.Read(make([]byte, 100))
				require.NoError(t, err)
			}
			assert.ErrorIs(t, context.Cause(ctx), errDeadline)
			assert.GreaterOrEqual(t, time.Since(began), time.Hour)
		})
	})
	t.Run("time without a read is not a stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			endWait := dog.startWait()
			endWait()
			time.Sleep(50 * time.Minute)
			assert.NoError(t, ctx.Err())
		})
	})
}
