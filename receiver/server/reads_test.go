package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/receiver/queue"
)

// R11: however many callers ask for one object, it is read twice a second at most, and the others are not delayed.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		count := map[string]int{}
		s := newSharedReads(func(_ context.Context, key queue.Key) observation {
			mu.Lock()
			defer mu.Unlock()
			count[key.Name]++
			return observation{}
		})
		key := func(name string) queue.Key { return queue.Key{Kind: kube.GatewaySync, Namespace: "plant", Name: name} }
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var callers sync.WaitGroup
		var answers atomic.Int64
		for range 500 {
			callers.Go(func() {
				for s.get(ctx, key("attacked")).err == nil {
					answers.Add(1)
				}
			})
		}
		for range 50 { // setup: the attack goes on meanwhile
			began := time.Now()
			assert.NoError(t, s.get(ctx, key("other")).err)
			assert.Less(t, time.Since(began), maxReadPause)
			time.Sleep(time.Second)
		}
		callers.Wait()
		s.close()
		mu.Lock()
		defer mu.Unlock()
		assert.LessOrEqual(t, count["attacked"], 130)
		assert.Equal(t, 50, count["other"])
		assert.GreaterOrEqual(t, answers.Load(), int64(500*(count["attacked"]-3)), "all callers get the same read; some had ended before the last ones")
		assert.Empty(t, s.objects)
	})
}

// A read that began before the call may show the state before the caller's own request.
func TestReadIsNotOlderThanTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		release := make(chan struct{})
		s := newSharedReads(func(context.Context, queue.Key) observation {
			reads.Add(1)
			<-release
			return observation{}
		})
		defer s.close()
		var callers sync.WaitGroup
		callers.Go(func() { s.get(t.Context(), queue.Key{}) })
		synctest.Wait()
		second := make(chan struct{})
		callers.Go(func() { s.get(t.Context(), queue.Key{}); close(second) })
		synctest.Wait()
		release <- struct{}{}
		synctest.Wait()
		select {
		case <-second:
			assert.Fail(t, "the second call got the read of the first one")
		default:
		}
		close(release)
		callers.Wait()
		assert.EqualValues(t, 2, reads.Load())
	})
}
