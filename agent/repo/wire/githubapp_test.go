package wire

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// appSite is the repository plant/site of a host whose tokens come from the API of an app.
type appSite struct {
	*gitserver.Repo
	t      testing.TB
	Server *gitserver.Server
	app    *gitserver.App
	api    *httptest.Server
	key    string
}

func newAppSite(t testing.TB) *appSite {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "plant", "site.git"))
	app, key, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	srv, err := gitserver.Start(root, gitserver.Options{Auth: app.Auth})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	api := httptest.NewServer(app)
	t.Cleanup(api.Close)
	repo.Commit("first", repotest.Views(3))
	return &appSite{repo, t, srv, app, api, key}
}

// renew gives the app its first settings, and another address of its API.
func (s *appSite) renew(t testing.TB) {
	s.t = t
	s.app.Repositories, s.app.Owner, s.app.Suspended, s.app.Life = []string{"site"}, "plant", false, 0
	s.api = httptest.NewServer(s.app)
	t.Cleanup(s.api.Close)
}

func (s *appSite) auth() Auth {
	return Auth{App: &GitHubApp{AppID: 7, InstallationID: 42, Key: repotest.Token(s.key), APIBaseURL: s.api.URL + "/api/v3"}}
}

func (s *appSite) client(a Auth) *testClient {
	return newClient(s.t, parseURL(s.t, s.Server.URL("plant/site.git")), a, Options{})
}

func (s *appSite) resolve(r *testClient) error {
	s.t.Helper()
	_, err := r.Resolve(s.t.Context(), "main")
	return err
}

func TestGitHubAppUsesOneToken(t *testing.T) {
	g := newAppSite(t)
	r := g.client(g.auth())
	pull(t, openStore(t, store.Options{}), r, "main")
	for range 5 {
		require.NoError(t, g.resolve(r))
	}
	issued := g.app.Issued()
	assert.Equal(t, 1, issued, "a valid token is kept")
	for _, req := range g.Server.Requests() {
		assert.Equal(t, appUser, req.User)
	}
}

func TestGitHubAppRenewsToken(t *testing.T) {
	g := newAppSite(t)
	g.app.Life = renewBefore + time.Minute
	r := g.client(g.auth())
	require.NoError(t, g.resolve(r))
	tokens := r.transport.(*httpTransport).app
	tokens.mu.Lock()
	tokens.expires = time.Now().Add(renewBefore - time.Second)
	tokens.mu.Unlock()
	require.NoError(t, g.resolve(r))
	issued := g.app.Issued()
	assert.Equal(t, 2, issued)

	t.Run("a token is used until it expires if the API is unreachable", func(t *testing.T) {
		g.api.Close()
		tokens.mu.Lock()
		tokens.expires = time.Now().Add(renewBefore - time.Second)
		tokens.mu.Unlock()
		require.NoError(t, g.resolve(r))
		tokens.mu.Lock()
		tokens.expires = time.Now()
		tokens.mu.Unlock()
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, g.resolve(r))
	})
}

func TestGitHubAppReplacesRefusedToken(t *testing.T) {
	g := newAppSite(t)
	r := g.client(g.auth())
	require.NoError(t, g.resolve(r))
	g.app.Revoke()
	err := g.resolve(r)
	repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
	require.NoError(t, g.resolve(r), "the next attempt has a new token")
}

