package ui

import "sync"

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
