package reconcile

import "sync"

// maxSaid bounds the memory of said. Sending an Event again is harmless: it exists already.
const maxSaid = 20000

// said remembers which Events were sent.
type said struct {
	mu        sync.Mutex
	now, last map[string]bool
}

func (s *said) seen(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now[key] || s.last[key]
}

func (s *said) add(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || len(s.now) >= maxSaid/2 {
		s.last, s.now = s.now, map[string]bool{}
	}
	s.now[key] = true
}
