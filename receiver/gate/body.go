package gate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// MaxBody is the largest body that is read. Git hosts send less, but for pushes of thousands of commits.
const MaxBody = 1 << 20

const (
	// small bodies are read by as many as there are connections, larger ones by a few at a time. Who sends nothing gets no more
	// than tiny, whatever length was announced.
	tiny, small = 1 << 10, 16 << 10
	// waits is how long a larger one waits for its turn, comes how long it may take to come in.
	waits, comes = 3 * time.Second, 5 * time.Second
)

var (
	// ErrTooLarge means that a body is larger than MaxBody.
	ErrTooLarge = errors.New("the body is larger than 1 MiB")
	// ErrBusy means that too many large bodies come in.
	ErrBusy = errors.New("too many large requests come in at once")
)

// Bodies reads bodies, of which only a few large ones are in memory at a time, and a third of these of one address.
type Bodies struct {
	large chan struct{} // the places that are taken
	each  int

	mu     sync.Mutex
	idle   [][]byte // of places that are free again
	owners map[string]*share
}

// share is what one address has of the places.
type share struct {
	places chan struct{}
	users  int // that have one, or wait
}

// NewBodies makes a Bodies that has so many large ones at a time. Their memory is used again and again.
func NewBodies(large int) *Bodies {
	return &Bodies{large: make(chan struct{}, large), each: max(1, large/3), owners: map[string]*share{}}
}

// Read reads a body. release has to be called when it is no longer needed, and then it must not be used; it is never nil.
// The error is ErrTooLarge, ErrBusy, or what reading it came to.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	release = func() {}
	if r.ContentLength > MaxBody {
		return nil, release, ErrTooLarge
	}
	// A recorder in a test has no deadline. One that stayed would end the request while it waits for its answer.
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

// take is what was used last, so that there are no more than are needed at a time.
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

// errFull means that there may be more than there is room for.
var errFull = errors.New("full")

// fill reads to the end, or as long as there is room.
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

// enter waits for a place of the address, and for one of all. leave gives both back.
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
