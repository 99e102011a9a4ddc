package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	tokenTimeout = 10 * time.Second
	maxToken     = 64 << 10
	// early is how long before its end a token is no longer used.
	early = time.Minute
	// maxLife bounds how long a token is used, whatever the server says.
	maxLife = time.Hour
)

// Tokens keeps an access token for as long as it lives, and the secret from which it was made is the same.
type Tokens struct {
	// Secret returns the credentials on each use, so that rotated ones take effect immediately.
	Secret func() (secret.String, error)
	// Fetch asks for a token. Its context ends soon.
	Fetch func(ctx context.Context, credentials secret.String) (*Token, error)

	mu    sync.Mutex
	of    secret.String
	token *Token
	until time.Time
}

// Token is an access token as servers of OAuth 2.0 answer it.
type Token struct {
	AccessToken string `json:"access_token"`
	ExpiresIn   Number `json:"expires_in"`
}

// Number is a number that some servers write as a text.
type Number int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(bytes.Trim(b, `"`), (*int64)(n))
}

// Authorize adds the token to a request.
func (t *Tokens) Authorize(ctx context.Context, req *http.Request) error {
	token, err := t.get(ctx)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return nil
}

func (t *Tokens) get(ctx context.Context) (string, error) {
	credentials, err := t.Secret()
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != nil && credentials.Reveal() == t.of.Reveal() && time.Now().Before(t.until) {
		return t.token.AccessToken, nil
	}
	t.token = nil
	ctx, cancel := context.WithTimeoutCause(ctx, tokenTimeout, fmt.Errorf("no complete answer within %s", tokenTimeout))
	defer cancel()
	token, err := t.Fetch(ctx, credentials)
	if err != nil {
		return "", err
	}
	life := min(max(time.Duration(token.ExpiresIn)*time.Second, 0), maxLife)
	t.token, t.of, t.until = token, credentials, time.Now().Add(life-min(early, life/2))
	return token.AccessToken, nil
}

// Renew forgets the token. It returns false if there was none.
func (t *Tokens) Renew() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	had := t.token != nil
	t.token = nil
	return had
}

// TokenHTTP returns a client for requests for tokens. It connects through the proxy of the environment, unless the server is local: that
// of the metadata of a cloud.
func TokenHTTP(local bool) *http.Client {
	if local {
		return newHTTP(nil)
	}
	return newHTTP(http.ProxyFromEnvironment)
}

// FetchToken sends a request for a token. The error shows of the answer only its status, and what OAuth 2.0 calls error: the description
// may repeat the credentials.
func FetchToken(client *http.Client, req *http.Request) (*Token, http.Header, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, Shown(req.Context(), err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxToken))
	if err != nil {
		return nil, nil, Shown(req.Context(), err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("the answer is %d (%s)", res.StatusCode, OAuthError(body))
	}
	var t Token
	if err := json.Unmarshal(body, &t); err != nil || t.AccessToken == "" {
		return nil, nil, errors.New("the answer has no access token")
	}
	return &t, res.Header, nil
}

// OAuthError returns the error code in an answer of a server of tokens, quoted.
func OAuthError(body []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(body, &e) // an answer of another kind has none
	return failure.Quote(e.Error)
}
