package repo

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
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// web is the way to a repository behind https or http. The protocol is go-git's; requests go through a gate.
type web struct {
	url  URL
	auth Auth
	opts RemoteOptions
	app  *appTokens // nil for none

	mu        sync.Mutex
	transport *http.Transport
	ca        []byte // that transport trusts
}

func newWeb(u URL, auth Auth, o RemoteOptions) *web {
	w := &web{url: u, auth: auth, opts: o}
	if auth.App != nil {
		w.app = newAppTokens(*auth.App, u, o)
	}
	return w
}

func (w *web) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
	return nil
}

func (w *web) advertise(ctx context.Context, x *exchange) (*advert, error) {
	rt, err := w.roundTripper()
	if err != nil {
		return nil, err
	}
	client := githttp.NewClientWithOptions(
		&http.Client{Transport: &gate{w.url, w.auth, w.opts, w.app, rt}},
		&githttp.ClientOptions{RedirectPolicy: githttp.FollowInitialRedirects})
	session, err := client.NewUploadPackSession(w.endpoint(), nil)
	if err != nil {
		return nil, err
	}
	got, err := session.AdvertisedReferencesContext(withExchange(ctx, x))
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return &advert{session: session, caps: capability.NewList(), refs: &refs{}}, nil
	}
	if err != nil {
		return nil, err
	}
	caps := x.capabilities()
	if caps == nil {
		caps = got.Capabilities
	}
	return &advert{session: session, caps: caps, refs: readRefs(got)}, nil
}

func (w *web) upload(ctx context.Context, x *exchange, a *advert, req *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	return a.session.UploadPack(withExchange(ctx, x), req)
}

// endpoint is the address as go-git wants it, without credentials: the gate adds them.
func (w *web) endpoint() *transport.Endpoint {
	u := &url.URL{Scheme: w.url.scheme, Host: w.url.host, Path: w.url.path}
	host, port := u.Hostname(), 0
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if p := u.Port(); p != "" {
		port, _ = strconv.Atoi(p) // ParseURL has read it
	}
	return &transport.Endpoint{Protocol: w.url.scheme, Host: host, Port: port, Path: u.EscapedPath()}
}

// roundTripper returns the transport, a new one where the CA bundle has changed.
func (w *web) roundTripper() (*http.Transport, error) {
	var ca []byte
	if w.auth.CA != nil {
		var err error
		if ca, err = w.auth.CA(); err != nil {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s cannot be read: %w", w.url, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil && bytes.Equal(ca, w.ca) {
		return w.transport, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return nil, failure.New(v1alpha1.ReasonGitUnreachable, "the CA bundle for %s holds no PEM certificate", w.url)
		}
		conf.RootCAs = pool
	}
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
	w.ca = ca
	proxy := proxyFromEnvironment()
	w.transport = &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		OnProxyConnectResponse: refusedByProxy,
		DialContext:            (&net.Dialer{Timeout: w.opts.Connect}).DialContext,
		TLSHandshakeTimeout:    w.opts.Handshake,
		TLSClientConfig:        conf,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           2,
		IdleConnTimeout:        fresh,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return w.transport, nil
}
