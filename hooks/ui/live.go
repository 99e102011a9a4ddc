package ui

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// minEventInterval is the shortest time between two events, so that a fleet that always changes does not keep the browser busy.
	minEventInterval = time.Second
	// maxEventInterval is the longest time between two events: relative times grow, and an absent lead changes no object.
	maxEventInterval = 30 * time.Second
)

// serveLive sends an event when the page must be loaded again.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	changes, end := s.hub.subscribe(r.URL.Query().Get("fleet"))
	if changes == nil {
		http.Error(w, "Too many pages are open: close some.", http.StatusServiceUnavailable)
		return
	}
	defer end()
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; n++ {
		if control.SetWriteDeadline(time.Now().Add(maxEventInterval)) != nil {
			return
		}
		event := "changed"
		if n == 0 {
			event = "open"
		}
		if _, err := fmt.Fprintf(w, "retry: 2000\nevent: %s\ndata: %d\n\n", event, n); err != nil || control.Flush() != nil {
			return
		}
		if !s.wait(r, minEventInterval, nil) || !s.wait(r, maxEventInterval-minEventInterval, changes) {
			return
		}
	}
}

// wait waits for a change, for at most d. It returns false if the client or the server ends.
func (s *Server) wait(r *http.Request, d time.Duration, changes <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
		return false
	case <-s.done:
		return false
	case <-timer.C:
	case <-changes:
	}
	return true
}

// hub notifies open pages of changes.
type hub struct {
	mu          sync.Mutex
	subscribers map[chan struct{}]string // values are keys of fleets; "" for all
}

// notify notifies the subscribers of a fleet and those of all fleets, or every subscriber if the key is "".
func (h *hub) notify(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch, follows := range h.subscribers {
		if key != "" && follows != "" && follows != key {
			continue
		}
		select {
		case ch <- struct{}{}:
		default: // it has not received the last one yet
		}
	}
}

// subscribe returns a channel that receives a value when a fleet changes, and a function that ends the subscription. The key is that of the
// fleet, or "" for all. It returns nil if there are too many subscribers.
func (h *hub) subscribe(key string) (<-chan struct{}, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subscribers) >= maxStreams {
		return nil, nil
	}
	ch := make(chan struct{}, 1)
	h.subscribers[ch] = key
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subscribers, ch)
	}
}
