// Package queue carries requests out: for each object one at a time and in order, what says the same as one, for all objects
// a few at once. Whoever asks is answered when what was asked for is done, never before: an answer is a promise.
package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/internal/verb"
)

// Joiner is a Decider that can decide for another one, too. What would wait behind it is then one with it.
type Joiner interface {
	verb.Decider
	// Join returns what decides for both; false where nothing can.
	Join(other verb.Decider) (both verb.Decider, ok bool)
	// Lasting reports whether it may be decided at any time, since nothing is taken from who asked later.
	Lasting() bool
}

// Key is the object that is asked something of.
type Key struct{ Namespace, Name string }

// Config is what a Queue needs. The fields that are zero have defaults.
type Config struct {
	// Do carries one request out. Its context ends after Within.
	Do func(context.Context, Key, verb.Request) (verb.Answer, error)
	// Within bounds one request, for a ref from when it was asked for.
	Within time.Duration
	// Pace is the least time between two looks at git that are asked of one object. It doubles up to MaxPace while more come: a
	// burst then is a few writes. How often git is asked is the lead's own matter.
	Pace, MaxPace time.Duration
	// AtOnce is how many requests are carried out at once.
	AtOnce int
	// Objects is how many objects may have requests waiting; Waiting, how many different requests for a ref one object may.
	Objects, Waiting int
}

var (
	// ErrFull means that too many objects have requests waiting.
	ErrFull = errors.New("requests for too many GatewaySyncs are waiting")
	// ErrCrowded means that too many different requests wait for one object.
	ErrCrowded = errors.New("too many different requests for this GatewaySync are waiting")
	// ErrLate means that those before it took so long that somebody may have asked for something else since.
	ErrLate = errors.New("requests before this one took too long")
	// ErrClosed means that the program ends.
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
	busy    int // objects with something to do
}

// object is one that something was asked of lately.
type object struct {
	waiting []*batch
	last    verb.Request // for a ref
	running bool
	woken   chan struct{}
}

// batch is one request, or several that say the same.
type batch struct {
	request verb.Request
	until   time.Time // until when the last of those who ask is told yes
	done    chan struct{}
	answer  verb.Answer
	err     error
}

// New makes a Queue. It has to be closed.
func New(c Config) *Queue {
	c.Within = either(c.Within, 8*time.Second) // git hosts wait ten
	c.Pace, c.MaxPace = either(c.Pace, 50*time.Millisecond), either(c.MaxPace, 250*time.Millisecond)
	c.AtOnce, c.Objects, c.Waiting = either(c.AtOnce, 8), either(c.Objects, 256), either(c.Waiting, 16)
	return &Queue{Config: c, slots: make(chan struct{}, c.AtOnce), closing: make(chan struct{}), objects: map[Key]*object{}}
}

func either[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// hint reports whether a request only asks for a look at git.
func hint(r verb.Request) bool { return r.Ref == "" && !r.Force }

// ordered reports whether the ids of its sender have an order.
func ordered(r verb.Request) bool { return verb.Ordered(r.By, r.ID) }

// paced reports whether a request only asks for a look at git, or may: one for the same ref once more.
func (o *object) paced(r verb.Request) bool { return hint(r) || r == o.last && r.ID == "" }

// lasting reports whether it may be carried out at any time. A ref may not: who was told no asks again, or for another one, and
// what is written then would be what nobody waits for, over what was asked for since. So many hints wait only as are one.
func (b *batch) lasting() bool {
	j, ok := b.request.Decider.(Joiner)
	return hint(b.request) && !ordered(b.request) || ok && j.Lasting()
}

// Ask has a request carried out and returns its outcome. Where ctx is cancelled before, the request is carried out all the same;
// after its deadline, a request for a ref is not. The error is one of this package, that of Do, or the context's.
func (q *Queue) Ask(ctx context.Context, key Key, r verb.Request) (verb.Answer, error) {
	until := time.Now().Add(q.Within)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	b, err := q.enter(key, r, until)
	if err != nil {
		return verb.Answer{}, err
	}
	select {
	case <-b.done:
		return b.answer, b.err
	case <-ctx.Done():
		return verb.Answer{}, ctx.Err()
	}
}

// enter finds a batch that waits and says the same, or makes one. One that is being carried out is not joined: what it
// looks at may be older than the request.
func (q *Queue) enter(key Key, r verb.Request, until time.Time) (*batch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, ErrClosed
	}
	o := q.objects[key]
	if (o == nil || !o.running && len(o.waiting) == 0) && (q.busy >= q.Objects || len(q.objects) >= 8*q.Objects) {
		return nil, ErrFull
	}
	if o == nil {
		o = &object{woken: make(chan struct{}, 1)}
		q.objects[key] = o
		q.workers.Go(func() { q.work(key, o) })
	}
	if b := o.joins(r); b != nil {
		if b.until.Before(until) {
			b.until = until
		}
		return b, nil
	}
	if len(o.waiting) >= q.Waiting && (!hint(r) || slices.ContainsFunc(o.waiting, func(b *batch) bool { return hint(b.request) })) {
		return nil, ErrCrowded
	}
	if !o.running && len(o.waiting) == 0 {
		q.busy++
	}
	b := &batch{request: r, until: until, done: make(chan struct{})}
	o.waiting = append(o.waiting, b)
	select {
	case o.woken <- struct{}{}:
	default:
	}
	return b, nil
}

// takes makes r part of a request whose Decider can decide for both. It has no id then: one that is sent again is not all.
func (b *batch) takes(r verb.Request) bool {
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

// joins returns the batch that r becomes part of. All hints for one object say the same, but for who sends them: several have no
// id, or one of them that is a repeat would let the others be taken for repeats. One whose id has an order stays alone: whoever
// asks later how far it is asks whether that id was taken. Two requests for a ref say the same only while nothing else was asked
// for between them.
func (o *object) joins(r verb.Request) *batch {
	if !hint(r) {
		for _, b := range slices.Backward(o.waiting) {
			if !hint(b.request) {
				if b.request == r || b.takes(r) {
					return b
				}
				return nil
			}
		}
		return nil
	}
	for _, b := range o.waiting {
		switch {
		case !hint(b.request):
		case b.request == r:
			return b
		case b.request.UID == r.UID && !ordered(b.request) && !ordered(r):
			b.request.ID = ""
			return b
		}
	}
	return nil
}

// work carries out what is asked of one object, and ends when nothing was asked for a while.
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
		if hint(b.request) || b.request.ID == "" {
			if time.Since(due) > pace { // it was quiet
				pace = 0
			}
			pace = min(max(2*pace, q.Pace), q.MaxPace)
			due = time.Now().Add(pace)
		}
		q.carryOut(key, b)
	}
}

// next takes what is to be done now: requests for a ref at once and in their order, what is paced when it is due. It returns
// how long to wait where there is nothing, and forgets the object where there is nothing to wait for.
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
	held := false // a request for a ref waits, and those behind it with it
	for i, b := range o.waiting {
		switch {
		case wait > 0 && o.paced(b.request):
			held = held || !hint(b.request)
		case !held || hint(b.request):
			if !hint(b.request) {
				o.last = b.request
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
	q.slots <- struct{}{} // each of those that hold one ends within its time
	defer func() { <-q.slots }()
	until := b.until
	if b.lasting() {
		until = time.Now().Add(q.Within)
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	if ctx.Err() != nil {
		b.err = ErrLate
		return
	}
	b.answer, b.err = q.Do(ctx, key, b.request)
}

// Close carries out what waits, at once, and ends. What is asked from now on is not taken.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.closing)
	}
	q.mu.Unlock()
	q.workers.Wait()
}
