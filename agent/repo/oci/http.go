package oci

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

const (
	maxTokenAnswer = 64 << 10 // bytes
	maxRedirects   = 3        // of a layer
)

// exchanger sends requests to a registry.
type exchanger struct {
	url  wire.URL
	auth wire.Auth
	own  *wire.Client // to the host of the registry
	// elsewhere is for object storage and token servers on other hosts, which a hostile registry could choose: it connects neither to the pod
	// itself nor to the metadata of a cloud.
	elsewhere *wire.Client

	mu            sync.Mutex
	authorization string   // the header for the next request, "" for none yet
	sent          []string // secrets in all forms that were sent, for redaction
}

// request is a request to the repository or the token server.
type request struct {
	method, path, accept string
	query                map[string]string
	layer                bool // follows redirects
	// optional makes the error errAbsent if the registry has no such object, or does not know requests for it.
	optional bool
}

var errAbsent = errors.New("the registry does not have it")

func (x *exchanger) close() error { return errors.Join(x.own.Close(), x.elsewhere.Close()) }

func (x *exchanger) secrets() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent
}

// origin returns the scheme and the host of the registry.
func (x *exchanger) origin() (scheme, host string) {
	if x.url.Plaintext() {
		return "http", x.url.Host()
	}
	return "https", x.url.Host()
}

// do sends a request, with credentials if the registry asks for them. The answer has status 200; the caller must close its body.
func (x *exchanger) do(ctx context.Context, w wire.Watch, r request) (*http.Response, error) {
	scheme, host := x.origin()
	target := &url.URL{Scheme: scheme, Host: host, Path: "/v2" + x.url.Path() + r.path}
	query := url.Values{}
	for k, v := range r.query {
		query.Set(k, v)
	}
	target.RawQuery = query.Encode()
	x.mu.Lock()
	authorization := x.authorization
	x.mu.Unlock()
	for range 2 {
		res, err := x.send(ctx, w, r, target, authorization)
		if err != nil {
			return nil, err
		}
		if res.StatusCode != http.StatusUnauthorized {
			return x.answer(ctx, w, r, target, res)
		}
		challenges := res.Header.Values("Www-Authenticate")
		_ = res.Body.Close()
		next, err := x.authenticate(ctx, w, challenges)
		if err != nil {
			return nil, err
		}
		if next == authorization {
			break
		}
		authorization = next
		x.mu.Lock()
		x.authorization = next
		x.mu.Unlock()
	}
	return nil, failure.New(v1alpha1.ReasonAuthFailed, "%s refused the credentials (HTTP 401): is %s.token right and not expired, and may it pull this repository?", x.url, x.field())
}

func (x *exchanger) field() string {
	if x.auth.Field != "" {
		return x.auth.Field
	}
	return "git.auth"
}

// send sends one request, and follows no redirect.
func (x *exchanger) send(ctx context.Context, w wire.Watch, r request, target *url.URL, authorization string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), nil)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s names an address that cannot be used", x.url)
	}
	req.Header.Set("User-Agent", "stoker")
	req.Header.Set("Accept-Encoding", "identity") // the bounds are on what arrives
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	client := x.elsewhere
	if target.Hostname() == hostname(x.url.Host()) {
		client = x.own
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	defer w.Wait()()
	return client.APITransport().RoundTrip(req)
}

func hostname(host string) string { return (&url.URL{Host: host}).Hostname() }

