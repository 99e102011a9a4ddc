package gitserver

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// App is the part of GitHub's API that a GitHub App needs: it verifies the app's signed token and issues installation
// tokens, which its Auth accepts. It is an http.Handler that tests serve themselves.
type App struct {
	ID           int64
	Installation int64
	Owner        string
	Repositories []string      // names that the installation includes
	Life         time.Duration // of a token; zero means one hour
	Suspended    bool
	Permissions  map[string]string // of the app; nil means all that a request names

	key *rsa.PrivateKey

	mu     sync.Mutex
	tokens map[string]time.Time
	issued int
}

// NewApp returns an app with a new private key, and the key in PEM like GitHub provides it.
func NewApp(id, installation int64, owner string, repositories ...string) (*App, string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, "", fmt.Errorf("key of the app: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return &App{ID: id, Installation: installation, Owner: owner, Repositories: repositories, key: key, tokens: map[string]time.Time{}}, string(text), nil
}

// Auth authorizes requests with an issued token that has not expired.
func (a *App) Auth(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	a.mu.Lock()
	defer a.mu.Unlock()
	return ok && user == "x-access-token" && time.Now().Before(a.tokens[password])
}

// Issued returns how many tokens were issued.
func (a *App) Issued() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.issued
}

// Revoke invalidates all tokens.
func (a *App) Revoke() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

// ServeHTTP implements http.Handler: POST …/app/installations/{id}/access_tokens.
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	status, answer := a.answer(r)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *App) answer(r *http.Request) (int, map[string]any) {
	refuse := func(status int, message string) (int, map[string]any) {
		return status, map[string]any{"message": message}
	}
	if r.Method != http.MethodPost || r.Header.Get("Accept") != "application/vnd.github+json" {
		return refuse(http.StatusNotFound, "Not Found")
	}
	issuer, err := a.verifyToken(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if err != nil || issuer != fmt.Sprint(a.ID) {
		return refuse(http.StatusUnauthorized, "A JSON web token could not be decoded")
	}
	if !strings.HasSuffix(r.URL.Path, fmt.Sprintf("/app/installations/%d/access_tokens", a.Installation)) {
		return refuse(http.StatusNotFound, "Not Found")
	}
	if a.Suspended {
		return refuse(http.StatusForbidden, "This installation has been suspended")
	}
	var request struct {
		Repositories []string          `json:"repositories"`
		Permissions  map[string]string `json:"permissions"`
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil || json.Unmarshal(body, &request) != nil {
		return refuse(http.StatusBadRequest, "Problems parsing JSON")
	}
	var repositories []map[string]any
	for _, name := range request.Repositories {
		if !slices.Contains(a.Repositories, name) {
			return refuse(http.StatusUnprocessableEntity, "There is at least one repository that does not exist or is not accessible to the parent installation.")
		}
		repositories = append(repositories, map[string]any{"name": name, "full_name": a.Owner + "/" + name})
	}
	for name, level := range request.Permissions {
		if has := a.Permissions[name]; a.Permissions != nil && has != level && has != "write" {
			return refuse(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
		}
	}
	life := a.Life
	if life == 0 {
		life = time.Hour
	}
	a.issued++
	token := fmt.Sprintf("ghs_S3CR3T%s", rand.Text())
	a.tokens[token] = time.Now().Add(life)
	return http.StatusCreated, map[string]any{
		"token": token, "expires_at": a.tokens[token].UTC().Format(time.RFC3339Nano), "permissions": request.Permissions,
		"repository_selection": "selected", "repositories": repositories,
	}
}

// verifyToken verifies a JSON web token and returns its issuer.
func (a *App) verifyToken(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("a token of %d parts", len(parts))
	}
	var raw [3][]byte
	for i, p := range parts {
		b, err := base64.RawURLEncoding.DecodeString(p)
		if err != nil {
			return "", fmt.Errorf("part %d: %w", i, err)
		}
		raw[i] = b
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err := rsa.VerifyPKCS1v15(&a.key.PublicKey, crypto.SHA256, sum[:], raw[2]); err != nil {
		return "", fmt.Errorf("signature: %w", err)
	}
	var head struct{ Alg, Typ string }
	var claims struct {
		Iat, Exp int64
		Iss      string
	}
	if err := json.Unmarshal(raw[0], &head); err != nil {
		return "", fmt.Errorf("head: %w", err)
	}
	if err := json.Unmarshal(raw[1], &claims); err != nil {
		return "", fmt.Errorf("claims: %w", err)
	}
	now := time.Now().Unix()
	if head.Alg != "RS256" || claims.Iat > now || claims.Exp <= now || claims.Exp > now+600 {
		return "", fmt.Errorf("algorithm %s, issued %d, ends %d, and it is %d", head.Alg, claims.Iat, claims.Exp, now)
	}
	return claims.Iss, nil
}
