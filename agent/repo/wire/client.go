// Package wire talks to git servers: git's protocol version 0, as a client of git-upload-pack and git-receive-pack, over https,
// http or ssh.
//
// A Client lists the refs of a repository, and requests a commit in the cheapest way that the server accepts. The packs of the
// server go to a store.Transfer. A Client also pushes one ref with a pack of the caller; the server changes the ref only if it
// still has the value that the caller expects.
//
// A server is not trusted. Credentials go only to the scheme, host and port of the repository's URL. Every answer is limited in
// bytes and in time. Errors show text of the server only quoted and without the secrets that were sent.
package wire

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	gittransport "github.com/go-git/go-git/v5/plumbing/transport"

	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Client is the client of one repository on a git server. Its methods may be called from several goroutines.
type Client struct {
	url       URL
	auth      Auth
	opts      Options
	transport transport
	cache     advertisementCache // of git-upload-pack
	apiOnce   sync.Once
	api       *httpTransport // for the API of a host that is reached over ssh
}

// transport carries git's protocol to a server. exchange.outcome has the errors that the caller must prefer to the returned ones.
type transport interface {
	// advertise requests the advertisement of the service of x. An empty repository has no refs.
	advertise(ctx context.Context, x *exchange) (*advertisement, error)
	// push calls request with the advertisement of the server, sends the result, and returns the answer. If request fails, push
	// sends nothing.
	push(ctx context.Context, x *exchange, request func(*advertisement) (*updateRequest, error)) (io.ReadCloser, error)
	// upload sends a request and returns the answer, which the caller reads from the start of the pack.
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

// advertisement is the list of refs and capabilities that a server sends before it accepts a request.
type advertisement struct {
	caps *capability.List
	refs *Refs
	// session is the session of an httpTransport, which remembers the target of a redirect; nil for ssh and for git-receive-pack.
	session gittransport.UploadPackSession
}

// Refs requests all refs. A Fetch that follows soon uses the same advertisement.
func (c *Client) Refs(ctx context.Context) (*Refs, error) {
	ctx, dog, stop := c.watch(ctx, c.opts.Advertise)
	defer stop()
	a, err := c.advertise(ctx, dog, uploadPack)
	if err != nil {
		return nil, err
	}
	c.cache.put(a)
	return a.refs, nil
}

// watch starts a watchdog for total. The caller must call stop.
func (c *Client) watch(ctx context.Context, total time.Duration) (_ context.Context, dog *watchdog, stop func()) {
	return watch(ctx, total, c.opts.StallBytes, c.opts.StallWindow)
}

// advertise requests the advertisement of a service.
func (c *Client) advertise(ctx context.Context, dog *watchdog, s service) (*advertisement, error) {
	x := &exchange{dog: dog, service: s}
	a, err := c.transport.advertise(ctx, x)
	secrets, err := x.outcome(err)
	if err != nil {
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s: %w", c.url, Foreign(refused, secrets))
		}
		return nil, Explain(ctx, c.url, err, secrets)
	}
	if err := c.checkRefCount(a); err != nil {
		return nil, err
	}
	return a, nil
}

// checkRefCount returns an error if a repository has too many refs.
func (c *Client) checkRefCount(a *advertisement) error {
	if n := len(a.refs.ByName) + len(a.refs.Peeled); n > c.opts.MaxRefs {
		return store.OverLimit("%s has %d refs, more than %d", c.url, n, c.opts.MaxRefs)
	}
	return nil
}

