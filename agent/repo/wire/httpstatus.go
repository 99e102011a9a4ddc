package wire

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const maxWait = 24 * time.Hour // longest wait of a Retry-After header

// statusError returns the error for the HTTP status of an answer of s. It never shows the body, which is text of the server.
func (g *roundTripper) statusError(res *http.Response, s service) error {
	after, asked := retryAfter(res.Header.Get("Retry-After"), time.Now())
	wait := &throttledError{fmt.Sprintf("HTTP %d", res.StatusCode), after}
	field := g.auth.field()
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized && !g.hasCredentials() && g.auth.Key != nil:
		return failure.New(v1alpha1.ReasonAuthFailed,
			"%s asks for credentials (HTTP 401), and %s.sshKey works with the ssh:// address only: write that into git.repo, or set %s.token", g.url, field, field)
	case code == http.StatusUnauthorized && !g.hasCredentials():
		return failure.New(v1alpha1.ReasonAuthFailed, "%s asks for credentials (HTTP 401), and there are none: set %s", g.url, field)
	case code == http.StatusUnauthorized && g.app != nil:
		g.app.forget()
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the GitHub App's token (HTTP 401); the next attempt asks for a new one", g.url)
	case code == http.StatusUnauthorized && s == receivePack:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s refused the credentials for a push (HTTP 401): is the token of %s right and not expired, and has it write access?", g.url, field)
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

func (g *roundTripper) hasCredentials() bool {
	return g.auth.Token != nil || g.app != nil || g.url.login != nil
}

// retryAfter reads a Retry-After header: seconds, or a date.
func retryAfter(h string, now time.Time) (time.Duration, bool) {
	if s, err := strconv.ParseInt(h, 10, 64); err == nil && s >= 0 {
		return time.Duration(min(s, int64(maxWait/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(h); err == nil {
		return min(max(at.Sub(now), 0), maxWait), true
	}
	return 0, false
}
