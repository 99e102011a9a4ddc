package wire

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// GitHubApp is an installation of a GitHub App. The Client requests tokens that have only its Permissions, and only for the
// repository. It renews them before they expire.
type GitHubApp struct {
	AppID          int64
	InstallationID int64
	// Key returns the private key of the app as PEM. The client calls it for every token, so that a rotated key takes effect at
	// once.
	Key func() (secret.String, error)
	// APIBaseURL is the address of the API; "" for that of the repository's host.
	APIBaseURL string
	// Permissions are the permissions of a token, by their names in GitHub's API; default contents: read.
	Permissions map[string]string
}

// permissions returns Permissions or its default.
func (a GitHubApp) permissions() map[string]string {
	if len(a.Permissions) > 0 {
		return a.Permissions
	}
	return map[string]string{"contents": "read"}
}

// permissionList lists the permissions as GitHub's settings show them, such as Contents: Write and Pull requests: Write.
func (a GitHubApp) permissionList() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(a.permissions())) {
		list = append(list, permissionName(name, a.permissions()[name]))
	}
	return strings.Join(list, " and ")
}

// permissionName returns a permission as GitHub's settings show it.
func permissionName(name, level string) string {
	title := func(s string) string { return strings.ToUpper(s[:min(1, len(s))]) + s[min(1, len(s)):] }
	return title(strings.ReplaceAll(name, "_", " ")) + ": " + title(level)
}

// missingPermission returns the first permission that granted lacks, as GitHub's settings show it, or "" if granted has all.
func (a GitHubApp) missingPermission(granted map[string]string) string {
	level := func(s string) int {
		switch s {
		case "", "none":
			return 0
		case "write":
			return 2
		case "admin":
			return 3
		}
		return 1
	}
	want := a.permissions()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if level(granted[name]) < level(want[name]) {
			return permissionName(name, want[name])
		}
	}
	return ""
}

const (
	appUser      = "x-access-token"
	tokenLife    = time.Hour       // of an installation token, as GitHub documents it
	renewBefore  = 5 * time.Minute // before a token expires
	maxAPIAnswer = 1 << 20         // bytes
)

// appTokens requests and keeps the token of one installation for one repository.
type appTokens struct {
	app        GitHubApp
	field      string // of the spec, for errors
	url        URL
	opts       Options
	requesting chan struct{} // a mutex: has one element while a token is requested

	mu      sync.Mutex
	token   secret.String
	expires time.Time
}

func newAppTokens(app GitHubApp, field string, u URL, o Options) *appTokens {
	return &appTokens{app: app, field: field, url: u, opts: o, requesting: make(chan struct{}, 1)}
}

