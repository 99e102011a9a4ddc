package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	gittransport "github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"golang.org/x/net/http/httpproxy"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/pieces"
)

// httpTransport is the transport over https or http. It uses go-git's client with a roundTripper.
type httpTransport struct {
	url  URL
	auth Auth
	opts Options
	app  *appTokens // nil if there is no GitHub App

	mu     sync.Mutex
	shared *guardedTransport
	ca     []byte // the CA bundle of shared
}

// guardedTransport is a transport for requests with and without a proxy. The guard checks the host of each request, but not the address of
// the proxy: only the operator sets the environment, and the proxy may be beside the program, on a loopback address.
type guardedTransport struct {
	*http.Transport
	throughProxy *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t *guardedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if proxy, err := t.Proxy(req); err == nil && proxy != nil {
		return t.throughProxy.RoundTrip(req)
	}
	return t.Transport.RoundTrip(req)
}

// CloseIdleConnections closes the idle connections of both transports.
func (t *guardedTransport) CloseIdleConnections() {
	t.Transport.CloseIdleConnections()
	t.throughProxy.CloseIdleConnections()
}

func newHTTPTransport(u URL, auth Auth, o Options) *httpTransport {
	t := &httpTransport{url: u, auth: auth, opts: o}
	if auth.App != nil {
		t.app = newAppTokens(*auth.App, auth.field()+".githubApp", u, o)
	}
	return t
}

func (t *httpTransport) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared != nil {
		t.shared.CloseIdleConnections()
	}
	return nil
}

func (t *httpTransport) advertise(ctx context.Context, x *exchange) (*advertisement, error) {
	rt, err := t.sharedTransport()
	if err != nil {
		return nil, err
	}
	client := githttp.NewClientWithOptions(
		httpclient.Policy{Refusal: t.tooManyRedirects}.ClientOf(&roundTripper{t, rt}),
		&githttp.ClientOptions{RedirectPolicy: githttp.FollowInitialRedirects})
	if x.service == receivePack {
		session, err := client.NewReceivePackSession(t.endpoint(), nil)
		if err != nil {
			return nil, err
		}
		return t.readAdvertisement(ctx, x, session, nil)
	}
	at := t.endpoint()
	session, err := client.NewUploadPackSession(at, nil)
	if err != nil {
		return nil, err
	}
	a, err := t.readAdvertisement(ctx, x, session, session)
	if err != nil {
		return nil, err
	}
	target, err := x.programURL()
	if err != nil {
		return nil, err
	}
	at.Path = strings.TrimSuffix(target.EscapedPath(), "/"+x.service.String()) // the session has set it, without escapes
	return a, nil
}

// tooManyRedirects returns the error for redirects without end. The roundTripper refuses those to another origin.
func (t *httpTransport) tooManyRedirects(string) error {
	return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects again and again; set git.repo to the final address", t.url)
}

// readAdvertisement reads the advertisement of a session. upload is the session for the requests that follow, nil if there are
// none.
func (t *httpTransport) readAdvertisement(ctx context.Context, x *exchange, session gittransport.Session, upload gittransport.UploadPackSession) (*advertisement, error) {
	got, err := session.AdvertisedReferencesContext(withExchange(ctx, x))
	if errors.Is(err, gittransport.ErrEmptyRemoteRepository) {
		return &advertisement{session: upload, caps: capability.NewList(), refs: &Refs{}}, nil
	}
	if err != nil {
		return nil, err
	}
	caps := x.capabilities()
	if caps == nil {
		caps = got.Capabilities
	}
	return &advertisement{session: upload, caps: caps, refs: readRefs(got)}, nil
}

func (t *httpTransport) upload(ctx context.Context, x *exchange, a *advertisement, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	res, err := a.session.UploadPack(withExchange(ctx, x), req)
	if err != nil {
		return nil, err
	}
	x.body.raise(t.opts.MaxBytes)
	return res, nil
}

