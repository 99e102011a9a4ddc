package wire

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	gittransport "github.com/go-git/go-git/v5/plumbing/transport"

	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

// Client is the client of one repository on a git server. Its methods may be called from several goroutines.
type Client struct {
	url       URL
	auth      Auth
	opts      Options
	transport transport
	last      cache
	apiOnce   sync.Once
	api       *httpTransport // for the API of a host that is reached over ssh
}

// transport carries git's protocol to a server. An error that it notes in the exchange counts more than the error that it
// returns.
type transport interface {
	// advertise asks the service of x for all refs. An empty repository has none.
	advertise(ctx context.Context, x *exchange) (*advertisement, error)
	// push sends what request returns for the advertisement of the server, and returns the answer. If request fails, nothing is
	// sent.
	push(ctx context.Context, x *exchange, request func(*advertisement) (*updateRequest, error)) (io.ReadCloser, error)
	// upload sends one request and returns the answer, positioned at the start of the pack.
	upload(ctx context.Context, x *exchange, a *advertisement, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	// close releases idle connections.
	close() error
}

// NewClient returns a client for an https, http or ssh URL. Nothing is sent yet. Credentials in the URL are used if auth has
// none.
func NewClient(u URL, auth Auth, o Options) *Client {
	o = o.WithDefaults()
	c := &Client{url: u, auth: auth, opts: o}
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
	a, err := c.advertise(ctx, dog, uploadPack)
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
	return c.advertise(ctx, dog, uploadPack)
}

func (c *Client) advertise(ctx context.Context, dog *watchdog, s service) (*advertisement, error) {
	x := &exchange{dog: dog, service: s}
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
	if err := c.bounded(a); err != nil {
		return nil, err
	}
	return a, nil
}

// bounded returns an error if a repository has too many refs.
func (c *Client) bounded(a *advertisement) error {
	if n := len(a.refs.ByName) + len(a.refs.Peeled); n > c.opts.MaxRefs {
		return store.OverLimit("%s has %d refs, more than %d", c.url, n, c.opts.MaxRefs)
	}
	return nil
}

// APIToken returns the token for the API of the forge: that of the GitHub App, or else Auth.Token.
func (c *Client) APIToken(ctx context.Context) (secret.String, error) {
	if t, ok := c.transport.(*httpTransport); ok && t.app != nil {
		rt, err := t.client()
		if err != nil {
			return secret.String{}, err
		}
		return t.app.get(ctx, rt)
	}
	if c.auth.Token == nil {
		return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed,
			"the API of the forge of %s needs a token, and there is none: set %s.token, or %s.githubApp", c.url, c.auth.field(), c.auth.field())
	}
	token, err := c.auth.Token()
	if err != nil {
		return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed, "the token for the API of the forge of %s cannot be read: %w", c.url, err)
	}
	text := strings.TrimSpace(token.Reveal())
	if text == "" {
		return secret.String{}, failure.New(v1alpha1.ReasonAuthFailed, "the token for the API of the forge of %s is empty", c.url)
	}
	return secret.New(text), nil
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
