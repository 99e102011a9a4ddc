package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"stoker.io/stoker/agent/archive/rest"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
)

const (
	scope    = "https://www.googleapis.com/auth/devstorage.read_write"
	tokenURL = "https://oauth2.googleapis.com/token"
	// metadataHost serves the tokens of the identity of a pod or of its node.
	metadataHost = "169.254.169.254"
)

// newTokens returns access tokens. With key, the tokens are those of its service account; if key is nil, those of the pod's identity.
func newTokens(key func() (secret.String, error)) *rest.Tokens {
	if key == nil {
		client := rest.TokenHTTP(true)
		return &rest.Tokens{Fetch: func(ctx context.Context, _ secret.String) (*rest.Token, error) { return fromMetadata(ctx, client) }}
	}
	client := rest.TokenHTTP(false)
	return &rest.Tokens{
		Secret: key,
		Fetch:  func(ctx context.Context, key secret.String) (*rest.Token, error) { return fromKey(ctx, client, key) },
	}
}

// fromKey exchanges a signed JSON Web Token for an access token. key is the JSON file that Google creates for a service account.
func fromKey(ctx context.Context, client *http.Client, key secret.String) (*rest.Token, error) {
	var k struct {
		Type        string `json:"type"`
		ClientEmail string `json:"client_email"`
		PrivateKey  string `json:"private_key"`
		KeyID       string `json:"private_key_id"`
		TokenURI    string `json:"token_uri"`
	}
	if err := json.Unmarshal([]byte(key.Reveal()), &k); err != nil || k.Type != "service_account" || k.ClientEmail == "" || k.PrivateKey == "" {
		return nil, errors.New("the Secret of " + field + ".secretRef needs the key of a service account: JSON with type service_account, client_email and private_key")
	}
	conf := jwt.Config{
		Email: k.ClientEmail, PrivateKey: []byte(k.PrivateKey), PrivateKeyID: k.KeyID, Scopes: []string{scope}, TokenURL: cmp.Or(k.TokenURI, tokenURL),
	}
	withCtx := *client
	withCtx.Transport = withContext{ctx, client.Transport}
	t, err := conf.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &withCtx)).Token()
	if err == nil && t.AccessToken == "" {
		err = errors.New("the response has no access token")
	}
	if err == nil {
		life := rest.Number(0)
		if !t.Expiry.IsZero() {
			life = rest.Number(time.Until(t.Expiry).Seconds())
		}
		return &rest.Token{AccessToken: t.AccessToken, ExpiresIn: life}, nil
	}
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok { // the text of err has the whole answer
		err = fmt.Errorf("the server answered %d (%s)", refused.Response.StatusCode, rest.OAuthError(refused.Body))
	} else {
		err = rest.HideAddress(ctx, err)
	}
	return nil, fmt.Errorf("%s.secretRef: cannot get a token for service account %s: %w", field, failure.Quote(k.ClientEmail), err)
}

// withContext sends requests with a context, because package jwt sends them without one.
type withContext struct {
	ctx  context.Context
	next http.RoundTripper
}

func (w withContext) RoundTrip(req *http.Request) (*http.Response, error) {
	return w.next.RoundTrip(req.WithContext(w.ctx))
}

// fromMetadata returns the token that Google Cloud gives to the pod. Like Google's libraries, it looks for the server at GCE_METADATA_HOST.
func fromMetadata(ctx context.Context, client *http.Client) (*rest.Token, error) {
	u := url.URL{
		Scheme: "http", Host: cmp.Or(os.Getenv("GCE_METADATA_HOST"), metadataHost), Path: "/computeMetadata/v1/instance/service-accounts/default/token",
		RawQuery: url.Values{"scopes": {scope}}.Encode(),
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("GCE_METADATA_HOST is not a host: %w", err)
	}
	req.Header.Set("Metadata-Flavor", "Google")
	t, header, err := rest.FetchToken(client, req)
	if err == nil && header.Get("Metadata-Flavor") != "Google" {
		err = errors.New("the server does not identify itself as Google Cloud's metadata server")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the metadata server gives the pod no token: set secretRef, or give the pod's service account an identity: %w", field, err)
	}
	return t, nil
}
