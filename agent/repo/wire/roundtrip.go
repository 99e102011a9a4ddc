package wire

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
)

const (
	refBytes       = 256      // of an advertisement, for each allowed ref
	minToken       = 8        // bytes of the shortest token: shorter names, such as git, occur in texts by chance
	maxNegotiation = 16 << 20 // bytes of an answer before the pack: go-git keeps the shallow commits that it lists
)

// roundTripper is the http.RoundTripper below go-git. It sees every request, including those after a redirect. It adds the
// credentials, refuses every other origin, and turns answers into typed errors before go-git turns them into text.
type roundTripper struct {
	*httpTransport
	transport *guardedTransport
}

// RoundTrip implements http.RoundTripper.
func (g *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("a request that belongs to no exchange")
	}
	if httpclient.Origin(req.URL) != g.url.origin() {
		return nil, x.fail(g.otherOriginError(req.URL, x))
	}
	req = req.Clone(req.Context())
	if err := g.authorize(req, x); err != nil {
		return nil, x.fail(err)
	}
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &sentBody{req.Body, x.dog}
	}
	proxy, err := g.proxy(req, x)
	if err != nil {
		return nil, x.fail(err)
	}
	endWait := x.dog.startWait()
	res, err := g.transport.RoundTrip(req)
	endWait()
	if err != nil && proxy != nil {
		err = &proxyError{proxy.Host, err}
	}
	if err != nil {
		return nil, err
	}
	if proxy != nil && res.StatusCode == http.StatusProxyAuthRequired {
		_ = res.Body.Close()
		return nil, x.fail(proxyStatusError(proxy, res.StatusCode))
	}
	x.dog.progress.Add(1)
	if err := g.checkResponse(req, res, x); err != nil {
		_ = res.Body.Close()
		return nil, x.fail(err)
	}
	return res, nil
}

// authorize adds the credentials. Those of Auth take precedence over those of the URL.
func (g *roundTripper) authorize(req *http.Request, x *exchange) error {
	req.Header.Del("Authorization")
	req.Header.Del("Cookie")
	user, password, err := g.login(req.Context(), x)
	if err != nil {
		return err
	}
	if user == "" && password == "" {
		return nil
	}
	req.SetBasicAuth(user, password)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.secrets = []string{password, base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}
	ofURL := g.auth.Token == nil && g.app == nil
	if ofURL && (password == "" || len(user) >= minToken) { // the name may be the token, as in TOKEN:x-oauth-basic
		x.secrets = append(x.secrets, user)
	}
	return nil
}

// proxy returns the proxy of a request, nil if there is none. It adds the password of the proxy to the secrets.
func (g *roundTripper) proxy(req *http.Request, x *exchange) (*url.URL, error) {
	if g.transport.Proxy == nil {
		return nil, nil
	}
	proxy, err := g.transport.Proxy(req)
	if err != nil || proxy == nil {
		return nil, err
	}
	if password, ok := proxy.User.Password(); ok {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.secrets = append(x.secrets, password, base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)))
	}
	return proxy, nil
}

// login returns the user name and password to send, two empty strings if there are none.
func (g *roundTripper) login(ctx context.Context, x *exchange) (user, password string, err error) {
	switch {
	case g.app != nil:
		defer x.dog.startWait()()
		token, err := g.app.validToken(ctx, g.transport)
		x.dog.progress.Add(g.opts.StallBytes) // the API is another server than the one that is watched
		return appUser, token.Reveal(), err
	case g.auth.Token == nil:
		user, password = g.url.credentials()
		return user, password, nil
	}
	token, err := g.auth.Token()
	if err != nil {
		return "", "", failure.New(v1alpha1.ReasonAuthFailed, "the token for %s cannot be read: %w", g.url, err)
	}
	user, password = g.auth.Username, strings.TrimSpace(token.Reveal())
	if password == "" {
		return "", "", failure.New(v1alpha1.ReasonAuthFailed, "the token for %s is empty", g.url)
	}
	return cmp.Or(user, "git"), password, nil
}

// checkResponse limits the body of an answer, and returns an error for an answer that is not the expected one.
func (g *roundTripper) checkResponse(req *http.Request, res *http.Response, x *exchange) error {
	limit := g.opts.MaxBytes
	switch {
	case req.Method == http.MethodGet:
		limit = min(limit, int64(g.opts.MaxRefs)*refBytes)
	case x.service == receivePack:
		limit = min(limit, maxReport)
	default:
		limit = min(limit, maxNegotiation)
	}
	x.body = &receivedBody{ReadCloser: res.Body, x: x, remaining: limit, limit: limit}
	res.Body = x.body
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return g.checkRedirect(req, res, x)
	case res.StatusCode != http.StatusOK:
		return g.statusError(res, x.service)
	case req.Method == http.MethodGet:
		return g.checkAdvertisement(req, res, x)
	}
	return g.checkResult(res, x)
}

