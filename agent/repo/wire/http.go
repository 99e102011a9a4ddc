package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// httpTransport is the transport over https or http: go-git's client above a roundTripper.
type httpTransport struct {
	url  URL
	auth Auth
	opts Options
	app  *appTokens // nil if there is no GitHub App

	mu        sync.Mutex
	transport *http.Transport
	ca        []byte // the CA bundle of transport
}

func newHTTPTransport(u URL, auth Auth, o Options) *httpTransport {
	t := &httpTransport{url: u, auth: auth, opts: o}
	if auth.App != nil {
		t.app = newAppTokens(*auth.App, u, o)
	}
	return t
}

func (t *httpTransport) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.transport != nil {
		t.transport.CloseIdleConnections()
	}
	return nil
}

func (t *httpTransport) advertise(ctx context.Context, x *exchange) (*advertisement, error) {
	rt, err := t.client()
	if err != nil {
		return nil, err
	}
	client := githttp.NewClientWithOptions(
		&http.Client{Transport: &roundTripper{t.url, t.auth, t.opts, t.app, rt}},
		&githttp.ClientOptions{RedirectPolicy: githttp.FollowInitialRedirects})
	session, err := client.NewUploadPackSession(t.endpoint(), nil)
	if err != nil {
		return nil, err
	}
	got, err := session.AdvertisedReferencesContext(withExchange(ctx, x))
	if errors.Is(err, gittransport.ErrEmptyRemoteRepository) {
		return &advertisement{session: session, caps: capability.NewList(), refs: &Refs{}}, nil
	}
	if err != nil {
		return nil, err
	}
	caps := x.capabilities()
	if caps == nil {
		caps = got.Capabilities
	}
	return &advertisement{session: session, caps: caps, refs: readRefs(got)}, nil
}

func (t *httpTransport) upload(ctx context.Context, x *exchange, a *advertisement, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	return a.session.UploadPack(withExchange(ctx, x), req)
}

// endpoint returns the address in go-git's form, without credentials: the roundTripper adds them.
func (t *httpTransport) endpoint() *gittransport.Endpoint {
	u := &url.URL{Scheme: t.url.scheme, Host: t.url.host, Path: t.url.path}
	host, port := u.Hostname(), 0
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if p := u.Port(); p != "" {
		port, _ = strconv.Atoi(p) // ParseURL has read it
	}
	return &gittransport.Endpoint{Protocol: t.url.scheme, Host: host, Port: port, Path: u.EscapedPath()}
}

// client returns the http.Transport. If the CA bundle has changed, it creates a new one.
func (t *httpTransport) client() (*http.Transport, error) {
	var ca []byte
	if t.auth.CA != nil {
		var err error
		if ca, err = t.auth.CA(); err != nil {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s cannot be read: %w", t.url, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.transport != nil && bytes.Equal(ca, t.ca) {
		return t.transport, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s holds no PEM certificate", t.url)
		}
		conf.RootCAs = pool
	}
	if t.transport != nil {
		t.transport.CloseIdleConnections()
	}
	t.ca = ca
	proxy := proxyFromEnvironment()
	t.transport = &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		OnProxyConnectResponse: refusedByProxy,
		DialContext:            (&net.Dialer{Timeout: t.opts.Connect}).DialContext,
		TLSHandshakeTimeout:    t.opts.Handshake,
		TLSClientConfig:        conf,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           2,
		IdleConnTimeout:        fresh,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return t.transport, nil
}
