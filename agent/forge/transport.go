package forge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	maxAnswer  = 8 << 20 // bytes of a list of a hundred pull requests
	maxRemain  = 24 * time.Hour
	maxCached  = 16      // answers
	maxCaching = 1 << 20 // bytes of all of them
)

// transport sends every request of the clients: it adds the credential, refuses every other origin, bounds what arrives, asks for a list
// again only if it has changed, and turns refusals into errors with a reason. The body of a refusal is text of the server and is shown
// nowhere.
type transport struct {
	provider string
	api      *url.URL
	c        Config

	mu    sync.Mutex
	cache map[string]cached // answers of GET requests by URL
	order []string          // of the cache, oldest first
	size  int
}

type cached struct {
	etag string
	body []byte
}

func newTransport(provider string, api *url.URL, c Config) *transport {
	return &transport{provider: provider, api: api, c: c, cache: map[string]cached{}}
}

// sameOrigin refuses redirects to another host.
func sameOrigin(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
		return failure.New(v1alpha1.ReasonRedirectRefused, "the API at %s redirects to another place, which gets no token: set spec.bidirectional.apiBaseURL", via[0].URL.Host)
	}
	return nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host != t.api.Host || req.URL.Scheme != t.api.Scheme {
		return nil, failure.New(v1alpha1.ReasonRedirectRefused, "a request to %s does not belong to the API at %s", failure.Quote(req.URL.Host), t.api.Host)
	}
	req = req.Clone(req.Context())
	if err := t.authorize(req); err != nil {
		return nil, err
	}
	key := req.URL.String()
	had, ok := t.lookup(req.Method, key)
	if ok {
		req.Header.Set("If-None-Match", had.etag)
	}
	res, err := t.c.Transport.RoundTrip(req)
	if err != nil {
		return nil, t.unreachable(req.Context(), err)
	}
	if ok && res.StatusCode == http.StatusNotModified {
		_ = res.Body.Close()
		res.StatusCode, res.Status = http.StatusOK, "200 OK"
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(had.body)), int64(len(had.body))
		return res, nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	_ = res.Body.Close()
	switch {
	case err != nil:
		return nil, t.unreachable(req.Context(), err)
	case len(body) > maxAnswer:
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the API at %s answers with more than %d MiB", t.api.Host, maxAnswer>>20)
	}
	if err := t.refusal(req, res, body); err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK && req.Method == http.MethodGet {
		t.keep(key, res.Header.Get("Etag"), body)
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return res, nil
}

// authorize adds the credential in the provider's form.
func (t *transport) authorize(req *http.Request) error {
	for _, h := range []string{"Authorization", "Private-Token", "Cookie"} {
		req.Header.Del(h)
	}
	req.Header.Set("User-Agent", "stoker")
	if t.c.Token == nil {
		return failure.New(v1alpha1.ReasonAuthFailed, "there is no token for the API at %s: set spec.bidirectional.auth.token", t.api.Host)
	}
	token, err := t.c.Token(req.Context())
	if err != nil {
		return err
	}
	value := strings.TrimSpace(token.Reveal())
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return failure.New(v1alpha1.ReasonAuthFailed, "the token for the API at %s is empty or holds characters that no token has", t.api.Host)
	}
	switch t.provider {
	case Gitea:
		req.Header.Set("Authorization", "token "+value)
	case AzureDevOps:
		req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(":"+value)))
	default:
		req.Header.Set("Authorization", "Bearer "+value)
	}
	return nil
}

func (t *transport) lookup(method, key string) (cached, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, ok := t.cache[key]
	return c, ok && method == http.MethodGet
}

// keep keeps an answer for the next question, within the bounds.
func (t *transport) keep(key, etag string, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.cache[key]; ok {
		t.drop(key, old)
	}
	if etag == "" || len(body) > maxCaching/4 {
		return
	}
	t.cache[key], t.order, t.size = cached{etag, body}, append(t.order, key), t.size+len(body)
	for len(t.order) > maxCached || t.size > maxCaching {
		t.drop(t.order[0], t.cache[t.order[0]])
	}
}

func (t *transport) drop(key string, c cached) {
	delete(t.cache, key)
	t.size -= len(c.body)
	for i, k := range t.order {
		if k == key {
			t.order = append(t.order[:i:i], t.order[i+1:]...)
			return
		}
	}
}

// unreachable returns the error for an exchange that failed. Its text has no address with a query.
func (t *transport) unreachable(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s cannot be reached: %s", t.api.Host, failure.Quote(err.Error()))
}

