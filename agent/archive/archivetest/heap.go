package archivetest

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// PeakHeap runs f and returns by how many MiB the heap of the process grew meanwhile, at most.
func PeakHeap(t *testing.T, f func()) int {
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
