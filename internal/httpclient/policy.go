package httpclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // CA certificates for images without any; those of the system come first
)

// Policy says how a client connects, and what it accepts. Its zero value connects directly, checks certificates with the authorities of the
// system, follows no redirect, and closes each connection after its answer.
type Policy struct {
	// Refusal returns the error for a redirect of a host that is not followed. With it, a client follows up to three redirects that stay at the
	// scheme, host and port of the request. Without it, a redirect is an answer like any other. No client follows a redirect to another host
	// with its credential. Only the client for registries follows one, for layers, and sends no credential there.
	Refusal func(host string) error
	// Proxy returns the proxy for a request, or nil; OnProxy checks how it answers to CONNECT.
	Proxy   func(*http.Request) (*url.URL, error)
	OnProxy func(ctx context.Context, proxy *url.URL, req *http.Request, res *http.Response) error
	// Dial makes connections. Default: a dialer that waits for at most ConnectTimeout.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTLS makes connections with TLS, for a configuration that can change with every connection; nil means Dial with TLS.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	TLS     *tls.Config
	// Timeout bounds a whole exchange; 0 means that the caller's context does. ConnectTimeout bounds connecting and the TLS handshake,
	// default 10 s. HeaderTimeout bounds the wait for the headers of the answer; 0 means no bound.
	Timeout, ConnectTimeout, HeaderTimeout time.Duration
	// KeepAlive is how long an idle connection stays; 0 closes it.
	KeepAlive time.Duration
	// MaxConns bounds the connections to a host; 0 means any number.
	MaxConns int
	HTTP2    bool
	// Raw turns compression off, so that a bound on the body holds for the bytes that arrive.
	Raw bool
}

const (
	// MaxHeader bounds the headers of an answer in bytes.
	MaxHeader = 64 << 10

	defaultConnect = 10 * time.Second
	maxRedirects   = 3
)

// Transport returns a transport. Only this package makes them, so that each has a policy.
func (p Policy) Transport() *http.Transport {
	connect := p.ConnectTimeout
	if connect <= 0 {
		connect = defaultConnect
	}
	t := &http.Transport{
		Proxy: p.Proxy, OnProxyConnectResponse: p.OnProxy, DialContext: p.Dial, DialTLSContext: p.DialTLS, TLSClientConfig: p.TLS, TLSHandshakeTimeout: connect,
		ResponseHeaderTimeout: p.HeaderTimeout, DisableKeepAlives: p.KeepAlive <= 0, IdleConnTimeout: p.KeepAlive,
		MaxConnsPerHost: p.MaxConns, ForceAttemptHTTP2: p.HTTP2, DisableCompression: p.Raw, MaxResponseHeaderBytes: MaxHeader,
	}
	if t.DialContext == nil {
		t.DialContext = (&net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}).DialContext
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return t
}

// Client returns a client with a transport of its own.
func (p Policy) Client() *http.Client { return p.ClientOf(p.Transport()) }

// ClientOf returns a client for a RoundTripper that wraps a transport of p.
func (p Policy) ClientOf(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, Timeout: p.Timeout, CheckRedirect: p.checkRedirect}
}

func (p Policy) checkRedirect(req *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case p.Refusal == nil:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects || Origin(req.URL) != Origin(first):
		return p.Refusal(first.Host)
	}
	return nil
}

// Origin returns the scheme, the host and the port of an http or https address in one form, to compare them.
func Origin(u *url.URL) string {
	scheme, port := strings.ToLower(u.Scheme), "443"
	if scheme == "http" {
		port = "80"
	}
	return scheme + "://" + CanonicalHost(u, port)
}

// CanonicalHost returns the host in lower case, with the port if it is not the default one.
func CanonicalHost(u *url.URL, defaultPort string) string {
	host, port := strings.ToLower(u.Host), u.Port()
	if port == "" || port == defaultPort {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return host
}

// Roots returns the certificates in pem, and with system also those of the system. It fails if pem contains no certificate.
func Roots(pem []byte, system bool) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if system {
		if all, err := x509.SystemCertPool(); err == nil {
			pool = all
		}
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("the CA bundle contains no PEM certificate")
	}
	return pool, nil
}

// RetryAfter reads a Retry-After header, seconds or a date, and reports whether it is valid. The pause is at most most.
func RetryAfter(value string, now time.Time, most time.Duration) (time.Duration, bool) {
	if s, err := strconv.ParseInt(value, 10, 64); err == nil && s >= 0 {
		return time.Duration(min(s, int64(most/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), most), true
	}
	return 0, false
}
