package wire

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

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
		return "", failure.New(v1alpha1.ReasonAuthFailed, "the GitHub App's private key for %s does not sign: is it an RSA key of 2048 bits?", a.url)
	}
	return signed + "." + encode(signature), nil
}

// parseAppKey reads an RSA key in the form of GitHub (PKCS #1) or of other tools (PKCS #8). An error never contains a part of the
// key.
func parseAppKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM: give the whole file that GitHub made, with its BEGIN and END lines")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("it is no private key, or is protected by a passphrase")
	}
	if k, ok := key.(*rsa.PrivateKey); ok {
		return k, nil
	}
	return nil, errors.New("it is no RSA key, which a GitHub App has")
}

// readAppToken reads the answer of the API. It refuses a token for another repository, and a token without the permissions of
// app.
func readAppToken(body []byte, app GitHubApp, repository string, now time.Time) (token string, expires time.Time, err error) {
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
		return "", expires, errors.New("it is too long")
	case err != nil:
		return "", expires, errors.New("it is no JSON of the right shape") // the text could contain a part of a token
	case answer.Token == "" || len(answer.Token) > maxToken || strings.ContainsFunc(answer.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", expires, errors.New("the token is empty, too long, or holds characters that no token has")
	case !answer.ExpiresAt.After(now):
		return "", expires, errors.New("the token has ended already: is the clock right?")
	}
	if lacking := app.missingPermission(answer.Permissions); len(answer.Permissions) > 0 && lacking != "" {
		return "", expires, failure.New(v1alpha1.ReasonAuthFailed,
			"the GitHub App lacks the permission %s: give it to the app, and accept it for the installation", lacking)
	}
	for _, r := range answer.Repositories {
		if !strings.EqualFold(r.FullName, repository) {
			return "", expires, failure.New(v1alpha1.ReasonAuthFailed,
				"the installation's repository of that name is %s, and git.repo is %s: give the installation of the right owner", failure.Quote(r.FullName), failure.Quote(repository))
		}
	}
	expires = answer.ExpiresAt
	if latest := now.Add(tokenLife); expires.After(latest) {
		expires = latest
	}
	return answer.Token, expires, nil
}
