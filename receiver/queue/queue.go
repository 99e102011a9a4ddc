// Package queue carries out requests: one at a time and in order for each object, with equal requests merged, and a few at a
// time for all objects. A request is answered only after it was carried out.
package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// Joiner is a request.Decider that can merge with another one. A Decider computes a request when the object is written.
type Joiner interface {
	request.Decider
	// Join returns a Decider for both, or false if they cannot be merged.
	Join(other request.Decider) (both request.Decider, ok bool)
	// Deferrable reports whether the request may be carried out late, because it cannot override a later request.
	Deferrable() bool
}

// Key identifies the object of a request.
type Key struct {
	Kind            kube.Kind
	Namespace, Name string
}

// Config configures a Queue. Zero fields other than Do get defaults.
type Config struct {
	// Do carries out one request. Its context has the deadline that Timeout describes.
	Do func(context.Context, Key, request.Request) (request.Answer, error)
	// Timeout limits a request. For a request that is not deferrable, the time starts when it arrives; for others, when it is carried out.
	Timeout time.Duration
	// Pace is the minimum time between two poll requests for one object. It doubles up to MaxPace while more arrive, so that a
	// burst causes only a few writes. The lead decides by itself how often it polls git.
	Pace, MaxPace time.Duration
	// MaxParallel is how many requests are carried out at the same time.
	MaxParallel int
	// MaxObjects is how many objects may have requests that wait or are being carried out. MaxWaiting is how many different requests may
	// wait for one object.
	MaxObjects, MaxWaiting int
}

var (
	// ErrFull means that too many objects have waiting requests.
	ErrFull = errors.New("requests for too many objects are waiting")
	// ErrCrowded means that too many different requests wait for one object.
	ErrCrowded = errors.New("too many different requests for this object are waiting")
	// ErrLate means that earlier requests took so long that this one may be obsolete.
	ErrLate = errors.New("earlier requests took too long")
	// ErrClosed means that the queue is closed.
	ErrClosed = errors.New("the receiver is stopping")
)

// Queue carries requests out.
type Queue struct {
	Config
	slots   chan struct{}
	closing chan struct{}
	workers sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	objects map[Key]*object
	busy    int // number of objects with work
}

// object is the state of an object with recent requests.
type object struct {
	waiting []*batch
	lastRef request.Request // the last one that was not a hint
	running bool
	woken   chan struct{}
}

// batch is one request, or several equal ones.
type batch struct {
	request  request.Request
	deadline time.Time // latest deadline of the callers
	done     chan struct{}
	answer   request.Answer
	err      error
}

// New returns a Queue. The caller must close it.
func New(c Config) *Queue {
	c.Timeout = cmp.Or(c.Timeout, 8*time.Second) // git hosts wait ten seconds
	c.Pace, c.MaxPace = cmp.Or(c.Pace, 50*time.Millisecond), cmp.Or(c.MaxPace, 250*time.Millisecond)
	c.MaxParallel, c.MaxObjects, c.MaxWaiting = cmp.Or(c.MaxParallel, 8), cmp.Or(c.MaxObjects, 256), cmp.Or(c.MaxWaiting, 16)
	return &Queue{Config: c, slots: make(chan struct{}, c.MaxParallel), closing: make(chan struct{}), objects: map[Key]*object{}}
}

// isHint reports whether a request only asks for a poll of git.
func isHint(r request.Request) bool { return r.Ref == "" && !r.Force && !r.Withdraw }

// hasOrderedID reports whether the ids of the sender have an order.
func hasOrderedID(r request.Request) bool { return request.Ordered(r.By, r.ID) }

// isPaced reports whether a request only causes a poll of git: a hint, or the same ref again.
func (o *object) isPaced(r request.Request) bool { return isHint(r) || r == o.lastRef && r.ID == "" }

// isDeferrable reports whether a batch may be carried out after its deadline. A request for a ref may not, unless its Joiner says so: its
// sender got an error and may have made another request since, which must not be overwritten. A hint may: it is harmless, and hints are few
// because they merge. One with an ordered id does not merge, so it may not.
func (b *batch) isDeferrable() bool {
	j, ok := b.request.Decider.(Joiner)
	return isHint(b.request) && !hasOrderedID(b.request) || ok && j.Deferrable()
}

