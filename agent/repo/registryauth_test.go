package repo_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/ociregistry"
)

const password = "S3CR3T-of-the-registry"

// F34: a credential goes only to hosts that the operator names.
func TestRegistryCredentials(t *testing.T) {
	const user = "puller"
	token := func(value string) repo.Auth {
		return repo.Auth{Username: user, Token: func() (secret.String, error) { return secret.New(value), nil }}
	}
	config := func(host string) string {
		return fmt.Sprintf(`{"auths":{"other.example.com":{"auth":"eDp5"},%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	}
	basic := func(s *ociregistry.Server) {
		s.Before = func(w http.ResponseWriter, r *http.Request) bool {
			if u, p, _ := r.BasicAuth(); u == user && p == password {
				return false
			}
			w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	bearer := func(realm func(*ociregistry.Server) string) func(*ociregistry.Server) {
		return func(s *ociregistry.Server) {
			s.Before = func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.URL.Path == "/token":
					if u, p, _ := r.BasicAuth(); u != user || p != password || r.URL.Query().Get("scope") != "repository:plants/line:pull" || r.URL.Query().Get("service") != "plants" {
						w.WriteHeader(http.StatusUnauthorized)
						return true
					}
					_, _ = io.WriteString(w, `{"token":"a.b.c"}`)
					return true
				case r.Header.Get("Authorization") == "Bearer a.b.c":
					return false
				}
				w.Header().Set("Www-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="plants",scope="repository:plants/line:pull,push"`, realm(s)))
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
		}
	}
	own := func(s *ociregistry.Server) string { return s.URL + "/token" }
	host := func(s *ociregistry.Server) string { return strings.TrimPrefix(s.URL, "http://") }
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.Header.Get("Authorization"), "a credential went to another host")
	}))
	defer other.Close()
	elsewhere := func(*ociregistry.Server) string { return other.URL + "/token" }
	for name, c := range map[string]struct {
		server func(*ociregistry.Server)
		auth   func(*ociregistry.Server) repo.Auth
		says   string // "" if it works
	}{
		"basic":                      {basic, func(*ociregistry.Server) repo.Auth { return token(password) }, ""},
		"basic, wrong":               {basic, func(*ociregistry.Server) repo.Auth { return token("wrong") }, "refused the credentials (HTTP 401)"},
		"basic, none":                {basic, func(*ociregistry.Server) repo.Auth { return repo.Auth{} }, ".token to credentials for 127.0.0.1"},
		"basic, Docker":              {basic, func(s *ociregistry.Server) repo.Auth { return token(config(host(s))) }, ""},
		"basic, Docker with https":   {basic, func(s *ociregistry.Server) repo.Auth { return token(config("https://" + host(s) + "/v2/")) }, ""},
		"basic, Docker with a path":  {basic, func(s *ociregistry.Server) repo.Auth { return token(config(host(s) + "/plants")) }, ""},
		"basic, Docker without host": {basic, func(*ociregistry.Server) repo.Auth { return token(config("registry.example.com")) }, ".token to credentials for 127.0.0.1"},
		"basic, another path":        {basic, func(s *ociregistry.Server) repo.Auth { return token(config(host(s) + "/plan")) }, ".token to credentials for 127.0.0.1"},
		"basic, broken Docker":       {basic, func(*ociregistry.Server) repo.Auth { return token(`{"auths":`) }, "not a valid Docker configuration"},
		"token":                      {bearer(own), func(*ociregistry.Server) repo.Auth { return token(password) }, ""},
		"token, wrong":               {bearer(own), func(*ociregistry.Server) repo.Auth { return token("wrong") }, "refused the credentials (HTTP 401)"},
		"token, Docker":              {bearer(own), func(s *ociregistry.Server) repo.Auth { return token(config(host(s))) }, ""},
		"token of another host":      {bearer(elsewhere), func(*ociregistry.Server) repo.Auth { return token(password) }, "which git.auth.token has no credential for"},
		"token elsewhere, no TLS": {bearer(elsewhere), func(*ociregistry.Server) repo.Auth { return token(config(strings.TrimPrefix(other.URL, "http://"))) },
			"without TLS, which gets no credential"},
		"token of a foreign scheme": {bearer(func(*ociregistry.Server) string { return "file:///token" }), func(*ociregistry.Server) repo.Auth { return token(password) }, "not an https:// address"},
	} {
		t.Run(name, func(t *testing.T) {
			server := ociregistry.Start(t)
			server.Push("main", ociregistry.Files(t, line), nil)
			c.server(server)
			a := newArtifacts(t, server, c.auth(server), repo.RemoteOptions{})
			at, err := a.resolve("main")
			if c.says == "" {
				require.NoError(t, err)
				_, err = a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
				assert.NoError(t, err)
				return
			}
			assert.True(t, failure.Is(err, v1alpha1.ReasonAuthFailed), err)
			assert.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), password)
		})
	}
}

// F34: a layer comes from storage elsewhere, without the credential of the registry.
func TestRegistryStorage(t *testing.T) {
	layer := ociregistry.Files(t, line)
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.Header.Get("Authorization"))
		assert.Equal(t, "signed=1", r.URL.RawQuery)
		_, _ = w.Write(layer)
	}))
	defer storage.Close()
	server := ociregistry.Start(t)
	server.Push("main", layer, nil)
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		if _, p, _ := r.BasicAuth(); p != password {
			w.Header().Set("Www-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, storage.URL+"/layer?signed=1", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	a := newArtifacts(t, server, repo.Auth{Token: func() (secret.String, error) { return secret.New(password), nil }}, repo.RemoteOptions{})
	commit, _ := a.fetch("main")
	assert.Len(t, a.files(commit), 4)
}

func TestRegistryTLS(t *testing.T) {
	server := ociregistry.New(t)
	server.StartTLS()
	server.Push("main", ociregistry.Files(t, line), nil)
	_, err := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{}).resolve("main")
	assert.ErrorContains(t, err, "git.caSecretRef")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_, err = newArtifacts(t, server, repo.Auth{CA: func() ([]byte, error) { return ca, nil }}, repo.RemoteOptions{}).resolve("main")
	assert.NoError(t, err)
}
