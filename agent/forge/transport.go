package forge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

const (
	maxAnswer = 8 << 20               // bytes of an answer; a page of pull requests usually has fewer
	maxWait   = backoff.MaxRetryAfter // bounds what a server asks for
)

// transport is the http.RoundTripper of all requests. It adds the credential, refuses every other origin, limits the size of
// answers, and turns refusals into errors with a reason.
type transport struct {
	provider string
	api      *url.URL
	config   Config
}

// redirected returns the error for a redirect to another host.
func redirected(host string) error {
	return failure.New(v1alpha1.ReasonRedirectRefused, "the API at %s redirects to another host, which does not get the token: set spec.bidirectional.apiBaseURL", host)
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if httpclient.Origin(req.URL) != httpclient.Origin(t.api) {
		return nil, failure.New(v1alpha1.ReasonRedirectRefused, "a request to %s does not belong to the API at %s", failure.Quote(req.URL.Host), t.api.Host)
	}
	req = req.Clone(req.Context())
	secrets, err := t.authorize(req)
	if err != nil {
		return nil, err
	}
	res, err := t.config.Transport.RoundTrip(req)
	if err != nil {
		return nil, t.unreachable(req.Context(), err, secrets)
	}
	body, err := bound.ReadAll(res.Body, maxAnswer)
	_ = res.Body.Close()
	switch {
	case err != nil && !errors.Is(err, bound.ErrTooLarge):
		return nil, t.unreachable(req.Context(), err, secrets)
	case err != nil:
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the API at %s answers with more than %d MiB", t.api.Host, maxAnswer>>20)
	}
	if err := t.statusError(req, res, body, secrets); err != nil {
		return nil, err
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return res, nil
}

// authorize adds the credential in the provider's form. It returns the secrets, which no message may quote.
func (t *transport) authorize(req *http.Request) (secrets []string, err error) {
	for _, h := range []string{"Authorization", "Private-Token", "Cookie"} {
		req.Header.Del(h)
	}
	req.Header.Set("User-Agent", "stoker")
	if t.config.Token == nil {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "there is no token for the API at %s: set spec.bidirectional.auth.token", t.api.Host)
	}
	token, err := t.config.Token(req.Context())
	if err != nil {
		return nil, err
	}
	value := strings.TrimSpace(token.Reveal())
	if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "the token for the API at %s is empty or contains invalid characters", t.api.Host)
	}
	switch t.provider {
	case giturl.Gitea:
		req.Header.Set("Authorization", "token "+value)
	case giturl.AzureDevOps:
		basic := base64.StdEncoding.EncodeToString([]byte(":" + value))
		req.Header.Set("Authorization", "Basic "+basic)
		return []string{value, basic}, nil
	default:
		req.Header.Set("Authorization", "Bearer "+value)
	}
	return []string{value}, nil
}

// unreachable returns the error for a failed exchange. Its text has no URL and no secret.
func (t *transport) unreachable(ctx context.Context, err error, secrets []string) error {
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s cannot be reached: %s", t.api.Host, failure.Quote(secret.Redact(err.Error(), secrets...)))
}

// statusError returns the error for an answer, nil for one that the caller handles. Its text has none of the secrets.
func (t *transport) statusError(req *http.Request, res *http.Response, body []byte, secrets []string) error {
	host, code := t.api.Host, res.StatusCode
	after, throttled := retryAfter(res.Header, time.Now())
	switch {
	case code < 300:
		kind := res.Header.Get("Content-Type")
		if len(body) == 0 || strings.Contains(kind, "json") {
			return nil
		}
		if code != http.StatusNonAuthoritativeInfo { // the status of Azure DevOps's sign-in page
			return failure.New(v1alpha1.ReasonUnsupportedRepository, "the API at %s answers %s instead of JSON: are spec.bidirectional.provider and apiBaseURL right?", host, failure.Quote(secret.Redact(kind, secrets...)))
		}
		return t.tokenRefused(code)
	case code < 400:
		return nil // the http.Client follows a redirect or refuses it
	case code == http.StatusTooManyRequests, throttled && code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonGitThrottled, "the API at %s limits the rate of requests: %w", host, &backoff.ThrottledError{After: after})
	case t.alreadyExists(req, code, body):
		return ErrExists
	case code == http.StatusUnauthorized:
		return t.tokenRefused(code)
	case code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonAuthFailed, "the API at %s forbids %s (HTTP 403): give the token the right %s", host, action(req), permission(t.provider, req))
	case code == http.StatusNotFound, code == http.StatusGone:
		return failure.New(v1alpha1.ReasonUnsupportedRepository, "the API at %s has no such repository (HTTP %d), or the token may not see it: check git.repo, spec.bidirectional.provider and apiBaseURL", host, code)
	case code >= 500:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s answers HTTP %d; trying again", host, code)
	}
	return failure.New(v1alpha1.ReasonPushRejected, "the API at %s rejects %s (HTTP %d): %s", host, action(req), code, failure.Quote(secret.Redact(serverMessage(body), secrets...)))
}