// Ask queues a request, waits for it and returns its outcome. Canceling ctx stops the wait, not the request. After Timeout or the deadline
// of ctx, the queue drops a waiting request that is not deferrable. The error is one of this package, that of Do, or the context's.
func (q *Queue) Ask(ctx context.Context, key Key, r request.Request) (request.Answer, error) {
	until := time.Now().Add(q.Timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	b, err := q.enqueue(key, r, until)
	if err != nil {
		return request.Answer{}, err
	}
	select {
	case <-b.done:
		return b.answer, b.err
	case <-ctx.Done():
		return request.Answer{}, ctx.Err()
	}
}

// enqueue adds a request to a waiting batch that it can join, or makes a new one. It does not join the batch that is being
// carried out, whose view of the object may be older than the request.
func (q *Queue) enqueue(key Key, r request.Request, until time.Time) (*batch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, ErrClosed
	}
	o := q.objects[key]
	// objects also has idle ones, whose workers end only when their pause is over. So it has a higher limit.
	if (o == nil || !o.running && len(o.waiting) == 0) && (q.busy >= q.MaxObjects || len(q.objects) >= 8*q.MaxObjects) {
		return nil, ErrFull
	}
	if o == nil {
		o = &object{woken: make(chan struct{}, 1)}
		q.objects[key] = o
		q.workers.Go(func() { q.work(key, o) })
	}
	if b := o.findBatch(r); b != nil {
		if b.deadline.Before(until) {
			b.deadline = until
		}
		return b, nil
	}
	// One hint is accepted beyond the limit, because most later ones merge with it.
	if len(o.waiting) >= q.MaxWaiting && (!isHint(r) || slices.ContainsFunc(o.waiting, func(b *batch) bool { return isHint(b.request) })) {
		return nil, ErrCrowded
	}
	if !o.running && len(o.waiting) == 0 {
		q.busy++
	}
	b := &batch{request: r, deadline: until, done: make(chan struct{})}
	o.waiting = append(o.waiting, b)
	select {
	case o.woken <- struct{}{}:
	default:
	}
	return b, nil
}

// merge merges r into the batch if both Deciders can be joined. The merged request has no id, because a repeat of one part is
// not a repeat of the whole.
func (b *batch) merge(r request.Request) bool {
	j, ok := b.request.Decider.(Joiner)
	if !ok || r.Decider == nil || r.UID != b.request.UID {
		return false
	}
	both, ok := j.Join(r.Decider)
	if ok {
		b.request.Decider, b.request.ID = both, ""
	}
	return ok
}

// findBatch returns the waiting batch that r can join, or nil. All hints for one object are equal except for their sender. A hint with an
// ordered id stays alone, because its sender may ask later whether this id was carried out. Two requests for a ref merge only if no other
// ref was requested in between.
func (o *object) findBatch(r request.Request) *batch {
	if !isHint(r) {
		for _, b := range slices.Backward(o.waiting) {
			if !isHint(b.request) {
				if b.request == r || b.merge(r) {
					return b
				}
				return nil
			}
		}
		return nil
	}
	for _, b := range o.waiting {
		switch {
		case !isHint(b.request):
		case b.request == r:
			return b
		case b.request.UID == r.UID && !hasOrderedID(b.request) && !hasOrderedID(r):
			b.request.ID = ""
			return b
		}
	}
	return nil
}

// work carries out the requests of one object. It returns when the object has been idle for a while.
func (q *Queue) work(key Key, o *object) {
	pace, due := time.Duration(0), time.Time{}
	for {
		b, wait := q.next(key, o, due)
		if b == nil && wait <= 0 {
			return
		}
		if b == nil {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-o.woken:
			case <-q.closing:
				due = time.Time{}
			}
			timer.Stop()
			continue
		}
		// isPaced can delay only a hint, or a repeat of this request; a request with an id has no such repeat.
		if isHint(b.request) || b.request.ID == "" {
			if time.Since(due) > pace { // the burst is over
				pace = 0
			}
			pace = min(max(2*pace, q.Pace), q.MaxPace)
			due = time.Now().Add(pace)
		}
		q.carryOut(key, b)
	}
}

// next returns the batch to carry out now: requests for a ref immediately and in order, paced requests when they are due. If
// there is none, it returns how long to wait, and removes an idle object.
func (q *Queue) next(key Key, o *object, due time.Time) (b *batch, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o.running {
		o.running = false
		if len(o.waiting) == 0 {
			q.busy--
		}
	}
	wait = time.Until(due)
	held := false // a request for a ref waits, and so do those behind it
	for i, b := range o.waiting {
		switch {
		case wait > 0 && o.isPaced(b.request):
			held = held || !isHint(b.request)
		case !held:
			if !isHint(b.request) {
				o.lastRef = b.request
			}
			o.waiting = slices.Delete(o.waiting, i, i+1)
			o.running = true
			return b, 0
		}
	}
	if wait <= 0 {
		delete(q.objects, key)
	}
	return nil, wait
}

func (q *Queue) carryOut(key Key, b *batch) {
	defer close(b.done)
	q.slots <- struct{}{} // the wait is bounded, because every holder has a deadline
	defer func() { <-q.slots }()
	until := b.deadline
	if b.isDeferrable() {
		until = time.Now().Add(q.Timeout)
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	if ctx.Err() != nil {
		b.err = ErrLate
		return
	}
	b.answer, b.err = q.Do(ctx, key, b.request)
}

// Close carries out all waiting requests without pauses, and rejects new ones.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.closing)
	}
	q.mu.Unlock()
	q.workers.Wait()
}
