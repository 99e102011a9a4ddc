package store

import (
	"os"
	"slices"
	"sync"

	"stoker.io/stoker/agent/plan"
)

// packSet is what a store has open: its packs, and what the last transfer and reads found out about them. Its methods may be
// called concurrently.
type packSet struct {
	mu      sync.RWMutex
	list    []*pack // oldest first; the slice is never changed in place
	tip     plan.ID // the commit of the last transfer; zero if it is not known
	damaged bool    // the next transfer must fetch everything
	closed  bool
}

// load replaces everything in the set by what is on disk.
func (s *packSet) load(packs []*pack, tip plan.ID, damaged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.tip, s.damaged = packs, tip, damaged
}

// close releases the packs. It reports whether the set was open.
func (s *packSet) close() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closed = true
	releaseAll(s.list)
	s.list = nil
	return true
}

func (s *packSet) isClosed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closed
}

// acquire returns the current packs. They stay open until the caller calls releaseAll.
func (s *packSet) acquire() []*pack {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.list {
		p.retain()
	}
	return s.list
}

func releaseAll(packs []*pack) {
	for _, p := range packs {
		p.release()
	}
}

// add adds a pack. If replace is true, it removes all others and returns them; the caller releases them.
func (s *packSet) add(p *pack, replace bool) (removed []*pack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.list
	if n := len(old); n > 0 {
		p.seq = old[n-1].seq + 1
	}
	if !replace {
		s.list = append(slices.Clip(old), p)
		return nil
	}
	s.list, s.damaged = []*pack{p}, false
	return old
}

// partial reports whether a pack lacks blobs of its trees.
func (s *packSet) partial() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(s.list, func(p *pack) bool { return p.partial })
}

func (s *packSet) isDamaged() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.damaged
}

// markDamaged marks the set as damaged. It reports whether an open set was not damaged before.
func (s *packSet) markDamaged() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.damaged && !s.closed
	s.damaged = true
	return first
}

// lastTip returns the commit of the last transfer.
func (s *packSet) lastTip() plan.ID {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tip
}

// setTip sets the commit of the last transfer. It reports whether the commit changed.
func (s *packSet) setTip(commit plan.ID) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.tip != commit
	s.tip = commit
	return changed
}

// smallStore is a size in bytes. A store is Grown if all its packs together exceed twice the largest one by more than that.
const smallStore = 4 << 20

// condition checks that the files of the packs exist in root, and returns the condition of the store. More than maxPacks packs
// make it Grown.
func (s *packSet) condition(root *os.Root, maxPacks int) Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	total, largest := int64(0), int64(0)
	for _, p := range s.list {
		for _, ext := range []string{packExt, indexExt} {
			if _, err := root.Stat(p.name + ext); err != nil {
				s.damaged = true
			}
		}
		total, largest = total+p.size, max(largest, p.size)
	}
	switch {
	case s.damaged:
		return Damaged
	case len(s.list) == 0:
		return Empty
	case len(s.list) > maxPacks, total > 2*largest+smallStore:
		return Grown
	}
	return Ready
}
