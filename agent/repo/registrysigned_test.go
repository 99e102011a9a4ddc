package repo_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/ociregistry"
)

// cosignKey returns a key pair as cosign generate-key-pair makes it.
func cosignKey(t *testing.T) (private *ecdsa.PrivateKey, public string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	return private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// F24: only an artifact that one of the keys has signed is delivered.
func TestSignedArtifact(t *testing.T) {
	key, public := cosignKey(t)
	other, otherPublic := cosignKey(t)
	type signer = func(s *ociregistry.Server, digest, earlier string)
	with := func(format string, key *ecdsa.PrivateKey, predicate string) signer {
		return func(s *ociregistry.Server, digest, _ string) { s.Sign(format, key, digest, predicate) }
	}
	both := func(signers ...signer) signer {
		return func(s *ociregistry.Server, digest, earlier string) {
			for _, sign := range signers {
				sign(s, digest, earlier)
			}
		}
	}
	// moved signs the earlier artifact, and serves its signature for this one.
	moved := func(suffix string, format string) signer {
		return func(s *ociregistry.Server, digest, earlier string) {
			s.Sign(format, key, earlier, "")
			s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
				r.URL.Path = strings.Replace(r.URL.Path, "/sha256-"+digest[7:]+suffix, "/sha256-"+earlier[7:]+suffix, 1)
				return false
			}
		}
	}
	// changed serves the signature of a key with a payload that has more than was signed.
	changed := func(s *ociregistry.Server, digest, _ string) {
		s.Sign(ociregistry.CosignPayload, key, digest, "")
		s.Before = func(w http.ResponseWriter, r *http.Request) bool {
			payload := strings.Contains(r.URL.Path, "/blobs/") && !strings.Contains(r.URL.Path, ociregistry.Digest(ociregistry.Files(t, line)))
			if payload {
				_, _ = io.WriteString(w, `{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":"`+digest+`"}},"optional":{}}`)
			}
			return payload
		}
	}
	for name, c := range map[string]struct {
		sign signer
		mode v1alpha1.VerifyMode
		keys string
		says string // "" if it is delivered
	}{
		"bundle":                     {with(ociregistry.CosignBundle, key, ""), "", public, ""},
		"payload":                    {with(ociregistry.CosignPayload, key, ""), "", public, ""},
		"another key":                {with(ociregistry.CosignBundle, other, ""), "", public, "is not signed by one of the keys"},
		"one of two keys":            {with(ociregistry.CosignBundle, other, ""), "", public + otherPublic, ""},
		"changed payload":            {changed, "", public, "is not signed by one of the keys"},
		"both formats, one by a key": {both(with(ociregistry.CosignBundle, other, ""), with(ociregistry.CosignPayload, key, "")), "", public, ""},
		"no signature":               {both(), "", public, "has no signature of cosign; it is not delivered: sign it with cosign sign --key"},
		"statement about it":         {with(ociregistry.CosignBundle, key, "https://spdx.dev/Document"), "", public, "has no signature of cosign"},
		"bundle of another":          {moved("", ociregistry.CosignBundle), "", public, "has no signature of cosign"},
		"payload of another":         {moved(".sig", ociregistry.CosignPayload), "", public, "has no signature of cosign"},
		"tags":                       {with(ociregistry.CosignBundle, key, ""), v1alpha1.VerifyTag, public, "use Head"},
		"no key of cosign":           {with(ociregistry.CosignBundle, key, ""), "", repotest.NewSSHKey(t, "ed25519", "").Public, "has no public key of cosign"},
		"half a key":                 {with(ociregistry.CosignBundle, key, ""), "", public[:100], "a key has no end"},
		"private key":                {with(ociregistry.CosignBundle, key, ""), "", strings.ReplaceAll(public, "PUBLIC", "PRIVATE"), "line 1 is not the start of a public key"},
	} {
		t.Run(name, func(t *testing.T) {
			server := ociregistry.Start(t)
			earlier := server.Push("1.0", ociregistry.Files(t, map[string]string{"a": "earlier"}), nil)
			c.sign(server, server.Push("main", ociregistry.Files(t, line), nil), earlier)
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
			commit, _ := a.fetch("main")
			keys := c.keys
			v := repo.NewVerifier(v1alpha1.GitVerify{Mode: c.mode}, "the keys", func() ([]byte, error) { return []byte(keys), nil })
			err := a.store.Verify(t.Context(), v, a.remote, commit, "main")
			if c.says != "" {
				assert.True(t, failure.Is(err, v1alpha1.ReasonSignatureInvalid), "%v", err)
				assert.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			server.Requests()
			require.NoError(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"))
			assert.Empty(t, server.Requests(), "it was verified before")
			_, keys = cosignKey(t)
			assert.ErrorContains(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"), "is not signed by one of the keys", "keys that are removed count at once")
		})
	}
}

// F32: a commit of git cannot pass for an artifact by its text, when the store was one of git before.
func TestForgedArtifactCommit(t *testing.T) {
	key, public := cosignKey(t)
	server := ociregistry.Start(t)
	server.Sign(ociregistry.CosignBundle, key, server.Push("main", ociregistry.Files(t, line), nil), "")
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	genuine, _ := a.fetch("main")
	clone := gitserver.NewRepo(t, filepath.Join(t.TempDir(), "line.git"))
	clone.Commit("x", gitserver.Write("run.sh", "evil"))
	tree := clone.Git("rev-parse", "main^{tree}")
	text := clone.Git("--git-dir", a.store.Dir(), "cat-file", "commit", genuine.String()) + "\n"
	_, rest, _ := strings.Cut(text, "\n")
	file := filepath.Join(t.TempDir(), "commit")
	require.NoError(t, os.WriteFile(file, []byte("tree "+tree+"\n"+rest), 0o600))
	forged, err := plan.ParseID(clone.Git("hash-object", "-t", "commit", "-w", file))
	require.NoError(t, err)
	clone.Git("update-ref", "refs/heads/main", forged.String())
	u, err := repo.ParseURL(clone.Dir)
	require.NoError(t, err)
	git, err := repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, git.Close()) }()
	_, err = a.store.Fetch(t.Context(), git, forged, "refs/heads/main")
	require.NoError(t, err)

	fresh := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{}) // has resolved nothing
	v := repo.NewVerifier(v1alpha1.GitVerify{}, "the keys", func() ([]byte, error) { return []byte(public), nil })
	err = a.store.Verify(t.Context(), v, fresh.remote, forged, "main")
	assert.ErrorContains(t, err, "is not that of the artifact")
	assert.NoError(t, a.store.Verify(t.Context(), v, fresh.remote, genuine, "main"))
}

