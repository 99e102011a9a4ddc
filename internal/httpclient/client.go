// Package httpclient makes every HTTP client of the product but those of client-go. A Policy says how a client connects and what it accepts.
// All clients bound the headers of answers, and none follows a redirect to another origin with its credential. test/hostile runs all clients
// against the same hostile server.
package httpclient

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	defaultTimeout = 10 * time.Second
	defaultAnswer  = 64 << 10
	maxConnect     = 5 * time.Second
)

// Client sends requests to addresses that users name: a validation webhook, a health check, a channel of notifications. The address, the
// name server and the answer may all be hostile. A request must not reach what only the pod itself can reach, such as the gateway on loopback
// or the metadata of a cloud, and whatever answers must not hold the caller for long or fill its memory. The zero value is ready to use. A
// Client keeps no connection: every exchange resolves, dials and checks again.
//
// It uses no proxy by default, because a proxy resolves the name where the address cannot be checked.
type Client struct {
	// Proxy returns the proxy for an https address, or nil. It is for the operator to set, and never for the user who names the address: the
	// proxy decides which addresses a name leads to. The name or address is checked before, as far as it can be resolved here.
	Proxy func(*url.URL) (*url.URL, error)

	// CA has certificates, as PEM, that a server's certificate is checked with, beside those of the system.
	CA []byte
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
	// Timeout bounds a whole exchange, from resolving the name to the last byte of the answer. Default 10 s.
	Timeout time.Duration
	// MaxAnswer is the largest body of an answer in bytes. Default 64 KiB.
	MaxAnswer int64
	// Loopback allows loopback addresses. It is for tests: nothing that ships sets it.
	Loopback bool
}

// Answer is what a server answered.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends one request and reads the answer. A redirect is an answer like any other. An error names at most the host of the address: its
// path, query and credentials may be secret.
func (c Client) Do(ctx context.Context, method, address string, header http.Header, body []byte) (*Answer, error) {
	timeout, most := c.Timeout, c.MaxAnswer
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	if most <= 0 {
		most = defaultAnswer
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no complete answer within %s", timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil || req.URL.Hostname() == "" || req.URL.Scheme != "https" && req.URL.Scheme != "http" {
		return nil, errors.New("the address is not of the form https://host/path") // err repeats the address
	}
	if header != nil {
		req.Header = header.Clone()
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "stoker")
	}
	policy, err := c.policy(timeout)
	if err != nil {
		return nil, err
	}
	var answer *Answer
	if err = c.useProxy(ctx, &policy, req.URL, timeout); err == nil {
		answer, err = exchange(policy.Client(), req, most)
	}
	if err == nil {
		err = ctx.Err() // a server that hung may answer when the client gives up, and that must not count as healthy
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", failure.Quote(req.URL.Host), shown(ctx, err))
	}
	return answer, nil
}

// RoundTrip implements http.RoundTripper with the rules of Do for addresses, proxies and certificates. Its caller bounds the time and the
// answer, and hides what an error says.
func (c Client) RoundTrip(req *http.Request) (*http.Response, error) {
	policy, err := c.policy(defaultTimeout)
	if err == nil {
		err = c.useProxy(req.Context(), &policy, req.URL, defaultTimeout)
	}
	if err != nil {
		return nil, err
	}
	return policy.Transport().RoundTrip(req)
}

func exchange(client *http.Client, req *http.Request, most int64) (*Answer, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := bound.ReadAll(res.Body, most)
	if errors.Is(err, bound.ErrTooLarge) {
		err = fmt.Errorf("the answer is %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &Answer{Status: res.StatusCode, Header: res.Header, Body: body}, nil
}

// shown returns err without the address of the request, or the reason that ctx has ended.
func shown(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if _, ok := errors.AsType[*ForbiddenError](err); ok || errors.Is(err, bound.ErrTooLarge) {
		return err
	}
	return &quotedError{err}
}

// quotedError bounds the text of an error that a server may have written.
type quotedError struct{ err error }

func (e *quotedError) Error() string { return failure.Quote(e.err.Error()) }

func (e *quotedError) Unwrap() error { return e.err }

func (c Client) guard() guard { return guard{loopback: c.Loopback || loopback != ""} }

func (c Client) policy(timeout time.Duration) (Policy, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.InsecureSkipVerify}
	if len(c.CA) > 0 {
		pool, err := Roots(c.CA, true)
		if err != nil {
			return Policy{}, err
		}
		conf.RootCAs = pool
	}
	dialer := &net.Dialer{Timeout: min(maxConnect, timeout), ControlContext: c.guard().control}
	return Policy{Dial: dialer.DialContext, TLS: conf, ConnectTimeout: 2 * timeout, Raw: true}, nil // more than timeout, whose error says more
}

// Sign adds the HMAC-SHA-256 of a body in the header and the form of GitHub, which Stoker's own receiver checks. Of a key with several
// lines, as during a rotation, the first one signs.
func Sign(header http.Header, key secret.String, body []byte) {
	first, _, _ := strings.Cut(strings.TrimSpace(key.Reveal()), "\n")
	mac := hmac.New(sha256.New, []byte(strings.TrimSpace(first)))
	mac.Write(body)
	header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
}
