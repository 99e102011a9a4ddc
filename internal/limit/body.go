package limit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// MaxBody is the largest body in bytes that is kept whole. Git hosts send less, except for pushes of thousands of commits.
	MaxBody = 1 << 20
	// MaxStream is the largest body in bytes that is read: the limit of GitHub.
	MaxStream = 25 << 20
	// Every connection may read a body of fewer than smallBody bytes at any time; Bodies limits larger ones. A sender that sends nothing
	// uses only tinyBody bytes, whatever Content-Length it announces.
	tinyBody, smallBody = 1 << 10, 16 << 10
	// slotTimeout is how long a larger body waits for a slot. arrivalTimeout is how long a body may take to arrive, and again how long the
	// part of a larger body may take that is read with a slot, and the part that Rest copies.
	slotTimeout, arrivalTimeout = 3 * time.Second, 5 * time.Second
)

var (
	// ErrTooLarge means that a body is larger than MaxStream.
	ErrTooLarge = errors.New("the body is larger than 25 MiB")
	// ErrCut means that a body is larger than MaxBody. Rest reads what is left of it.
	ErrCut = errors.New("the body is larger than 1 MiB")
	// ErrBusy means that too many large bodies arrive at the same time.
	ErrBusy = errors.New("too many large requests arrive at once")
)

// Bodies reads request bodies. Each large one needs a slot while it is in memory. Bodies gives one address at most a third of the slots, but at
// least one. It counts an IPv6 network /64 as one address.
type Bodies struct {
	slots     chan struct{} // the slots in use
	slotsEach int

	mu      sync.Mutex
	buffers [][]byte // buffers of free slots
	shares  map[string]*share
}

// share holds the slots of one address.
type share struct {
	slots chan struct{}
	users int // requests that hold a slot or wait for one
}

// NewBodies returns a Bodies with the given number of slots for large bodies. It reuses their memory.
func NewBodies(large int) *Bodies {
	return &Bodies{slots: make(chan struct{}, large), slotsEach: max(1, large/3), shares: map[string]*share{}}
}

// Read reads a body. The caller must call release, which is never nil, when it no longer uses the body. The error is
// ErrTooLarge, ErrBusy, ErrCut with the beginning of the body, or the error of the read.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	release = func() {}
	if r.ContentLength > MaxStream {
		return nil, release, ErrTooLarge
	}
	// Ignore errors: a test's ResponseRecorder has no deadline. Clear the deadline at the end, or it may abort the request while the
	// handler still works. If Read fails, net/http needs the deadline to discard the rest of the body.
	deadline := http.NewResponseController(w).SetReadDeadline
	_ = deadline(time.Now().Add(arrivalTimeout))
	defer func() {
		if err == nil || errors.Is(err, ErrCut) {
			_ = deadline(time.Time{})
		}
	}()
	first := make([]byte, tinyBody)
	n, err := fill(r.Body, first)
	if errors.Is(err, errFull) {
		first = append(make([]byte, 0, smallBody), first...)[:smallBody]
		n, err = fill(r.Body, first[tinyBody:])
		n += tinyBody
	}
	if !errors.Is(err, errFull) {
		return first[:n], release, err
	}
	releaseSlots, ok := b.acquire(r.Context(), addressKey(r.RemoteAddr, true))
	if !ok {
		return nil, release, ErrBusy
	}
	buffer := b.getBuffer()
	release = sync.OnceFunc(func() {
		b.putBuffer(buffer)
		releaseSlots()
	})
	_ = deadline(time.Now().Add(arrivalTimeout))
	n, err = fill(r.Body, buffer[copy(buffer, first):])
	if errors.Is(err, errFull) {
		err = ErrCut
	}
	return buffer[:smallBody+n], release, err
}

// Rest copies to out what follows the body that Read has cut. The caller must not release that body before, so that its slot limits the
// number of such copies, too. The error is ErrTooLarge if the whole body is larger than MaxStream, or that of reading or writing.
func (b *Bodies) Rest(w http.ResponseWriter, r *http.Request, out io.Writer) error {
	deadline := http.NewResponseController(w).SetReadDeadline
	_ = deadline(time.Now().Add(arrivalTimeout)) // a ResponseRecorder of a test has none
	n, err := io.Copy(out, io.LimitReader(r.Body, MaxStream-MaxBody))
	switch {
	case err != nil:
		return err
	case n == MaxStream-MaxBody:
		return ErrTooLarge
	}
	_ = deadline(time.Time{})
	return nil
}

// getBuffer returns the buffer that was put back last, or a new one if all are in use.
func (b *Bodies) getBuffer() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.buffers) - 1
	if last < 0 {
		return make([]byte, MaxBody+1)
	}
	buffer := b.buffers[last]
	b.buffers = b.buffers[:last]
	return buffer
}

func (b *Bodies) putBuffer(buffer []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffers = append(b.buffers, buffer)
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

// acquire waits for a slot of the address and a slot of the total. releaseSlots releases both.
func (b *Bodies) acquire(ctx context.Context, host string) (releaseSlots func(), ok bool) {
	timer := time.NewTimer(slotTimeout)
	defer timer.Stop()
	of := b.shareOf(host)
	for i, slots := range []chan struct{}{of.slots, b.slots} {
		select {
		case slots <- struct{}{}:
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		if i > 0 {
			<-of.slots
		}
		b.releaseShare(host, of)
		return nil, false
	}
	return func() {
		<-b.slots
		<-of.slots
		b.releaseShare(host, of)
	}, true
}

func (b *Bodies) shareOf(host string) *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.shares[host]
	if of == nil {
		of = &share{slots: make(chan struct{}, b.slotsEach)}
		b.shares[host] = of
	}
	of.users++
	return of
}

func (b *Bodies) releaseShare(host string, of *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(b.shares, host)
	}
}