// validToken returns a token that has not expired. If it expires soon, validToken requests a new one; if that fails, it returns
// the last token.
func (a *appTokens) validToken(ctx context.Context, rt *guardedTransport) (secret.String, error) {
	select {
	case a.requesting <- struct{}{}:
		defer func() { <-a.requesting }()
	case <-ctx.Done():
		return secret.String{}, context.Cause(ctx)
	}
	now := time.Now()
	token, expires := a.current()
	if now.Before(expires.Add(-renewBefore)) {
		return token, nil
	}
	fresh, until, err := a.requestToken(ctx, rt, now)
	if err != nil {
		if now.Before(expires) && ctx.Err() == nil {
			a.opts.Log.Warn("GitHub App token not renewed; keeping the last", "repo", a.url, "expires", expires, "error", err)
			return token, nil
		}
		return secret.String{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.expires = fresh, until
	return fresh, nil
}

func (a *appTokens) current() (secret.String, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token, a.expires
}

// forget drops the token, because the git server refused it. The next call of validToken requests a new one.
func (a *appTokens) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.expires = secret.String{}, time.Time{}
}

// requestToken requests a new token from the API. It follows no redirects.
func (a *appTokens) requestToken(ctx context.Context, rt *guardedTransport, now time.Time) (secret.String, time.Time, error) {
	none := secret.String{}
	owner, name, ok := a.repository()
	if !ok {
		return none, time.Time{}, failure.New(v1alpha1.ReasonUnsupportedRepository,
			"%s is not a GitHub repository, so a GitHub App has no access to it: the path must be /owner/name", a.url)
	}
	base, err := a.apiBase()
	if err != nil {
		return none, time.Time{}, err
	}
	jwt, err := a.signJWT(now)
	if err != nil {
		return none, time.Time{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.opts.Advertise, errDeadline)
	defer cancel()
	req, err := a.newRequest(ctx, base, name, jwt)
	if err != nil {
		return none, time.Time{}, err
	}
	explain := func(err error) error {
		return Explain(ctx, URL{scheme: base.Scheme, host: base.Host, path: base.Path}, err, []string{jwt})
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		if proxy, _ := rt.Proxy(req); proxy != nil {
			err = &proxyError{proxy.Host, err}
		}
		return none, time.Time{}, explain(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusCreated {
		return none, time.Time{}, a.statusError(base, res, owner+"/"+name)
	}
	body, err := bound.ReadAll(res.Body, maxAPIAnswer)
	if err != nil {
		return none, time.Time{}, explain(err)
	}
	token, expires, err := readAppToken(body, a.app, owner+"/"+name, jwt, now)
	if err != nil {
		if _, hasReason := errors.AsType[*failure.Error](err); !hasReason {
			err = failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s returned an invalid token: %w", base.Host, err)
		}
		return none, time.Time{}, err
	}
	return secret.New(token), expires, nil
}

func (a *appTokens) newRequest(ctx context.Context, base *url.URL, repository, jwt string) (*http.Request, error) {
	body, err := json.Marshal(map[string]any{
		"repositories": []string{repository},
		"permissions":  a.app.permissions(),
	})
	if err != nil {
		return nil, err
	}
	tokens := base.JoinPath("app", "installations", fmt.Sprint(a.app.InstallationID), "access_tokens")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, tokens.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("Authorization", "Bearer "+jwt)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "stoker")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	return req, nil
}

// repository returns the owner and the name in the address; ok is false if the address is not that of a repository of GitHub.
func (a *appTokens) repository() (owner, name string, ok bool) {
	owner, name, ok = strings.Cut(strings.TrimPrefix(a.url.path, "/"), "/")
	name = strings.TrimSuffix(name, ".git")
	return owner, name, ok && owner != "" && name != "" && !strings.Contains(name, "/")
}

// apiBase returns the address of the API: APIBaseURL, or the one that GitHub uses for the host.
func (a *appTokens) apiBase() (*url.URL, error) {
	text := a.app.APIBaseURL
	switch host := a.url.host; {
	case text != "":
	case host == "github.com" || host == "www.github.com":
		text = "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		text = "https://api." + host
	default:
		text = a.url.origin() + "/api/v3"
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !validHost(u.Hostname()) {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "%s.apiBaseURL is not a valid API address: use https://host/path, without credentials or query", a.field)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !a.url.Plaintext()) {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "%s.apiBaseURL is not https://: the token would be sent in the clear", a.field)
	}
	return u, nil
}

// statusError returns the error for an HTTP status of the API. It never shows the body, which is text of the server.
func (a *appTokens) statusError(base *url.URL, res *http.Response, repository string) error {
	after, asked := httpclient.RetryAfter(res.Header.Get("Retry-After"), time.Now(), maxWait)
	failed := func(format string, args ...any) error {
		return failure.New(v1alpha1.ReasonAuthFailed, format, args...)
	}
	switch code := res.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusForbidden && (asked || res.Header.Get("X-Ratelimit-Remaining") == "0"):
		return failure.New(v1alpha1.ReasonGitThrottled, "the API at %s limits the rate of requests: %w", base.Host, throttled(code, after))
	case code == http.StatusUnauthorized:
		return failed("the API at %s rejects the GitHub App's key (HTTP 401): is %s.appId %d right, the private key one of this app, and the clock right?", base.Host, a.field, a.app.AppID)
	case code == http.StatusForbidden:
		return failed("the API at %s refuses to issue a token (HTTP 403): is installation %d suspended?", base.Host, a.app.InstallationID)
	case code == http.StatusNotFound, code == http.StatusGone:
		return failed("GitHub App %d has no installation %d (HTTP %d): install it for the owner of %s, and use the number in the URL of the installation's page",
			a.app.AppID, a.app.InstallationID, code, repository)
	case code == http.StatusUnprocessableEntity:
		return failed("installation %d does not include %s, or lacks a permission (HTTP 422): add the repository to the installation, grant the app %s, and accept the change for the installation",
			a.app.InstallationID, repository, a.app.permissionList())
	case code >= 300 && code < 400:
		return failure.New(v1alpha1.ReasonRedirectRefused, "the API at %s redirects; set %s.apiBaseURL to the final address", base.Host, a.field)
	default:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the API at %s answers HTTP %d; trying again", base.Host, code)
	}
}

const (
	jwtLife   = 9 * time.Minute // GitHub accepts at most ten minutes
	clockSkew = time.Minute     // how far our clock may be ahead
	maxToken  = 4 << 10         // bytes
)

// signJWT returns the JSON web token (RS256) that authenticates the app.
func (a *appTokens) signJWT(now time.Time) (string, error) {
	if a.app.Key == nil {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the GitHub App for %s has no private key", a.url)
	}
	text, err := a.app.Key()
	if err != nil {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the GitHub App's private key for %s cannot be read: %w", a.url, err)
	}
	key, err := parseAppKey([]byte(text.Reveal()))
	if err != nil {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the GitHub App's private key for %s: %w", a.url, err)
	}
	claims, err := json.Marshal(map[string]any{
		"iat": now.Add(-clockSkew).Unix(),
		"exp": now.Add(jwtLife).Unix(),
		"iss": strconv.FormatInt(a.app.AppID, 10),
	})
	if err != nil {
		return "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the GitHub App's private key for %s cannot sign: is it an RSA key of 2048 bits?", a.url)
	}
	return signed + "." + encode(signature), nil
}