// push sends the request without go-git, which would copy the pack and drop the output of hooks.
func (t *httpTransport) push(ctx context.Context, x *exchange, request func(*advertisement) (*updateRequest, error)) (io.ReadCloser, error) {
	a, err := t.advertise(ctx, x)
	if err != nil {
		return nil, err
	}
	u, err := request(a)
	if err != nil {
		return nil, err
	}
	rt, err := t.sharedTransport()
	if err != nil {
		return nil, err
	}
	target, err := x.programURL()
	if err != nil {
		return nil, err
	}
	content := append(pieces.Of(u.head), u.pack...)
	body := func() io.ReadCloser { return io.NopCloser(content.Reader()) }
	req, err := http.NewRequestWithContext(withExchange(ctx, x), http.MethodPost, target.String(), body())
	if err != nil {
		return nil, err
	}
	req.GetBody = func() (io.ReadCloser, error) { return body(), nil } // for a retry if the server has closed an idle connection
	req.ContentLength = content.Len()
	req.Header.Set("User-Agent", capability.DefaultAgent())
	req.Header.Set("Content-Type", receivePack.requestType())
	req.Header.Set("Accept", receivePack.resultType())
	res, err := (&roundTripper{t, rt}).RoundTrip(req) // follows no redirect
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// endpoint returns the address in go-git's form, without the credentials, which the roundTripper adds.
func (t *httpTransport) endpoint() *gittransport.Endpoint {
	u := &url.URL{Scheme: t.url.scheme, Host: t.url.host, Path: t.url.path}
	port, _ := strconv.Atoi(u.Port()) // ParseURL has checked it; 0 if there is none
	return &gittransport.Endpoint{Protocol: t.url.scheme, Host: bracketIPv6(u.Hostname()), Port: port, Path: u.EscapedPath()}
}

// sharedTransport returns the transport of all requests. If the CA bundle has changed, it creates a new one.
func (t *httpTransport) sharedTransport() (*guardedTransport, error) {
	var ca []byte
	if t.auth.CA != nil {
		var err error
		if ca, err = t.auth.CA(); err != nil {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s cannot be read: %w", t.url, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared != nil && bytes.Equal(ca, t.ca) {
		return t.shared, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		pool, err := httpclient.Roots(ca, true)
		if err != nil {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s contains no PEM certificate", t.url)
		}
		conf.RootCAs = pool
	}
	if t.shared != nil {
		t.shared.CloseIdleConnections()
	}
	t.ca = ca
	proxy := proxyFromEnvironment()
	policy := httpclient.Policy{
		Proxy: func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		OnProxy: func(_ context.Context, proxy *url.URL, _ *http.Request, res *http.Response) error {
			return proxyStatusError(proxy, res.StatusCode)
		},
		Dial: (&net.Dialer{Timeout: t.opts.Connect}).DialContext, TLS: conf, ConnectTimeout: t.opts.Handshake,
		KeepAlive: advertisementLifetime, HTTP2: true,
	}
	t.shared = &guardedTransport{throughProxy: policy.Transport()}
	policy.Proxy = func(r *http.Request) (*url.URL, error) {
		p, err := proxy(r.URL)
		if err != nil || p == nil {
			return nil, err
		}
		return p, t.opts.Guard.CheckProxied(r.Context(), r.URL.Hostname())
	}
	policy.Dial, policy.TLS = t.opts.Guard.Dialer(t.opts.Connect).DialContext, conf.Clone()
	t.shared.Transport = policy.Transport()
	return t.shared, nil
}

// proxyFromEnvironment returns a function for the proxy of a URL by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; nil for none. Requests to
// loopback addresses never use a proxy.
func proxyFromEnvironment() func(*url.URL) (*url.URL, error) {
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	return func(u *url.URL) (*url.URL, error) {
		p, err := proxy(u)
		if err != nil { // its text may contain a password
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "HTTPS_PROXY or HTTP_PROXY of the agent's environment is not the address of a proxy")
		}
		return p, nil
	}
}

// proxyStatusError returns the error for the HTTP status of a proxy, nil for 200.
func proxyStatusError(proxy *url.URL, code int) error {
	switch code {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"the proxy %s requires other credentials (HTTP 407): set them in HTTPS_PROXY or HTTP_PROXY of the agent's environment", proxy.Host)
	case http.StatusForbidden:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the proxy %s does not allow the git host (HTTP 403): allow it there, or add it to NO_PROXY", proxy.Host)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "the proxy %s answers HTTP %d; trying again", proxy.Host, code)
}

// proxyError is an error of an exchange through a proxy, which may be the cause.
type proxyError struct {
	host string
	err  error
}

func (e *proxyError) Error() string { return "through the proxy " + e.host + ": " + e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }
