package wire

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
)

// exchange is what a transport learns in one conversation with a server. For http it travels in the context of the requests,
// because go-git keeps neither the types of errors nor all capabilities.
type exchange struct {
	dog     *watchdog
	service service

	mu        sync.Mutex
	err       error
	caps      *capability.List
	secrets   []string
	redirects int
	base      *url.URL // http: the address of the advertisement, after redirects
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

// program returns the address of the service's program: beside the advertisement, so that the redirect of a renamed repository
// counts for the request too.
func (x *exchange) program() (*url.URL, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.base == nil {
		return nil, errors.New("the server advertised nothing")
	}
	at := *x.base
	repository, ok := strings.CutSuffix(at.EscapedPath(), "/info/refs")
	if !ok {
		return nil, errors.New("the server advertised its refs at another path than /info/refs")
	}
	at.RawPath, at.RawQuery = repository+"/"+x.service.String(), ""
	var err error
	at.Path, err = url.PathUnescape(at.RawPath)
	return &at, err
}