func (t *transport) tokenRefused(code int) error {
	return failure.New(v1alpha1.ReasonAuthFailed, "the API at %s rejects the token (HTTP %d): is it right and not expired?", t.api.Host, code)
}

// permission returns the permission that a token needs for a request, as each provider names it.
func permission(provider string, req *http.Request) string {
	if isStatus(req) {
		return map[string]string{
			giturl.GitHub: "Commit statuses: Read and write", giturl.GitLab: "api (or the role Developer)", giturl.Gitea: "write:repository", giturl.Bitbucket: "repository", giturl.AzureDevOps: "Code: Status",
		}[provider]
	}
	return map[string]string{
		giturl.GitHub: "Pull requests: Read and write", giturl.GitLab: "api (or the role Developer)", giturl.Gitea: "write:repository and write:issue",
		giturl.Bitbucket: "pullrequest:write", giturl.AzureDevOps: "Code: Read & write, and Pull Request Threads: Read & write",
	}[provider]
}

// isStatus reports whether a request sets the status of a commit. A repository, too, may have the name statuses.
func isStatus(req *http.Request) bool {
	parent, last := path.Split(req.URL.Path)
	return req.Method == http.MethodPost && (last == "statuses" || path.Base(parent) == "statuses" && (last == "build" || syntax.IsCommit(last)))
}

// action describes a request in a message.
func action(req *http.Request) string {
	switch {
	case isStatus(req):
		return "setting the status of a commit"
	case req.Method == http.MethodGet:
		return "reading pull requests"
	case req.Method == http.MethodPost:
		return "opening a pull request"
	}
	return "changing a pull request"
}

// alreadyExists reports whether an answer refuses what exists: for Create, an open pull request of the branch; for SetStatus on GitLab, a state
// that the status has already or cannot take.
func (t *transport) alreadyExists(req *http.Request, code int, body []byte) bool {
	switch {
	case req.Method != http.MethodPost:
		return false
	case isStatus(req):
		return t.provider == giturl.GitLab && code == http.StatusBadRequest && bytes.Contains(body, []byte("Cannot transition status"))
	}
	switch t.provider {
	case giturl.GitLab, giturl.Gitea:
		return code == http.StatusConflict
	case giturl.GitHub:
		return code == http.StatusUnprocessableEntity && bytes.Contains(body, []byte("already exists"))
	case giturl.AzureDevOps:
		return code == http.StatusConflict || bytes.Contains(body, []byte("TF401179"))
	case giturl.Bitbucket:
		return code == http.StatusBadRequest && bytes.Contains(body, []byte("already"))
	}
	return false
}

// serverMessage returns the message in the body of a refusal, without the escapes of JSON, in which a secret would not be found. The
// caller must redact and quote it.
func serverMessage(body []byte) string {
	var m struct {
		Message any `json:"message"`
		Error   any `json:"error"`
	}
	if json.Unmarshal(body, &m) != nil {
		return "no reason"
	}
	return cmp.Or(strings.TrimSpace(plainText(m.Message)+" "+plainText(m.Error)), "no reason")
}

// plainText returns the text of a decoded JSON value: its strings, with the keys of objects.
func plainText(value any) string {
	var parts []string
	switch v := value.(type) {
	case nil:
	case []any:
		for _, e := range v {
			parts = append(parts, plainText(e))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, key+": "+plainText(v[key]))
		}
	default:
		return fmt.Sprint(v)
	}
	return strings.Join(parts, ", ")
}

// retryAfter returns how long the forge asks to wait: by Retry-After, or until it resets its rate limit.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	if after, ok := httpclient.RetryAfter(h.Get("Retry-After"), now, maxWait); ok {
		return after, true
	}
	for _, prefix := range []string{"X-Ratelimit-", "Ratelimit-"} {
		if h.Get(prefix+"Remaining") != "0" {
			continue
		}
		if s, err := strconv.ParseInt(h.Get(prefix+"Reset"), 10, 64); err == nil {
			return min(max(time.Unix(s, 0).Sub(now), 0), maxWait), true
		}
		return time.Minute, true
	}
	return 0, false
}
