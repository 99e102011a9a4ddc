package limit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// MaxBody is the largest body that is read. Git hosts send less, except for pushes of thousands of commits.
const MaxBody = 1 << 20

const (
	// Every connection may read a small body at the same time; larger ones are limited by Bodies. A sender that sends nothing
	// costs only tiny, whatever Content-Length it announces.
	tiny, small = 1 << 10, 16 << 10
	// waits is how long a larger body waits for a slot, comes how long it may take to arrive.
	waits, comes = 3 * time.Second, 5 * time.Second
)

var (
	// ErrTooLarge means that a body is larger than MaxBody.
	ErrTooLarge = errors.New("the body is larger than 1 MiB")
	// ErrBusy means that too many large bodies arrive at the same time.
	ErrBusy = errors.New("too many large requests come in at once")
)

// Bodies reads request bodies. It limits how many large ones are in memory, and gives one address at most a third of these
// slots.
type Bodies struct {
	large chan struct{} // the slots in use
	each  int

	mu     sync.Mutex
	idle   [][]byte // buffers of free slots
	owners map[string]*share
}

// share holds the slots of one address.
type share struct {
	places chan struct{}
	users  int // requests that hold a slot or wait for one
}

// NewBodies returns a Bodies with the given number of slots for large bodies. It reuses their memory.
func NewBodies(large int) *Bodies {
	return &Bodies{large: make(chan struct{}, large), each: max(1, large/3), owners: map[string]*share{}}
}

// Read reads a body. The caller must call release, which is never nil, when it no longer uses the body. The error is
// ErrTooLarge, ErrBusy, or the error of the read.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	release = func() {}
	if r.ContentLength > MaxBody {
		return nil, release, ErrTooLarge
	}
	// A recorder in a test has no deadline. Reset the deadline at the end, or it would end the request while it waits for its
	// answer.
	deadline := http.NewResponseController(w).SetReadDeadline
	_ = deadline(time.Now().Add(comes))
	defer func() { _ = deadline(time.Time{}) }()
	first := make([]byte, tiny)
	n, err := fill(r.Body, first)
	if errors.Is(err, errFull) {
		first = append(make([]byte, 0, small), first...)[:small]
		n, err = fill(r.Body, first[tiny:])
		n += tiny
	}
	if !errors.Is(err, errFull) {
		return first[:n], release, err
	}
	leave, ok := b.enter(r.Context(), owner(r.RemoteAddr))
	if !ok {
		return nil, release, ErrBusy
	}
	buffer := b.take()
	release = sync.OnceFunc(func() {
		b.put(buffer)
		leave()
	})
	_ = deadline(time.Now().Add(comes))
	n, err = fill(r.Body, buffer[copy(buffer, first):])
	if errors.Is(err, errFull) {
		err = ErrTooLarge
	}
	return buffer[:small+n], release, err
}

// take returns the buffer that was used last, so that no more are allocated than are needed at the same time.
func (b *Bodies) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.idle) - 1
	if last < 0 {
		return make([]byte, MaxBody+1)
	}
	buffer := b.idle[last]
	b.idle = b.idle[:last]
	return buffer
}

func (b *Bodies) put(buffer []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = append(b.idle, buffer)
}

// errFull means that the buffer is full and there may be more to read.
var errFull = errors.New("full")

// fill reads until the end or until the buffer is full.
func fill(r io.Reader, into []byte) (n int, err error) {
	for n < len(into) {
		m, err := r.Read(into[n:])
		n += m
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, errFull
}

// enter waits for a slot of the address and a slot of the total. leave releases both.
func (b *Bodies) enter(ctx context.Context, host string) (leave func(), ok bool) {
	timer := time.NewTimer(waits)
	defer timer.Stop()
	its := b.of(host)
	for i, places := range []chan struct{}{its.places, b.large} {
		select {
		case places <- struct{}{}:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		if i > 0 {
			<-its.places
		}
		b.forget(host, its)
		return nil, false
	}
	return func() {
		<-b.large
		<-its.places
		b.forget(host, its)
	}, true
}

func (b *Bodies) of(host string) *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	its := b.owners[host]
	if its == nil {
		its = &share{places: make(chan struct{}, b.each)}
		b.owners[host] = its
	}
	its.users++
	return its
}

func (b *Bodies) forget(host string, its *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if its.users--; its.users == 0 {
		delete(b.owners, host)
	}
}
