package repo

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	typeAdvertisement = "application/x-git-upload-pack-advertisement"
	typeResult        = "application/x-git-upload-pack-result"
	refBytes          = 512 // of an advertisement, for each ref that is allowed
	maxWait           = 24 * time.Hour
	maxRedirects      = 5
)

// gate is the one way to the network. It stands below go-git and sees every request, also those that follow a redirect:
// it adds the credentials, lets nothing pass to another origin, and turns what a server answers into typed errors before
// go-git makes text of it.
type gate struct {
	url       URL
	auth      Auth
	opts      RemoteOptions
	app       *appTokens // nil for none
	transport *http.Transport
}

// exchange is what the gate learns in one conversation. It travels in the context of the requests, because go-git keeps
// neither the type of an error nor all capabilities.
type exchange struct {
	dog *watchdog

	mu        sync.Mutex
	err       error
	caps      *capability.List
	secrets   []string
	redirects int
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// fail remembers the first error, and returns it.
func (x *exchange) fail(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	return err
}

// capabilities returns what the server advertised, nil where that is not known.
func (x *exchange) capabilities() *capability.List {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.caps
}

// outcome returns the secrets that were sent, and the first error.
func (x *exchange) outcome() (secrets []string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.secrets, x.err
}

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("a request that belongs to no exchange")
	}
	if origin := originOf(req.URL); origin != g.url.origin() {
		return nil, x.fail(g.elsewhere(origin))
	}
	req = req.Clone(req.Context())
	if err := g.authorize(req, x); err != nil {
		return nil, x.fail(err)
	}
	proxy, err := g.proxy(req, x)
	if err != nil {
		return nil, x.fail(err)
	}
	wait := x.dog.wait()
	res, err := g.transport.RoundTrip(req)
	wait()
	if err != nil && proxy != nil {
		err = &proxyError{proxy.Host, err}
	}
	if err != nil {
		return nil, err
	}
	if proxy != nil && res.StatusCode == http.StatusProxyAuthRequired {
		_ = res.Body.Close()
		return nil, x.fail(proxyStatus(proxy, res.StatusCode))
	}
	x.dog.arrived.Add(1)
	if err := g.check(req, res, x); err != nil {
		_ = res.Body.Close()
		return nil, x.fail(err)
	}
	return res, nil
}

// authorize adds the credentials. Those of the Auth win over those of the URL.
func (g *gate) authorize(req *http.Request, x *exchange) error {
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
	if password == "" { // a token in the place of a name
		x.secrets = append(x.secrets, user)
	}
	return nil
}

