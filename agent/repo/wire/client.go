package wire

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	gittransport "github.com/go-git/go-git/v5/plumbing/transport"

	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Client is the client of one repository on a git server. Its methods may be called from several goroutines.
type Client struct {
	url       URL
	opts      Options
	transport transport
	last      cache
}

// transport carries git's protocol to a server. An error that it notes in the exchange counts more than the error that it
// returns.
type transport interface {
	// advertise asks for all refs. An empty repository has none.
	advertise(ctx context.Context, x *exchange) (*advertisement, error)
	// upload sends one request and returns the answer, positioned at the start of the pack.
	upload(ctx context.Context, x *exchange, a *advertisement, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	// close releases idle connections.
	close() error
}

// NewClient returns a client for an https, http or ssh URL. Nothing is sent yet. Credentials in the URL are used if auth has
// none.
func NewClient(u URL, auth Auth, o Options) *Client {
	o = o.WithDefaults()
	c := &Client{url: u, opts: o}
	if u.SSH() {
		c.transport = &sshTransport{url: u, auth: auth, opts: o}
	} else {
		c.transport = newHTTPTransport(u, auth, o)
	}
	return c
}

// Close closes idle connections. The Client can still be used.
func (c *Client) Close() error { return c.transport.close() }

// advertisement is what a server says before a request.
type advertisement struct {
	caps *capability.List
	refs *Refs
	// session is that of http, which remembers the target of a redirect.
	session gittransport.UploadPackSession
}

// Refs asks for all refs. The Fetch that follows uses the same advertisement.
func (c *Client) Refs(ctx context.Context) (*Refs, error) {
	ctx, dog, stop := watch(ctx, c.opts.Advertise, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	a, err := c.advertise(ctx, dog)
	if err != nil {
		return nil, err
	}
	c.last.put(a)
	return a.refs, nil
}

// advertised returns the last advertisement if it is recent, or asks for a new one.
func (c *Client) advertised(ctx context.Context, dog *watchdog) (*advertisement, error) {
	if a := c.last.take(); a != nil {
		return a, nil
	}
	return c.advertise(ctx, dog)
}

func (c *Client) advertise(ctx context.Context, dog *watchdog) (*advertisement, error) {
	x := &exchange{dog: dog}
	a, err := c.transport.advertise(ctx, x)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err != nil {
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s: %w", c.url, Foreign(refused, secrets))
		}
		return nil, Explain(ctx, c.url, err, secrets)
	}
	if n := len(a.refs.ByName) + len(a.refs.Peeled); n > c.opts.MaxRefs {
		return nil, store.OverLimit("%s has %d refs, more than %d", c.url, n, c.opts.MaxRefs)
	}
	return a, nil
}

// fresh is how long an advertisement is used for the requests that follow it.
const fresh = time.Minute

// cache keeps the last advertisement for the request that follows.
type cache struct {
	mu   sync.Mutex
	last *advertisement
	at   time.Time
}

func (c *cache) put(a *advertisement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.at = a, time.Now()
}

// take returns the last advertisement once, if it is recent. Otherwise it returns nil.
func (c *cache) take() *advertisement {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.last
	c.last = nil
	if time.Since(c.at) >= fresh {
		return nil
	}
	return a
}