// checkRedirect accepts the redirect of an advertisement within its origin: hosts send one for a renamed repository.
func (g *roundTripper) checkRedirect(req *http.Request, res *http.Response, x *exchange) error {
	to, err := res.Location()
	if err != nil {
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects without a location (HTTP %d)", g.url, res.StatusCode)
	}
	if httpclient.Origin(to) != g.url.origin() {
		return g.otherOriginError(to, x)
	}
	if req.Method != http.MethodGet {
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects a %s; set git.repo to the final address", g.url, x.service.request())
	}
	return nil
}

func (g *roundTripper) otherOriginError(to *url.URL, x *exchange) error {
	return failure.New(v1alpha1.ReasonRedirectRefused,
		"%s redirects to another host (%s), which the agent does not trust; if that host is right, set git.repo to its address",
		g.url, x.quote(to.Scheme+"://"+to.Host))
}

// checkAdvertisement checks that the server speaks the smart protocol. It notes the address and the capabilities in x.
func (g *roundTripper) checkAdvertisement(req *http.Request, res *http.Response, x *exchange) error {
	if got := res.Header.Get("Content-Type"); !strings.EqualFold(mediaType(got), x.service.advertisementType()) {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s answers with %s instead of git's smart HTTP protocol: check the path in git.repo, and whether the server requires credentials",
			g.url, failure.Quote(mediaType(x.redact(got))))
	}
	br := bufio.NewReaderSize(res.Body, capsPeek)
	res.Body = peekedBody{br, res.Body}
	caps, err := peekCapabilities(br, g.url, x.quote)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caps, x.advertisementURL = caps, req.URL
	return nil
}

// checkResult checks the answer to a request. It returns a refusedError if the server refuses.
func (g *roundTripper) checkResult(res *http.Response, x *exchange) error {
	if got, s := res.Header.Get("Content-Type"), x.service; !strings.EqualFold(mediaType(got), s.resultType()) {
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s answers a %s with %s; is there a proxy in between?", g.url, s.request(), failure.Quote(mediaType(x.redact(got))))
	}
	br := bufio.NewReaderSize(res.Body, refusalPeek)
	res.Body = peekedBody{br, res.Body}
	return peekRefusal(br, x.quote)
}

// mediaType returns the media type of a Content-Type header, without parameters.
func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(t)
}

// peekedBody is a body of which a bufio.Reader has read a part.
type peekedBody struct {
	io.Reader
	io.Closer
}

const maxWait = backoff.MaxRetryAfter // longest wait of a Retry-After header

// statusError returns the error for the HTTP status of an answer of s. It never shows the body, which is text of the server.
func (g *roundTripper) statusError(res *http.Response, s service) error {
	after, asked := httpclient.RetryAfter(res.Header.Get("Retry-After"), time.Now(), maxWait)
	wait := throttled(res.StatusCode, after)
	field := g.auth.field()
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized && !g.hasCredentials() && g.auth.Key != nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s requires credentials (HTTP 401), and %s.sshKey works only with an ssh:// address: set git.repo to that, or set %s.token", g.url, field, field)
	case code == http.StatusUnauthorized && !g.hasCredentials():
		return failure.New(v1alpha1.ReasonAuthFailed, "%s requires credentials (HTTP 401), and there are none: set %s", g.url, field)
	case code == http.StatusUnauthorized && g.app != nil:
		g.app.forget()
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the GitHub App's token (HTTP 401); the next attempt asks for a new one", g.url)
	case code == http.StatusUnauthorized && s == receivePack:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the credentials for a push (HTTP 401): is the token of %s right and not expired, and does it have write access?", g.url, field)
	case code == http.StatusForbidden && s == receivePack:
		return failure.New(v1alpha1.ReasonAuthFailed, "the token may not push to %s (HTTP 403): it needs write access to this repository (%s)", g.url, field)
	case code == http.StatusUnauthorized:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the credentials (HTTP 401): is the token right and not expired?", g.url)
	case code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s forbids reading (HTTP 403): may the token read this repository?", g.url)
	case code == http.StatusNotFound, code == http.StatusGone:
		return failure.New(v1alpha1.ReasonRefNotFound,
			"there is no repository at %s (HTTP %d), or the credentials may not see it: check git.repo and %s", g.url, code, field)
	case code == http.StatusTooManyRequests && asked:
		return failure.New(v1alpha1.ReasonGitThrottled, "%s limits the rate of requests: %w", g.url, wait)
	case code == http.StatusTooManyRequests:
		return failure.New(v1alpha1.ReasonGitThrottled, "%s limits the rate of requests (HTTP 429)", g.url)
	case code == http.StatusRequestTimeout, code == http.StatusGatewayTimeout:
		return failure.New(v1alpha1.ReasonGitTimeout, "%s did not answer in time (HTTP %d)", g.url, code)
	case code == http.StatusServiceUnavailable && asked:
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s is not available: %w", g.url, wait)
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity, code == http.StatusRequestEntityTooLarge:
		return &refusedError{fmt.Sprintf("HTTP %d", code)}
	default:
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s answers HTTP %d; trying again", g.url, code)
	}
}

func (g *roundTripper) hasCredentials() bool {
	return g.auth.Token != nil || g.app != nil || g.url.login != nil
}