// APIToken returns the token for the API of the forge: the token of the GitHub App, or Auth.Token if there is no app.
func (c *Client) APIToken(ctx context.Context) (secret.String, error) {
	if t, ok := c.transport.(*httpTransport); ok && t.app != nil {
		rt, err := t.sharedTransport()
		if err != nil {
			return secret.String{}, err
		}
		return t.app.validToken(ctx, rt)
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

// advertisementLifetime is how long requests may use an advertisement.
const advertisementLifetime = time.Minute

// advertisementCache keeps the last advertisement for the next request.
type advertisementCache struct {
	mu       sync.Mutex
	last     *advertisement
	received time.Time
}

func (c *advertisementCache) put(a *advertisement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.received = a, time.Now()
}

// take removes the last advertisement, and returns it if it is recent. Otherwise it returns nil.
func (c *advertisementCache) take() *advertisement {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.last
	c.last = nil
	if time.Since(c.received) >= advertisementLifetime {
		return nil
	}
	return a
}

// APITransport returns a transport for requests to the API of the git host. It uses the proxy and the certificates of the client,
// and adds no credentials.
func (c *Client) APITransport() http.RoundTripper { return apiTransport{c} }

type apiTransport struct{ client *Client }

// RoundTrip implements http.RoundTripper.
func (a apiTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	t, ok := a.client.transport.(*httpTransport)
	if !ok {
		t = a.client.sshAPI()
	}
	rt, err := t.sharedTransport()
	if err != nil {
		return nil, err
	}
	return rt.RoundTrip(req)
}

// sshAPI returns the transport for the API of a host whose repository is reached over ssh.
func (c *Client) sshAPI() *httpTransport {
	c.apiOnce.Do(func() { c.api = newHTTPTransport(c.url, Auth{CA: c.auth.CA}, c.opts) })
	return c.api
}

// Auth holds the credentials of a Client. The client calls its functions for every use, so that a rotated secret takes effect at
// once.
type Auth struct {
	// Field is the field of the spec that errors name; default git.auth.
	Field string
	// Username for basic authentication; default "git".
	Username string
	// Token returns the password or access token; nil if there is none. The client sends it only to the repository's scheme, host
	// and port.
	Token func() (secret.String, error)
	// App is a GitHub App whose tokens are used instead of Token; nil if there is none.
	App *GitHubApp
	// Key returns the private key for ssh, in PEM or OpenSSH form and without a passphrase; nil if there is none.
	Key func() (secret.String, error)
	// KnownHosts returns the trusted ssh host keys in the form of known_hosts; an empty result trusts no host. If KnownHosts is
	// nil, the client trusts the built-in keys of the public git hosts.
	KnownHosts func() ([]byte, error)
	// InsecureIgnoreHostKey accepts any ssh host key.
	InsecureIgnoreHostKey bool
	// CA returns a PEM bundle that the client trusts in addition to that of the system; nil if there is none.
	CA func() ([]byte, error)
}

func (a Auth) field() string { return cmp.Or(a.Field, "git.auth") }

// Options configures a Client. A zero field means the default.
type Options struct {
	Log       *slog.Logger  // default: discard
	Connect   time.Duration // for a TCP connection; default 10s
	Handshake time.Duration // for TLS or ssh; default 10s
	Advertise time.Duration // for a whole ref advertisement; default 1m
	Total     time.Duration // for a whole fetch or push; default 30m
	// StallBytes must arrive in every StallWindow, or the connection counts as dead; default 16 bytes in 1m. Busy git servers
	// send a few bytes every 5 s.
	StallBytes  int64
	StallWindow time.Duration
	// MaxBytes is the maximum size of one response; default 8 GiB.
	MaxBytes int64
	// MaxBlob is the maximum size of a file of an artifact: DeltaBytes of the store that imports it; default 512 MiB.
	MaxBlob int64
	// SearchBytes is the maximum size of all packs of a search for a commit that the server does not serve by its id; default
	// 1 GiB.
	SearchBytes int64
	// MaxRefs is the maximum number of refs of a repository; default 200,000. On a git server, an annotated tag counts twice.
	MaxRefs int
	// Guard checks the addresses that are dialed, for a program that several users share; nil allows all.
	Guard *httpclient.Guard
}

// WithDefaults returns o with the default in each field that is zero or negative.
func (o Options) WithDefaults() Options {
	setDefault(&o.Connect, 10*time.Second)
	setDefault(&o.Handshake, 10*time.Second)
	setDefault(&o.Advertise, time.Minute)
	setDefault(&o.Total, 30*time.Minute)
	setDefault(&o.StallWindow, time.Minute)
	setDefault(&o.StallBytes, 16)
	setDefault(&o.MaxBytes, 8<<30)
	setDefault(&o.MaxBlob, 512<<20)
	setDefault(&o.SearchBytes, 1<<30)
	setDefault(&o.MaxRefs, 200_000)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T ~int | ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
