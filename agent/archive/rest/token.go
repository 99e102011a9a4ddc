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
	// expiryMargin is how long before its expiry a token is no longer used.
	expiryMargin = time.Minute
	// maxLife bounds how long a token is used, even if the server allows more.
	maxLife = time.Hour
)

// Tokens caches an access token until it expires or the credentials change. It is safe for concurrent use.
type Tokens struct {
	// Secret returns the credentials. It is called on each use, so that rotated ones take effect immediately. If it is nil, Fetch gets
	// empty credentials.
	Secret func() (secret.String, error)
	// Fetch asks a server for a token. Its context ends after ten seconds.
	Fetch func(ctx context.Context, credentials secret.String) (*Token, error)

	mu          sync.Mutex
	credentials secret.String // with which token was fetched
	token       *Token        // nil if there is none
	until       time.Time     // when to fetch the next one
}

// Token is an access token in the form of OAuth 2.0.
type Token struct {
	AccessToken string `json:"access_token"`
	ExpiresIn   Number `json:"expires_in"` // seconds
}

// Number is a number that some servers send as a string.
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
	var credentials secret.String
	if t.Secret != nil {
		var err error
		if credentials, err = t.Secret(); err != nil {
			return "", err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != nil && credentials.Reveal() == t.credentials.Reveal() && time.Now().Before(t.until) {
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
	t.token, t.credentials, t.until = token, credentials, time.Now().Add(life-min(expiryMargin, life/2))
	return token.AccessToken, nil
}

// Renew forgets the token. It returns false if there was none.
func (t *Tokens) Renew() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	renewable := t.token != nil
	t.token = nil
	return renewable
}

// TokenHTTP returns a client for FetchToken that connects through the proxy of the environment.
func TokenHTTP() *http.Client { return newHTTP(http.ProxyFromEnvironment) }

// MetadataHTTP returns a client for FetchToken that uses no proxy: the metadata server of a cloud is on the node.
func MetadataHTTP() *http.Client { return newHTTP(nil) }

// FetchToken sends a request for a token. The error shows only the status of the answer and its OAuth 2.0 error code, because the
// description may repeat the credentials.
func FetchToken(client *http.Client, req *http.Request) (*Token, http.Header, error) {
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, HideAddress(req.Context(), err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxToken))
	if err != nil {
		return nil, nil, HideAddress(req.Context(), err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("the server answered %d (%s)", res.StatusCode, OAuthError(body))
	}
	var t Token
	if err := json.Unmarshal(body, &t); err != nil || t.AccessToken == "" {
		return nil, nil, errors.New("the response has no access token")
	}
	return &t, res.Header, nil
}

// OAuthError returns the quoted OAuth 2.0 error code of an answer.
func OAuthError(body []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(body, &e) // if the answer is not JSON, there is no code
	return failure.Quote(e.Error)
}