// answer returns res if it has status 200, or the answer at the end of its redirects, or an error that shows nothing of its body.
func (x *exchanger) answer(ctx context.Context, w wire.Watch, r request, target *url.URL, res *http.Response) (*http.Response, error) {
	for hop := 0; r.layer && res.StatusCode/100 == 3 && hop < maxRedirects; hop++ {
		location := res.Header.Get("Location")
		_ = res.Body.Close()
		next, err := target.Parse(location)
		if err != nil || next.Hostname() == "" || next.User != nil || next.Scheme != "https" && (next.Scheme != "http" || !x.url.Plaintext()) {
			return nil, failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects the download of a layer to an address that is not https://: let the registry serve layers itself", x.url)
		}
		target = next
		if res, err = x.send(ctx, w, r, target, ""); err != nil {
			return nil, err
		}
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	_ = res.Body.Close()
	absent := []int{http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotImplemented}
	if r.optional && slices.Contains(absent, res.StatusCode) {
		return nil, errAbsent
	}
	return nil, x.statusError(r, target, res)
}

func (x *exchanger) statusError(r request, target *url.URL, res *http.Response) error {
	code, reference := res.StatusCode, r.path[strings.LastIndexByte(r.path, '/')+1:]
	_, own := x.origin()
	switch {
	case target.Host != own && code/100 != 3:
		return failure.New(v1alpha1.ReasonGitUnreachable, "the storage %s of %s answers HTTP %d for a layer; trying again", failure.Quote(target.Host), x.url, code)
	case code/100 == 3:
		return failure.New(v1alpha1.ReasonRedirectRefused, "%s redirects (HTTP %d), which is followed only for layers, up to %d times: set git.repo to the final address", x.url, code, maxRedirects)
	case code == http.StatusNotFound && r.path == "/tags/list":
		return failure.New(v1alpha1.ReasonRefNotFound, "there is no repository at %s (HTTP 404), or the credentials may not see it: check git.repo and %s", x.url, x.field())
	case code == http.StatusNotFound && strings.HasPrefix(r.path, "/manifests/"):
		return failure.New(v1alpha1.ReasonRefNotFound, "%s has no tag or digest %s (HTTP 404), or the credentials may not see it", x.url, failure.Quote(reference))
	case code == http.StatusNotFound:
		return failure.New(v1alpha1.ReasonRefNotFound, "%s has lost a layer of the artifact (HTTP 404): push it again", x.url)
	case code == http.StatusForbidden:
		return failure.New(v1alpha1.ReasonAuthFailed, "%s forbids reading (HTTP 403): may the credentials of %s pull this repository?", x.url, x.field())
	case code == http.StatusTooManyRequests:
		return failure.New(v1alpha1.ReasonGitThrottled, "%s limits the rate of requests: %w", x.url, wire.Throttled(code, res.Header.Get("Retry-After")))
	case code == http.StatusServiceUnavailable:
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s is not available: %w", x.url, wire.Throttled(code, res.Header.Get("Retry-After")))
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s answers HTTP %d; trying again", x.url, code)
}

// authenticate returns the header that answers a challenge.
func (x *exchanger) authenticate(ctx context.Context, w wire.Watch, challenges []string) (string, error) {
	for _, challenge := range challenges {
		scheme, rest, _ := strings.Cut(challenge, " ")
		switch strings.ToLower(scheme) {
		case "basic":
			_, host := x.origin()
			user, password, err := x.credential(host)
			if err != nil {
				return "", err
			}
			if password == "" {
				return "", failure.New(v1alpha1.ReasonAuthFailed, "%s requires credentials (HTTP 401): set %s.token to credentials for %s", x.url, x.field(), host)
			}
			return x.basic(user, password), nil
		case "bearer":
			return x.token(ctx, w, parseChallenge(rest))
		}
	}
	return "", failure.New(v1alpha1.ReasonAuthFailed, "%s requires credentials (HTTP 401), and offers neither basic authentication nor a token server", x.url)
}

func (x *exchanger) basic(user, password string) string {
	encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	x.rememberSecrets(password, encoded)
	return "Basic " + encoded
}

// maxSent bounds the secrets that are remembered for redaction: tokens are renewed every few minutes.
const maxSent = 16

func (x *exchanger) rememberSecrets(secrets ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent = append(secrets, x.sent[:min(len(x.sent), maxSent-len(secrets))]...)
}

// token gets a token from the token server that a challenge names.
func (x *exchanger) token(ctx context.Context, w wire.Watch, challenge map[string]string) (string, error) {
	realm, err := url.Parse(challenge["realm"])
	if err != nil || realm.Hostname() == "" || realm.User != nil || realm.Scheme != "https" && (realm.Scheme != "http" || !x.url.Plaintext()) {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "%s names a token server that is not an https:// address", x.url)
	}
	user, password, err := x.credential(realm.Host)
	if err != nil {
		return "", err
	}
	if _, own := x.origin(); password != "" && realm.Scheme == "http" && realm.Host != own {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "%s sends its clients to the token server %s without TLS, which gets no credential of another host", x.url, failure.Quote(realm.Host))
	}
	authorization := ""
	if password != "" {
		authorization = x.basic(user, password)
	} else if x.auth.Token != nil {
		return "", failure.New(v1alpha1.ReasonAuthFailed, "%s sends its clients to the token server %s, which %s.token has no credential for: "+
			"name a Secret of the type kubernetes.io/dockerconfigjson whose auths list %s, too", x.url, failure.Quote(realm.Host), x.field(), failure.Quote(realm.Host))
	}
	query := realm.Query()
	if s := challenge["service"]; s != "" {
		query.Set("service", s)
	}
	query.Set("scope", "repository:"+strings.TrimPrefix(x.url.Path(), "/")+":pull") // never what the registry asks for
	realm.RawQuery, realm.Fragment = query.Encode(), ""
	res, err := x.send(ctx, w, request{method: http.MethodGet}, realm, authorization)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the token server %s of %s refused the credentials (HTTP %d): is %s.token right and not expired?", failure.Quote(realm.Host), x.url, code, x.field())
	case code != http.StatusOK:
		return "", failure.New(v1alpha1.ReasonGitUnreachable, "the token server %s of %s answers HTTP %d; trying again", failure.Quote(realm.Host), x.url, code)
	}
	body, err := bound.ReadAll(w.Body(res.Body, maxTokenAnswer+1), maxTokenAnswer)
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err != nil && !errors.Is(err, bound.ErrTooLarge) {
		return "", err
	}
	if err != nil || json.Unmarshal(body, &answer) != nil || answer.Token+answer.AccessToken == "" || strings.ContainsFunc(answer.Token+answer.AccessToken, notGraphic) {
		return "", failure.New(v1alpha1.ReasonGitUnreachable, "the token server %s of %s answers with no token", failure.Quote(realm.Host), x.url)
	}
	token := answer.Token
	if token == "" {
		token = answer.AccessToken
	}
	x.rememberSecrets(token)
	return "Bearer " + token, nil
}

