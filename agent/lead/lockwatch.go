package lead

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"stoker.io/stoker/api/v1alpha1"
)

// lockWatch is the state of the lock as this agent's watch shows it. Times are from its own clock, because those of other nodes may
// be wrong.
type lockWatch struct {
	identity string
	now      func() time.Time

	mu      sync.Mutex
	listed  bool                 // saw was called
	target  *v1alpha1.SyncTarget // nil for none
	since   time.Time            // when the lock record last changed
	atLeast time.Duration        // how long it is valid from then on, if the record says less
	changed chan struct{}
}

func newLockWatch(identity string, now func() time.Time) *lockWatch {
	return &lockWatch{identity: identity, now: now, since: now(), changed: make(chan struct{}, 1)}
}

// saw records what the watch shows. Any change of the lock record counts as a renewal.
func (s *lockWatch) saw(t *v1alpha1.SyncTarget) {
	s.mu.Lock()
	if s.target == nil || t == nil || !equality.Semantic.DeepEqual(s.target.Spec.Lead, t.Spec.Lead) {
		s.since, s.atLeast = s.now(), 0
	}
	s.target, s.listed = t, true
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// extend lets the lock be valid for d since its last renewal. The next renewal counts as usual.
func (s *lockWatch) extend(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atLeast = d
}

// lockState is the state of the lock at one moment.
type lockState struct {
	target *v1alpha1.SyncTarget
	free   bool
	// heldByOther means that another agent holds the lock.
	heldByOther bool
	// expiresIn is the time until the lock expires unless it is renewed.
	expiresIn time.Duration
}

// state returns the state of the lock now. Before the watch has shown anything, the lock is neither free nor held.
func (s *lockWatch) state() lockState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := lockState{target: s.target, expiresIn: time.Hour} // a change of the lock ends a wait earlier
	if !s.listed {
		return st
	}
	if s.target == nil || s.target.Spec.Lead.Holder == "" {
		st.free = true
		return st
	}
	st.expiresIn = s.since.Add(max(s.target.Spec.Lead.ValidFor(), s.atLeast)).Sub(s.now())
	st.free = st.expiresIn <= 0
	st.heldByOther = !st.free && s.target.Spec.Lead.Holder != s.identity
	return st
}