func TestGitHubAppErrors(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	_, otherKey, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	g := newAppSite(t)
	for name, tt := range map[string]struct {
		change func(*appSite, *GitHubApp)
		want   v1alpha1.Reason
		says   string
	}{
		"another app's key":            {func(_ *appSite, a *GitHubApp) { a.Key = repotest.Token(otherKey) }, v1alpha1.ReasonAuthFailed, "rejects the GitHub App's key"},
		"another app's number":         {func(_ *appSite, a *GitHubApp) { a.AppID = 8 }, v1alpha1.ReasonAuthFailed, "appId 8"},
		"an app that is not installed": {func(_ *appSite, a *GitHubApp) { a.InstallationID = 43 }, v1alpha1.ReasonAuthFailed, "no installation 43"},
		"a repository not included":    {func(g *appSite, _ *GitHubApp) { g.app.Repositories = []string{"other"} }, v1alpha1.ReasonAuthFailed, "does not include plant/site"},
		"another owner's installation": {func(g *appSite, _ *GitHubApp) { g.app.Owner = "else" }, v1alpha1.ReasonAuthFailed, `"else/site"`},
		"a suspended installation":     {func(g *appSite, _ *GitHubApp) { g.app.Suspended = true }, v1alpha1.ReasonAuthFailed, "suspended"},
		"a key that is not PEM":        {func(_ *appSite, a *GitHubApp) { a.Key = repotest.Token(tripwire) }, v1alpha1.ReasonAuthFailed, "not PEM"},
		"a key of another kind": {func(_ *appSite, a *GitHubApp) {
			a.Key = repotest.Token(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
		}, v1alpha1.ReasonAuthFailed, "not an RSA key"},
		"a key that is garbage": {func(_ *appSite, a *GitHubApp) {
			a.Key = repotest.Token(string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: []byte(tripwire)})))
		}, v1alpha1.ReasonAuthFailed, "not a private key"},
		"a key that cannot be read": {func(_ *appSite, a *GitHubApp) {
			a.Key = func() (secret.String, error) { return secret.String{}, errors.New("no such file") }
		}, v1alpha1.ReasonAuthFailed, "no such file"},
		"an unreachable API":               {func(g *appSite, _ *GitHubApp) { g.api.Close() }, v1alpha1.ReasonGitUnreachable, "cannot be reached"},
		"an invalid API address":           {func(_ *appSite, a *GitHubApp) { a.APIBaseURL = "https://user:" + tripwire + "@h/" }, v1alpha1.ReasonAuthFailed, "apiBaseURL"},
		"a token that has already expired": {func(g *appSite, _ *GitHubApp) { g.app.Life = -time.Minute }, v1alpha1.ReasonGitUnreachable, "clock"},
	} {
		t.Run(name, func(t *testing.T) {
			g.renew(t)
			issued := g.app.Issued()
			a := g.auth()
			tt.change(g, a.App)
			err := g.resolve(g.client(a))
			repotest.RequireReason(t, tt.want, err)
			assert.ErrorContains(t, err, tt.says)
			// In these two cases, the API issues a token, and the client refuses it.
			assert.Equal(t, strings.Contains(name, "owner") || strings.Contains(name, "already expired"), g.app.Issued() > issued)
		})
	}
	for status, want := range map[int]v1alpha1.Reason{
		http.StatusTooManyRequests: v1alpha1.ReasonGitThrottled, http.StatusBadGateway: v1alpha1.ReasonGitUnreachable,
		http.StatusFound: v1alpha1.ReasonRedirectRefused, http.StatusOK: v1alpha1.ReasonGitUnreachable,
	} {
		g.renew(t)
		g.api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://192.0.2.1/")
			http.Error(w, tripwire, status)
		})
		repotest.RequireReason(t, want, g.resolve(g.client(g.auth())))
	}
	t.Run("a throttled API says for how long", func(t *testing.T) {
		g.renew(t)
		g.api.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(http.StatusForbidden)
		})
		err := g.resolve(g.client(g.auth()))
		repotest.RequireReason(t, v1alpha1.ReasonGitThrottled, err)
		after, ok := backoff.Asked(err)
		assert.True(t, ok)
		assert.Equal(t, 90*time.Second, after)
	})
	t.Run("a silent API is GitTimeout", func(t *testing.T) {
		g.renew(t)
		done := make(chan struct{})
		defer close(done)
		g.api.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { <-done })
		r := newClient(t, parseURL(t, g.Server.URL("plant/site.git")), g.auth(), Options{Advertise: 100 * time.Millisecond})
		repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, g.resolve(r))
	})
}

// A token has the permissions asked for, or the error names those that are missing.
func TestGitHubAppPermissions(t *testing.T) {
	want := map[string]string{"contents": "write", "pull_requests": "write"}
	withWrite := func(g *appSite) *testClient {
		a := g.auth()
		a.App.Permissions, a.Field = want, "spec.bidirectional.auth"
		return g.client(a)
	}
	t.Run("granted", func(t *testing.T) {
		g := newAppSite(t)
		g.app.Permissions = map[string]string{"contents": "write", "pull_requests": "write", "metadata": "read"}
		c := withWrite(g)
		token, err := c.APIToken(t.Context())
		require.NoError(t, err)
		assert.NotEmpty(t, token.Reveal())
		require.NoError(t, g.resolve(c))
		issued := g.app.Issued()
		assert.Equal(t, 1, issued, "git and the API share a token")
	})
	t.Run("not granted to the app", func(t *testing.T) {
		g := newAppSite(t)
		g.app.Permissions = map[string]string{"contents": "read"}
		_, err := withWrite(g).APIToken(t.Context())
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		require.ErrorContains(t, err, "Contents: Write and Pull requests: Write")
		require.NoError(t, g.resolve(g.client(g.auth())), "reading needs fewer permissions")
	})
	t.Run("not in the answer", func(t *testing.T) {
		now := time.Now()
		for name, tt := range map[string]struct{ granted, says string }{
			"read only":   {`{"contents":"read","pull_requests":"write"}`, "lacks the permission Contents: Write"},
			"one missing": {`{"contents":"write"}`, "lacks the permission Pull requests: Write"},
			"all granted": {`{"contents":"write","pull_requests":"admin"}`, ""},
			"none listed": {`{}`, ""},
		} {
			t.Run(name, func(t *testing.T) {
				body := `{"token":"ghs_S3CR3T","expires_at":"` + now.Add(time.Hour).Format(time.RFC3339) + `","permissions":` + tt.granted + `}`
				_, _, err := readAppToken([]byte(body), GitHubApp{Permissions: want}, "plant/site", "jwt.S3CR3T", now)
				if tt.says == "" {
					require.NoError(t, err)
					return
				}
				repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
				assert.ErrorContains(t, err, tt.says)
			})
		}
	})
	t.Run("address of another API", func(t *testing.T) {
		a := newAppSite(t).auth()
		a.App.APIBaseURL, a.Field = "ftp://api", "spec.bidirectional.auth"
		_, err := newClient(t, parseURL(t, "https://git.example.com/a/b"), a, Options{}).APIToken(t.Context())
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "spec.bidirectional.auth.githubApp.apiBaseURL")
	})
}