// parseAppKey reads an RSA key in the form of GitHub (PKCS #1) or of other tools (PKCS #8). An error never contains a part of the
// key.
func parseAppKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("not PEM: use the whole file that GitHub generated, with its BEGIN and END lines")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a private key, or protected by a passphrase")
	}
	if k, ok := key.(*rsa.PrivateKey); ok {
		return k, nil
	}
	return nil, errors.New("not an RSA key: GitHub Apps use only RSA keys")
}

// readAppToken reads the answer of the API. It refuses an answer that names another repository, or permissions that lack one of
// app's. The API may leave out both fields. Errors contain neither the token nor jwt, the token of the request.
func readAppToken(body []byte, app GitHubApp, repository, jwt string, now time.Time) (token string, expires time.Time, err error) {
	var answer struct {
		Token        string            `json:"token"`
		ExpiresAt    time.Time         `json:"expires_at"`
		Permissions  map[string]string `json:"permissions"`
		Repositories []struct {
			FullName string `json:"full_name"`
		} `json:"repositories"`
	}
	switch err := json.Unmarshal(body, &answer); {
	case len(body) > maxAPIAnswer:
		return "", expires, errors.New("the response is too long")
	case err != nil:
		return "", expires, errors.New("the response is not the expected JSON") // the text could contain a part of a token
	case answer.Token == "" || len(answer.Token) > maxToken || strings.ContainsFunc(answer.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", expires, errors.New("the token is empty, too long, or contains invalid characters")
	case !answer.ExpiresAt.After(now):
		return "", expires, errors.New("the token has already expired: is the clock right?")
	}
	if lacking := app.missingPermission(answer.Permissions); len(answer.Permissions) > 0 && lacking != "" {
		return "", expires, failure.New(v1alpha1.ReasonAuthFailed,
			"the GitHub App lacks the permission %s: grant it to the app, and accept the change for the installation", lacking)
	}
	for _, r := range answer.Repositories {
		if !strings.EqualFold(r.FullName, repository) {
			return "", expires, failure.New(v1alpha1.ReasonAuthFailed,
				"the installation has access to %s, but git.repo is %s: use the installation of the right owner", failure.Quote(secret.Redact(r.FullName, answer.Token, jwt)), failure.Quote(repository))
		}
	}
	expires = answer.ExpiresAt
	if latest := now.Add(tokenLife); expires.After(latest) {
		expires = latest
	}
	return answer.Token, expires, nil
}
