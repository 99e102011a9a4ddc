// Package gitserver serves real bare repositories over smart HTTP, by default on loopback, for tests, benchmarks and
// the demo. Git itself answers (git upload-pack and receive-pack), so clients see what they would see at a real host. The server can be
// made to fail at run time in the ways in which hosts fail, and logs its requests. An SSHServer serves repositories over ssh.
//
//	root := t.TempDir()
//	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"))
//	first := repo.Commit("first", gitserver.Write("projects/a/project.json", "{}"))
//	srv, err := gitserver.Start(root, gitserver.Options{})
//	defer srv.Close()
//	srv.Inject(gitserver.Truncate(4096).On(gitserver.UploadPack).Times(1))
//
// It needs the git program (2.31 or newer) on the PATH.
package gitserver

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options configure a Server. The zero value is plain HTTP without authorization.
type Options struct {
	// Host is the IP address to listen on. The certificate is valid for it. "" means 127.0.0.1.
	Host string
	// TLS makes the server use HTTPS with a certificate of its own authority (Server.CA).
	TLS bool
	// NotAfter is when the certificate expires; zero means a day from now. A time in the past makes an expired
	// certificate.
	NotAfter time.Time
	// Auth authorizes requests; nil allows all. Server.SetAuth changes it later.
	Auth Auth
	// Pushes makes the server accept pushes. By default it answers 403, like a git host to credentials that may only read.
	Pushes bool
}

// Server is a running git server.
type Server struct {
	root    string
	backend string // path of git-http-backend
	pushes  bool
	baseURL string // http://127.0.0.1:port
	ca      []byte
	server  *http.Server
	stop    context.CancelFunc
	running sync.WaitGroup // the accept loop and every request in flight

	mu        sync.Mutex
	auth      Auth
	faults    []*Fault
	injected  []*Fault // with those that are over
	refuse    Feature
	log       []*Request
	inFlight  int // requests in flight
	logClears int // how often the log was cleared
	closed    bool
}

// Start serves the bare repositories below root on a free port.
func Start(root string, opts Options) (*Server, error) {
	if info, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("git server: root: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("git server: root %q is not a directory", root)
	}
	backend, err := findBackend()
	if err != nil {
		return nil, err
	}
	if opts.Host == "" {
		opts.Host = "127.0.0.1"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(opts.Host, "0"))
	if err != nil {
		return nil, fmt.Errorf("git server: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{root: root, backend: backend, pushes: opts.Pushes, auth: opts.Auth, stop: stop, baseURL: "http://" + listener.Addr().String()}
	if opts.TLS {
		chain, ca, err := newCertificate(opts.Host, opts.NotAfter)
		if err != nil {
			stop()
			return nil, errors.Join(err, listener.Close())
		}
		s.ca, s.baseURL = ca, "https://"+listener.Addr().String()
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{chain}, MinVersion: tls.VersionTLS12})
	}
	s.server = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          silentLog(),
	}
	s.running.Go(func() { _ = s.server.Serve(listener) })
	return s, nil
}

// URL returns the address of a repository, named by its path below the root ("site.git"). An empty name returns the
// address of the server itself, for Redirect.
func (s *Server) URL(repo string) string {
	if repo == "" {
		return s.baseURL
	}
	return s.baseURL + "/" + repo
}

// CA returns the authority of the server's certificate in PEM, or nil without TLS.
func (s *Server) CA() []byte { return s.ca }

// SetAuth replaces the authorization, from the next request on. Nil allows all.
func (s *Server) SetAuth(auth Auth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auth = auth
}

// Close stops the server: it cuts open connections, ends stalled answers and kills git processes. It waits for all of
// them, and may be called twice. It returns an error if no request has matched a fault of Inject.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.server.Close()
	s.running.Wait()
	return errors.Join(err, s.checkFaults())
}

// begin registers a request, unless the server is closing. It returns how often the log has been cleared.
func (s *Server) begin() (logClears int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
		s.inFlight++
	}
	return s.logClears, !s.closed
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

// InFlight returns the number of unanswered requests, including stalled ones.
func (s *Server) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	logClears, ok := s.begin()
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()
	defer s.end()
	rec := s.newRecorder(w, r, logClears)
	defer rec.publish()

	s.mu.Lock()
	faults, auth, refuse := s.takeFaults(rec.Repo, rec.Service), s.auth, s.refuse
	s.mu.Unlock()

	if answerFault(rec, r, faults) {
		return
	}
	if auth != nil && !auth(r) {
		rec.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(rec, "unauthorized", http.StatusUnauthorized)
		return
	}
	s.serveGit(rec, r, faults, refuse)
}

// Auth decides whether a request is authorized. An unauthorized request gets 401 and a Basic challenge.
type Auth func(r *http.Request) bool

// Basic authorizes requests with this name and password.
func Basic(user, password string) Auth {
	return func(r *http.Request) bool {
		u, p, ok := r.BasicAuth()
		return ok && u == user && p == password
	}
}

// Token authorizes requests with the token, either as a bearer token or as the password of any name: git hosts accept
// both.
func Token(token string) Auth {
	return func(r *http.Request) bool {
		if _, p, ok := r.BasicAuth(); ok {
			return p == token
		}
		scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		return strings.EqualFold(scheme, "Bearer") && value == token
	}
}

// newCertificate creates an authority and a certificate for the loopback addresses and for host, an IP address. The server
// certificate expires at notAfter, or after a day if notAfter is zero; the authority stays valid. newCertificate returns the
// server certificate, and the authority in PEM.
func newCertificate(host string, notAfter time.Time) (tls.Certificate, []byte, error) {
	now := time.Now()
	if notAfter.IsZero() {
		notAfter = now.Add(24 * time.Hour)
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test git authority"},
		NotBefore:             notAfter.Add(-48 * time.Hour),
		NotAfter:              now.Add(48 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "test git server"},
		NotBefore:    notAfter.Add(-48 * time.Hour),
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(host)},
		DNSNames:     []string{"localhost"},
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("authority key: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("server key: %w", err)
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("authority: %w", err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, leafKey.Public(), authorityKey)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("server certificate: %w", err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER})
	return tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}, ca, nil
}

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
