package main

import (
	"sync"
	"time"
)

// repairDelay is how long after this replica became ready Services lead to it, with room: the kubelet's probe, the
// EndpointSlice and every node's proxy come in between. A pod that is evicted sooner gets a successor without an agent.
const repairDelay = 10 * time.Second

// steady returns whether ready has held for at least d. It has to be asked more often than ready changes.
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