// proxy returns the proxy that a request goes through, nil for none. Its password is a secret too.
func (g *gate) proxy(req *http.Request, x *exchange) (*url.URL, error) {
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

// login returns the name and password to show, two empty strings for none.
func (g *gate) login(ctx context.Context, x *exchange) (user, password string, err error) {
	switch {
	case g.app != nil:
		defer x.dog.wait()()
		token, err := g.app.get(ctx, g.transport)
		x.dog.arrived.Add(g.opts.StallBytes) // the API is not the server that could stall
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
	if user == "" {
		user = "git"
	}
	return user, password, nil
}

func (g *gate) check(req *http.Request, res *http.Response, x *exchange) error {
	limit := g.opts.MaxBytes
	if req.Method == http.MethodGet {
		limit = min(limit, int64(g.opts.MaxRefs)*refBytes)
	}
	res.Body = &body{ReadCloser: res.Body, dog: x.dog, left: limit, limit: limit}
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return g.redirect(req, res, x)
	case res.StatusCode != http.StatusOK:
		return g.status(res)
	case req.Method == http.MethodGet:
		return g.advertisement(res, x)
	}
	return g.result(res)
}

// redirect lets a discovery move on within its origin, as it does where a repository was renamed.
func (g *gate) redirect(req *http.Request, res *http.Response, x *exchange) error {
	x.mu.Lock()
	x.redirects++
	n := x.redirects
	x.mu.Unlock()
	if n > maxRedirects {
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects again and again; write the final address into git.repo", g.url)
	}
	to, err := res.Location()
	if err != nil {
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects to nowhere (HTTP %d)", g.url, res.StatusCode)
	}
	if origin := originOf(to); origin != g.url.origin() {
		return g.elsewhere(origin)
	}
	if req.Method != http.MethodGet {
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects a fetch; write the final address into git.repo", g.url)
	}
	return nil
}

func (g *gate) elsewhere(origin string) error {
	return failure.New(v1alpha1.ReasonRedirectRefused,
		"%s redirected to another host (%s), which gets neither credentials nor trust; if that is right, write that address into git.repo",
		g.url, quoted(origin))
}

// status gives an HTTP status its reason. The body of an error is foreign text and is not shown.
func (g *gate) status(res *http.Response) error {
	after, asked := retryAfter(res.Header.Get("Retry-After"), time.Now())
	wait := &throttledError{fmt.Sprintf("HTTP %d", res.StatusCode), after}
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized && !g.credentials() && g.auth.Key != nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s asks for credentials (HTTP 401), and git.auth.sshKey works with the ssh:// address only: write that into git.repo, or set git.auth.token", g.url)
	case code == http.StatusUnauthorized && !g.credentials():
		return failure.New(v1alpha1.ReasonAuthFailed, "%s asks for credentials (HTTP 401), and there are none: set git.auth", g.url)
	case code == http.StatusUnauthorized && g.app != nil:
		g.app.forget()
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the GitHub App's token (HTTP 401); the next attempt asks for a new one", g.url)
	case code == http.StatusUnauthorized:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the credentials (HTTP 401): is the token right and not expired?", g.url)
	case code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s forbids reading (HTTP 403): may the token read this repository?", g.url)
	case code == http.StatusNotFound, code == http.StatusGone:
		return failure.New(v1alpha1.ReasonRefNotFound,
			"there is no repository at %s (HTTP %d), or the credentials may not see it: check git.repo and git.auth", g.url, code)
	case code == http.StatusTooManyRequests && asked:
		return failure.New(v1alpha1.ReasonGitThrottled, "%s asks us to slow down: %w", g.url, wait)
	case code == http.StatusTooManyRequests:
		return failure.New(v1alpha1.ReasonGitThrottled, "%s asks us to slow down (HTTP 429)", g.url)
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

func (g *gate) credentials() bool {
	return g.auth.Token != nil || g.app != nil || g.url.login != nil
}

// retryAfter reads a Retry-After header: seconds or a date.
func retryAfter(h string, now time.Time) (time.Duration, bool) {
	if s, err := strconv.ParseInt(h, 10, 64); err == nil && s >= 0 {
		return time.Duration(min(s, int64(maxWait/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(h); err == nil {
		return min(max(at.Sub(now), 0), maxWait), true
	}
	return 0, false
}

// advertisement makes sure that a smart server answers, and takes the capabilities from its first line.
func (g *gate) advertisement(res *http.Response, x *exchange) error {
	if got := mediaType(res); got != typeAdvertisement {
		return failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s answers with %s and not with git's smart HTTP protocol: check the path in git.repo, and whether it wants credentials",
			g.url, quoted(got))
	}
	br := bufio.NewReaderSize(res.Body, capsPeek)
	res.Body = peeked{br, res.Body}
	caps, err := peekCapabilities(br, g.url)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caps = caps
	return nil
}

// result looks for an ERR line, by which a server refuses.
func (g *gate) result(res *http.Response) error {
	if got := mediaType(res); got != typeResult {
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s answers a fetch with %s; is something between us and the server?", g.url, quoted(got))
	}
	br := bufio.NewReaderSize(res.Body, refusalPeek)
	res.Body = peeked{br, res.Body}
	return peekRefusal(br)
}

func mediaType(res *http.Response) string {
	t, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// peeked is a body of which a part was read ahead.
type peeked struct {
	io.Reader
	io.Closer
}
