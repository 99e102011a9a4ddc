// Package ignition is a client of the REST interface of an Ignition 8.3 gateway: its state, its scans and scan lock,
// its projects, resources, Designer sessions and log.
//
// Doc comments name the source of each fact about the gateway: [SPEC] is the vendor's OpenAPI document of 8.3.8, [IA]
// the vendor's documentation and staff, [LIVE x.y.z] a report from a live gateway of that version, [3P] a claim from
// one source. Times that a gateway reports are times of the gateway's clock; compare them only with each other.
package ignition

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Config configures a Client. Zero durations mean the defaults.
type Config struct {
	// URL is scheme, host and port of the gateway, for example http://localhost:8088.
	URL string
	// Key returns the API key, <name>:<key>. The client calls it for each request, so a rotated key takes effect
	// immediately. If nil, the client sends no key, and only Ping, Platform and, in 8.1, ScanByModule work.
	Key func() (secret.String, error)
	// Rejected says why the gateway may have rejected the key (401, 403); nil for general advice.
	Rejected func() error
	TLS      TLS
	Log      *slog.Logger
	// Timeout bounds one request including its response. Default 10 s.
	Timeout time.Duration
	// PollInterval is the first pause between two polls of a scan. It grows up to eightfold.
	// Default 250 ms.
	PollInterval time.Duration
	// ScanTimeout bounds one scan from its POST to its end. Default 2 min.
	ScanTimeout time.Duration
	// BackupStall is how long the gateway may take to begin a backup, and to send more of it. Default 5 min.
	BackupStall time.Duration
	// LockWait is how long the gateway may wait for a scan lock, in whole seconds and at least one. Default 10 s, which is the
	// gateway's own default [SPEC].
	LockWait time.Duration
}

// TLS configures how the client verifies the certificate of an https gateway.
type TLS struct {
	// CA returns PEM certificates to trust instead of the system's. The client calls it for each new connection.
	CA func() ([]byte, error)
	// ServerName is the name in the gateway's certificate, if it differs from the host of the URL.
	ServerName string
	// InsecureSkipVerify accepts every certificate.
	InsecureSkipVerify bool
}

// Client is a gateway's REST client. Its methods may be called from several goroutines.
type Client struct {
	cfg  Config
	base *url.URL
	http *http.Client
	log  *slog.Logger
}

const (
	// maxAnswer bounds a response. It is far larger than any page of a list.
	maxAnswer = 8 << 20
	// maxRefusal bounds how much of an error response the client reads.
	maxRefusal = 64 << 10

	tokenHeader = "X-Ignition-API-Token"
)