// A signature that arrives after the artifact is found.
func TestArtifactIsSignedLater(t *testing.T) {
	key, public := cosignKey(t)
	server := ociregistry.Start(t)
	digest := server.Push("main", ociregistry.Files(t, line), nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	commit, _ := a.fetch("main")
	v := repo.NewVerifier(v1alpha1.GitVerify{}, "the keys", func() ([]byte, error) { return []byte(public), nil })
	require.ErrorContains(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"), "has no signature of cosign")
	server.Sign(ociregistry.CosignBundle, key, digest, "")
	assert.NoError(t, a.store.Verify(t.Context(), v, a.remote, commit, "main"))
}

// The message says whether all tags were compared.
func TestRegistrySearch(t *testing.T) {
	for tags, says := range map[int]string{1: "no tag of ", 1001: "none of the 1000 tags of "} {
		t.Run(fmt.Sprint(tags), func(t *testing.T) {
			server := ociregistry.Start(t)
			digest := server.Push("", ociregistry.Files(t, line), nil)
			for i := range tags { // setup: the tags
				server.Tag(fmt.Sprintf("1.%04d", i), digest)
			}
			a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
			_, err := a.store.Fetch(t.Context(), a.remote, plan.ID{1}, "")
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), err)
			assert.ErrorContains(t, err, says)
		})
	}
}

// A registry that limits the rate of requests does not make the search say that no tag has the commit.
func TestRegistrySearchThrottled(t *testing.T) {
	server := ociregistry.Start(t)
	server.Push("1", ociregistry.Files(t, line), nil)
	server.Push("2", []byte("no archive"), nil)
	server.Before = func(w http.ResponseWriter, r *http.Request) bool {
		throttled := strings.HasSuffix(r.URL.Path, "/manifests/1")
		if throttled {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		return throttled
	}
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	_, err := a.store.Fetch(t.Context(), a.remote, plan.ID{1}, "")
	assert.True(t, failure.Is(err, v1alpha1.ReasonGitThrottled), err)
}

// Close leaves no connection open.
func TestRegistryClose(t *testing.T) {
	server := ociregistry.New(t)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; state == http.StateClosed {
			delete(open, c)
		}
	}
	server.Start()
	server.Push("main", ociregistry.Files(t, line), nil)
	a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	_, err := a.resolve("main")
	require.NoError(t, err)
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(open) }
	assert.Positive(t, count())
	require.NoError(t, a.remote.Close())
	assert.Eventually(t, func() bool { return count() == 0 }, 5*time.Second, 10*time.Millisecond)
}

// A follower knows the commit from the lead, and needs one download.
func TestRegistryFollower(t *testing.T) {
	server := ociregistry.Start(t)
	server.Push("main", ociregistry.Files(t, line), nil)
	lead := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
	at, err := lead.resolve("main")
	require.NoError(t, err)
	layers := func() (n int) { // downloads of layers since the last call
		for _, r := range server.Requests() {
			if strings.Contains(r, "/blobs/") {
				n++
			}
		}
		return n
	}
	layers()
	t.Run("the tag has the commit", func(t *testing.T) {
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
		require.NoError(t, err)
		assert.Equal(t, 1, layers())
		assert.True(t, a.store.Has(at.Commit))
		again, err := a.resolve("main")
		require.NoError(t, err)
		assert.Equal(t, at, again)
		assert.Zero(t, layers())
	})
	t.Run("the tag has moved", func(t *testing.T) {
		server.Push("old", ociregistry.Files(t, line), nil)
		server.Push("main", ociregistry.Files(t, map[string]string{"a": "b"}), nil)
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, at.Ref)
		require.NoError(t, err)
		assert.True(t, a.store.Has(at.Commit))
		assert.Equal(t, 3, layers(), "of main, of old to find its commit, and to import it")
	})
	t.Run("a refused artifact", func(t *testing.T) {
		server.Push("main", []byte("no archive"), nil)
		a := newArtifacts(t, server, repo.Auth{}, repo.RemoteOptions{})
		for range 2 {
			_, err := a.store.Fetch(t.Context(), a.remote, at.Commit, "refs/tags/main")
			assert.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), err)
		}
		assert.Equal(t, 2, layers())
	})
}

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
	twice := func(host string) string { // with a wrong credential at a name that comes later in the alphabet
		return strings.Replace(config(host), "other.example.com", "https://"+host+"/v2/", 1)
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
		"basic, Docker with twins":   {basic, func(s *ociregistry.Server) repo.Auth { return token(twice(host(s))) }, ""},
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
