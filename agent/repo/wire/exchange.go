package wire

import (
	"context"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
)

// exchange is what a transport learns in one conversation with a server. For http it travels in the context of the requests,
// because go-git keeps neither the types of errors nor all capabilities.
type exchange struct {
	dog *watchdog

	mu        sync.Mutex
	err       error
	caps      *capability.List
	secrets   []string
	redirects int
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// fail remembers err if it is the first error, and returns it.
func (x *exchange) fail(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	return err
}

// capabilities returns what the server advertised, nil if that is not known.
func (x *exchange) capabilities() *capability.List {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.caps
}

// outcome returns the secrets that were sent and the first error.
func (x *exchange) outcome() (secrets []string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.secrets, x.err
}
