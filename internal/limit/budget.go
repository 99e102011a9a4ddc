package limit

import (
	"errors"
	"io"
	"sync"
)

// freeBytes is how many bytes of each body do not count, so that a client that sends nothing uses up no budget.
const freeBytes = 1 << 10

// Budget limits the bytes of all bodies in memory, and gives one address at most a third of them. Unlike Bodies, it never waits for others
// to finish: the requests of one HTTP/2 connection share a receive window, so a body that waits could keep the others from arriving.
type Budget struct {
	limit int

	mu   sync.Mutex
	used int
	by   map[string]int // bytes of each address
}

// NewBudget returns a Budget of limit bytes.
func NewBudget(limit int) *Budget { return &Budget{limit: limit, by: map[string]int{}} }

// ReadAll reads a body that the client with the given address sends. The caller must call release, which is never nil, when it no longer uses
// the body. The error is ErrBusy if the budget is used up, or that of the read.
func (b *Budget) ReadAll(r io.Reader, address string) (body []byte, release func(), err error) {
	host, taken := addressKey(address, false), 0
	body = make([]byte, 0, freeBytes)
	release = sync.OnceFunc(func() { b.take(host, -taken) })
	for {
		if len(body) == cap(body) {
			more := cap(body)
			if !b.take(host, more) {
				return nil, release, ErrBusy
			}
			taken += more
			body = append(make([]byte, 0, freeBytes+taken), body...)
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, release, nil
		case err != nil:
			return nil, release, err
		}
	}
}

// take takes n bytes for an address, or gives them back if n is negative. It reports whether they are available.
func (b *Budget) take(host string, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (b.used+n > b.limit || b.by[host]+n > b.limit/3) {
		return false
	}
	b.used += n
	if b.by[host] += n; b.by[host] == 0 {
		delete(b.by, host)
	}
	return true
}