func TestAPIToken(t *testing.T) {
	ask := func(address string, a Auth) (string, error) {
		token, err := newClient(t, parseURL(t, address), a, Options{}).APIToken(t.Context())
		return token.Reveal(), err
	}
	for _, address := range []string{"https://git.example.com/a/b.git", "git@git.example.com:a/b.git"} {
		t.Run(address, func(t *testing.T) {
			token, err := ask(address, Auth{Token: repotest.Token(tripwire + "\n"), Key: repotest.Token("key")})
			require.NoError(t, err)
			assert.Equal(t, tripwire, token)
			_, err = ask(address, Auth{Key: repotest.Token(tripwire), Field: "spec.bidirectional.auth"})
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			require.ErrorContains(t, err, "set spec.bidirectional.auth.token")
			_, err = ask(address, Auth{Token: repotest.Token(" ")})
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			_, err = ask(address, Auth{Token: func() (secret.String, error) { return secret.String{}, errors.New("no file") }})
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		})
	}
}

// F9: the client sends the app's JWT only to the API, and the app's tokens only to the host of the repository.
func TestGitHubAppTokenHost(t *testing.T) {
	g := newAppSite(t)
	var thief atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { thief.Add(1) }))
	defer other.Close()
	g.Server.Inject(gitserver.Redirect(other.URL))
	repotest.RequireReason(t, v1alpha1.ReasonRedirectRefused, g.resolve(g.client(g.auth())))
	assert.Zero(t, thief.Load())

	for repo, want := range map[string]string{
		"https://github.com/plant/site.git":       "https://api.github.com",
		"https://octo.ghe.com/plant/site":         "https://api.octo.ghe.com",
		"https://git.example.com:8443/plant/site": "https://git.example.com:8443/api/v3",
	} {
		t.Run(repo, func(t *testing.T) {
			base, err := newAppTokens(GitHubApp{}, "git.auth.githubApp", parseURL(t, repo), Options{}).apiBase()
			require.NoError(t, err)
			assert.Equal(t, want, base.String())
		})
	}
	_, err := newAppTokens(GitHubApp{APIBaseURL: "http://api.example.com"}, "git.auth.githubApp", parseURL(t, "https://git.example.com/a/b"), Options{}).apiBase()
	repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
	for _, path := range []string{"/a", "/a/b/c", "/", ""} {
		err := newClientError(t, "https://git.example.com"+path, g.auth())
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
	}
}

func newClientError(t *testing.T, address string, a Auth) error {
	t.Helper()
	_, err := newClient(t, parseURL(t, address), a, Options{}).Resolve(t.Context(), "main")
	return err
}

// FuzzGitHubAppAnswer checks that whatever the API answers, an accepted token fits into a header and counts as valid for at most an hour,
// and an error contains neither token.
func FuzzGitHubAppAnswer(f *testing.F) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	good := map[string]any{
		"token": "ghs_S3CR3T", "expires_at": now.Add(time.Hour).Format(time.RFC3339), "permissions": map[string]string{"contents": "read", "metadata": "read"},
		"repositories": []map[string]any{{"id": 1, "name": "site", "full_name": "Plant/Site", "private": true}},
	}
	add := func(key string, value any) {
		c := map[string]any{}
		for k, v := range good {
			c[k] = v
		}
		c[key] = value
		b, err := json.Marshal(c)
		require.NoError(f, err)
		f.Add(b)
	}
	add("message", "x")
	for key, values := range map[string][]any{
		"token": {"", nil, 7, "a\r\nX: y", strings.Repeat("a", 5000)}, "expires_at": {"", "soon", now.Add(-1).Format(time.RFC3339), "9999-12-31T23:59:59Z"},
		"permissions":  {nil, map[string]string{}, map[string]string{"metadata": "read"}, map[string]string{"contents": "none"}, "all"},
		"repositories": {nil, []any{}, []any{map[string]any{"full_name": "else/site"}}, []any{map[string]any{"full_name": "ghs_S3CR3T/jwt.S3CR3T"}}, "site"},
	} {
		for _, v := range values {
			add(key, v)
		}
	}
	f.Add([]byte("<html>"))
	f.Add([]byte(`{"token":`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, expires, err := readAppToken(body, GitHubApp{}, "plant/site", "jwt.S3CR3T", now)
		if err != nil {
			require.Empty(t, got)
			require.NotContains(t, err.Error(), "S3CR3T")
			reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
			require.Contains(t, []v1alpha1.Reason{v1alpha1.ReasonAuthFailed, v1alpha1.ReasonGitUnreachable}, reason)
			return
		}
		require.NotEmpty(t, got)
		require.False(t, strings.ContainsAny(got, " \r\n\t\x00"))
		require.True(t, expires.After(now))
		require.False(t, expires.After(now.Add(tokenLife)))
	})
}