// notGraphic reports whether a character is a space, a control character or not ASCII: a header cannot have it in a token.
func notGraphic(r rune) bool { return r <= ' ' || r >= 0x7f }

// parseChallenge reads the parameters of a challenge: name="value", separated by commas.
func parseChallenge(s string) map[string]string {
	params := map[string]string{}
	for len(s) > 0 && len(params) < 8 {
		name, rest, ok := strings.Cut(s, "=")
		if !ok {
			break
		}
		name = strings.ToLower(strings.Trim(name, ", \t"))
		var value string
		if quoted, is := strings.CutPrefix(rest, `"`); is {
			value, s, _ = strings.Cut(quoted, `"`)
		} else {
			value, s, _ = strings.Cut(rest, ",")
		}
		params[name] = strings.TrimSpace(value)
	}
	return params
}

// credential returns the user name and the password for a host, or "" if the Secret does not list the host. A plain token is for the host
// of the registry. A Secret of the type kubernetes.io/dockerconfigjson names its hosts itself.
func (x *exchanger) credential(host string) (user, password string, err error) {
	if x.auth.Token == nil {
		return "", "", nil
	}
	value, err := x.auth.Token()
	if err != nil {
		return "", "", failure.New(v1alpha1.ReasonAuthFailed, "the credentials for %s cannot be read: %w", x.url, err)
	}
	text := strings.TrimSpace(value.Reveal())
	if strings.HasPrefix(text, "{") {
		user, password, ok := dockerCredential([]byte(text), host, x.url.Path())
		if !ok {
			return "", "", failure.New(v1alpha1.ReasonAuthFailed, "%s.token is not a valid Docker configuration: use a Secret of the type kubernetes.io/dockerconfigjson", x.field())
		}
		return user, password, nil
	}
	if _, own := x.origin(); host != own {
		return "", "", nil
	}
	user = x.auth.Username
	if user == "" {
		user = v1alpha1.DefaultTokenUsername
	}
	return user, text, nil
}

// dockerCredential returns the credential for a host in a Docker configuration, "" if it has none: that of the longest path if there are
// several, and the first in the alphabet of several names for one path. ok reports whether the configuration is valid.
func dockerCredential(config []byte, host, path string) (user, password string, ok bool) {
	var c struct {
		Auths map[string]struct {
			Username string `json:"username"`
			Password string `json:"password"`
			Auth     string `json:"auth"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(config, &c); err != nil || c.Auths == nil {
		return "", "", false
	}
	longest := -1
	for _, name := range slices.Sorted(maps.Keys(c.Auths)) {
		a := c.Auths[name]
		_, address, hasScheme := strings.Cut(name, "://")
		if !hasScheme {
			address = name
		}
		server, within, _ := strings.Cut(strings.TrimRight(address, "/"), "/")
		if within == "v1" || within == "v2" {
			within = ""
		}
		if !strings.EqualFold(server, host) || within != "" && !strings.HasPrefix(path+"/", "/"+within+"/") || len(within) <= longest {
			continue
		}
		longest = len(within)
		user, password = a.Username, a.Password
		if a.Auth != "" {
			decoded, err := base64.StdEncoding.DecodeString(a.Auth)
			if err != nil {
				return "", "", false
			}
			user, password, _ = strings.Cut(string(decoded), ":")
		}
	}
	return user, password, true
}

// open starts the download of a layer.
func (x *exchanger) open(ctx context.Context, w wire.Watch, l layer) (io.ReadCloser, error) {
	res, err := x.do(ctx, w, request{method: http.MethodGet, path: "/blobs/" + l.Digest, layer: true}) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{w.Body(res.Body, l.Size), res.Body}, nil
}
