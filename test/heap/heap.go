// Package heap measures the memory that a function needs.
package heap

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// Peak runs f and returns the largest growth of HeapAlloc seen meanwhile, in MiB. It samples every millisecond and includes garbage that is
// not yet collected.
func Peak(t *testing.T, f func()) int {
	t.Helper()
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	peak, done := before.HeapAlloc, make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	f()
	close(done)
	sampler.Wait()
	return int((peak - before.HeapAlloc) >> 20)
}