// New returns a Client. It does not connect.
func New(cfg Config) (*Client, error) {
	base, err := parseBase(cfg.URL)
	if err != nil {
		return nil, err
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.PollInterval = cmp.Or(cfg.PollInterval, 250*time.Millisecond)
	cfg.ScanTimeout = cmp.Or(cfg.ScanTimeout, 2*time.Minute)
	cfg.BackupStall = cmp.Or(cfg.BackupStall, 5*time.Minute)
	cfg.LockWait = cmp.Or(cfg.LockWait, 10*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{
		cfg:  cfg,
		base: base,
		log:  cfg.Log,
		http: newClient(cfg.TLS, base.Hostname()),
	}, nil
}

// Close closes idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// URL returns the base URL of the gateway.
func (c *Client) URL() string { return c.base.String() }

// parseBase parses and checks Config.URL. Its errors contain no password.
func parseBase(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The text of an invalid URL may contain a password, so the error omits it.
		return nil, errors.New("the gateway's URL cannot be read: want http://host:port or https://host:port")
	}
	switch {
	case u.User != nil:
		return nil, errors.New("the gateway's URL contains a user name: remove it, because Ignition accepts only an API key")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, fmt.Errorf("the gateway's URL %q is invalid: want http://host:port or https://host:port", u)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the gateway's URL contains a query or a fragment: want http://host:port or https://host:port")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// call is one request.
type call struct {
	method, path string // path is escaped
	query        url.Values
	body         any           // sent as JSON; nil sends no body
	public       bool          // the route needs no key, and do sends none
	extraTimeout time.Duration // added to Config.Timeout
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   []byte
	key    secret.String // that the request had
}

// do sends one request. A response that is not a success becomes an error.
func (c *Client) do(ctx context.Context, r call) (answer, error) {
	timeout := c.cfg.Timeout + r.extraTimeout
	inner, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	key, err := c.key(r)
	if err != nil {
		return answer{}, err
	}
	req, err := newRequest(inner, c.base, r, key)
	if err != nil {
		return answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, c.unreachable(ctx, r, timeout, key, err)
	}
	defer resp.Body.Close()
	got := answer{status: resp.StatusCode, header: resp.Header, key: key}
	limit := int64(maxAnswer)
	if !got.success() {
		limit = maxRefusal
	}
	got.body, err = bound.ReadAll(resp.Body, limit)
	switch {
	case !got.success():
		// A truncated error page still has its status.
		return answer{}, c.refused(ctx, r, got, key)
	case err != nil && !errors.Is(err, bound.ErrTooLarge):
		return answer{}, c.unreachable(ctx, r, timeout, key, err)
	case err != nil:
		return answer{}, failure.New(v1alpha1.ReasonGatewayUnreachable,
			"%s %s on %s answered with more than %d MiB: is this an Ignition gateway?", r.method, r.path, c.base, maxAnswer>>20)
	}
	return got, nil
}

func (a answer) success() bool { return a.status >= 200 && a.status < 300 }

// newRequest returns the request for a call of the gateway at base. An empty key is not sent.
func newRequest(ctx context.Context, base *url.URL, r call, key secret.String) (*http.Request, error) {
	var body io.Reader
	if r.body != nil {
		enc, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(enc)
	}
	target := base.String() + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	if !key.Empty() {
		req.Header.Set(tokenHeader, key.Reveal())
	}
	return req, nil
}

// key returns the API key for a request, or an empty one if the request needs none or none is configured.
func (c *Client) key(r call) (secret.String, error) {
	if r.public || c.cfg.Key == nil {
		return secret.String{}, nil
	}
	raw, err := c.cfg.Key()
	if err != nil {
		return secret.String{}, failure.New(v1alpha1.ReasonGatewayForbidden, "the gateway's API key cannot be read: %w", err)
	}
	value := strings.TrimSpace(raw.Reveal())
	for _, b := range []byte(value) {
		if b < 0x20 || b > 0x7e {
			return secret.String{}, failure.New(v1alpha1.ReasonGatewayForbidden,
				"the gateway's API key contains an invalid character: the format is one line, <name>:<key>")
		}
	}
	return secret.New(value), nil
}

// get requests a JSON document.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return doJSON[T](ctx, c, call{method: http.MethodGet, path: path, query: query})
}

// doJSON sends a request whose answer is a JSON document.
func doJSON[T any](ctx context.Context, c *Client, r call) (T, error) {
	got, err := c.do(ctx, r)
	if err != nil {
		var none T
		return none, err
	}
	return decode[T](c, r, got)
}

func decode[T any](c *Client, r call, got answer) (T, error) {
	var doc T
	if err := json.Unmarshal(got.body, &doc); err != nil {
		return doc, failure.New(v1alpha1.ReasonGatewayUnreachable,
			"%s %s on %s did not answer with the JSON of an Ignition gateway: is another server on this port? %s",
			r.method, r.path, c.base, serverText(err.Error(), got.key)) // not wrapped: it may have a value of any length
	}
	return doc, nil
}

// errBadCA reports an unusable CA bundle.
var errBadCA = errors.New("the CA bundle of the gateway (gateway.tlsConfig.caSecretRef) is invalid")

// newClient returns a client that reads the CA for each new connection, so that a rotated bundle takes effect
// without a restart. It ignores proxy settings, because a proxy would see the token, and a gateway is nearby.
func newClient(cfg TLS, host string) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return httpclient.Policy{
		Dial: dialer.DialContext,
		DialTLS: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conf, err := cfg.config(host)
			if err != nil {
				return nil, err
			}
			d := tls.Dialer{NetDialer: dialer, Config: conf}
			return d.DialContext(ctx, network, addr)
		},
		MaxConns: 4, KeepAlive: 30 * time.Second,
	}.Client()
}

func (t TLS) config(host string) (*tls.Config, error) {
	conf := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.ServerName != "" {
		conf.ServerName = t.ServerName
	}
	if t.CA == nil {
		return conf, nil
	}
	pem, err := t.CA()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCA, err)
	}
	if conf.RootCAs, err = httpclient.Roots(pem, false); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCA, err)
	}
	return conf, nil
}