// refusal returns the error for a status, nil for one that the caller handles.
func (t *transport) refusal(req *http.Request, res *http.Response, body []byte) error {
	host, code := t.api.Host, res.StatusCode
	after, asked := wait(res.Header, time.Now())
	switch {
	case code < 300:
		if kind := res.Header.Get("Content-Type"); len(body) > 0 && !strings.Contains(kind, "json") {
			return failure.New(v1alpha1.ReasonUnsupportedRepository, "the API at %s answers %s instead of JSON: are spec.bidirectional.provider and apiBaseURL right?", host, failure.Quote(kind))
		}
		return nil
	case code < 400:
		return nil // CheckRedirect decides
	case code == http.StatusTooManyRequests, asked && code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonGitThrottled, "the API at %s asks us to slow down: %w", host, &throttledError{after})
	case t.exists(req, code, body):
		return ErrExists
	case code == http.StatusUnauthorized, code == http.StatusNonAuthoritativeInfo:
		return failure.New(v1alpha1.ReasonAuthFailed, "the API at %s does not take the token (HTTP 401): is it right and not expired?", host)
	case code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonAuthFailed, "the API at %s forbids %s (HTTP 403): give the token the right %s", host, what(req), right[t.provider])
	case code == http.StatusNotFound, code == http.StatusGone:
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "the API at %s has no such repository (HTTP %d), or the token may not see it: check git.repo, spec.bidirectional.provider and apiBaseURL", host, code)
	case code >= 500:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s answers HTTP %d; trying again", host, code)
	}
	return failure.New(v1alpha1.ReasonPushRejected, "the API at %s rejects %s (HTTP %d): %s", host, what(req), code, failure.Quote(reasonText(body)))
}

// right names what a token must be allowed to do.
var right = map[string]string{
	GitHub: "Pull requests: Read and write", GitLab: "api (or the role Developer)", Gitea: "write:repository and write:issue",
	Bitbucket: "pullrequest:write", AzureDevOps: "Code: Read & write, and Pull Request Threads: Read & write",
}

func what(req *http.Request) string {
	switch req.Method {
	case http.MethodGet:
		return "reading pull requests"
	case http.MethodPost:
		return "opening a pull request"
	}
	return "changing a pull request"
}

// exists reports whether the answer to a creation says that a pull request of the branch is open.
func (t *transport) exists(req *http.Request, code int, body []byte) bool {
	if req.Method != http.MethodPost {
		return false
	}
	switch t.provider {
	case GitLab, Gitea:
		return code == http.StatusConflict
	case GitHub:
		return code == http.StatusUnprocessableEntity && bytes.Contains(body, []byte("already exists"))
	case AzureDevOps:
		return code == http.StatusConflict || bytes.Contains(body, []byte("TF401179"))
	case Bitbucket:
		return code == http.StatusBadRequest && bytes.Contains(body, []byte("already"))
	}
	return false
}

// reasonText returns the message of a refusal, bounded by its caller.
func reasonText(body []byte) string {
	var m struct {
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &m) == nil && len(m.Message)+len(m.Error) > 0 {
		return strings.Trim(string(m.Message)+" "+string(m.Error), ` "`)
	}
	return "no reason"
}

// wait returns how long the forge asks to wait: by Retry-After, or until its limit is reset.
func wait(h http.Header, now time.Time) (time.Duration, bool) {
	if s, err := strconv.ParseInt(h.Get("Retry-After"), 10, 32); err == nil && s >= 0 {
		return min(time.Duration(s)*time.Second, maxRemain), true
	}
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		return min(max(at.Sub(now), 0), maxRemain), true
	}
	for _, p := range []string{"X-Ratelimit-", "Ratelimit-"} {
		if h.Get(p+"Remaining") != "0" {
			continue
		}
		if s, err := strconv.ParseInt(h.Get(p+"Reset"), 10, 64); err == nil {
			return min(max(time.Unix(s, 0).Sub(now), 0), maxRemain), true
		}
		return time.Minute, true
	}
	return 0, false
}

// rest sends JSON to a forge without a maintained client.
type rest struct {
	client *http.Client
	api    *url.URL
}

// do sends a request to a path, which is already escaped, and decodes the answer into out, unless that is nil.
func (r rest) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	at := r.api.String() + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.client.Do(req)
	if err != nil {
		return cleaned(err, r.api.Host)
	}
	defer func() { _ = res.Body.Close() }()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s answers what is not the expected JSON", r.api.Host)
	}
	return nil
}

// cleaned returns the error of a client with its reason, without the address of the request.
func cleaned(err error, host string) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return f
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		return failure.New(v1alpha1.ReasonGitTimeout, "the API at %s did not answer in time", host)
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s: %s", host, failure.Quote(fmt.Sprint(err)))
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}
