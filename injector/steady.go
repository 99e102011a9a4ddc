package main

import (
	"sync"
	"time"
)

// repairDelay is how long it takes until Services lead to a replica that became ready, with a margin for the kubelet's probe,
// the EndpointSlice and the proxy of every node. If a pod were evicted earlier, its successor would get no agent.
const repairDelay = 10 * time.Second

// steady returns a function that reports whether ready has been true for at least d. It must be called more often than ready
// changes.
func steady(ready func() bool, d time.Duration, now func() time.Time) func() bool {
	var mu sync.Mutex
	var since time.Time
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if !ready() {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = now()
		}
		return now().Sub(since) >= d
	}
}
