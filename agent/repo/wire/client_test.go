package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// tripwire is a secret. repotest.RequireReason fails if an error contains S3CR3T.
const tripwire = "S3CR3T-42"

func TestServerFaultReasons(t *testing.T) {
	tests := map[string]struct {
		fault gitserver.Fault
		want  v1alpha1.Reason
	}{
		"401 is AuthFailed":                         {gitserver.Status(401), v1alpha1.ReasonAuthFailed},
		"403 is AuthFailed":                         {gitserver.Status(403), v1alpha1.ReasonAuthFailed},
		"404 is RefNotFound":                        {gitserver.Status(404), v1alpha1.ReasonRefNotFound},
		"429 is GitThrottled":                       {gitserver.Status(429), v1alpha1.ReasonGitThrottled},
		"429 with Retry-After is GitThrottled":      {gitserver.Throttle(90 * time.Second), v1alpha1.ReasonGitThrottled},
		"500 is GitUnreachable":                     {gitserver.Status(500), v1alpha1.ReasonGitUnreachable},
		"503 is GitUnreachable":                     {gitserver.Status(503), v1alpha1.ReasonGitUnreachable},
		"504 is GitTimeout":                         {gitserver.Status(504), v1alpha1.ReasonGitTimeout},
		"an empty answer is GitUnreachable":         {gitserver.Truncate(0), v1alpha1.ReasonGitUnreachable},
		"a truncated answer is GitUnreachable":      {gitserver.Truncate(300), v1alpha1.ReasonGitUnreachable},
		"an answer that stalls is GitTimeout":       {gitserver.Stall(100), v1alpha1.ReasonGitTimeout},
		"an answer that never starts is GitTimeout": {gitserver.Stall(0), v1alpha1.ReasonGitTimeout},
		"an answer that is not git is GitUnreachable": {
			gitserver.Rewrite(func([]byte) []byte { return []byte("0008oops" + tripwire) }), v1alpha1.ReasonGitUnreachable,
		},
	}
	g := newSite(t)
	g.Push("first", repotest.Views(200))
	auth := Auth{Token: repotest.Token(tripwire)}
	for name, tt := range tests {
		for _, service := range []gitserver.Service{gitserver.Advertisement, gitserver.UploadPack} {
			t.Run(name+" during "+string(service), func(t *testing.T) {
				defer g.Server.Heal()
				o := Options{}
				if tt.want == v1alpha1.ReasonGitTimeout {
					o.StallWindow = 150 * time.Millisecond
				}
				r, s := newClient(t, g.url(), auth, o), openStore(t, store.Options{})
				g.Server.Inject(tt.fault.On(service))
				ask := r
				if service == gitserver.UploadPack {
					ask = newClient(t, g.url(), auth, Options{}) // without a time limit
				}
				res, err := ask.Resolve(t.Context(), "main")
				if service == gitserver.UploadPack {
					require.NoError(t, err)
					_, err = s.Fetch(t.Context(), r, res.Commit, res.Ref)
				}
				repotest.RequireReason(t, tt.want, err)
				if strings.Contains(name, "Retry-After") {
					after, _ := backoff.Asked(fmt.Errorf("wrapped: %w", err))
					assert.Equal(t, 90*time.Second, after)
				}
				assert.Empty(t, repotest.PackFiles(t, s, ""), "the store keeps no pack")

				g.Server.Heal()
				pull(t, s, newClient(t, g.url(), auth, Options{}), "main") // the client recovers
			})
		}
	}
}

func TestServerErrorIsQuoted(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(1))
	g.Server.Inject(gitserver.Rewrite(func([]byte) []byte {
		return []byte("001e# service=git-upload-pack\n0000" + "0015ERR we are moving")
	}).On(gitserver.Advertisement))
	_, err := g.client().Resolve(t.Context(), "main")
	repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	assert.ErrorContains(t, err, "sends no refs and answers: we are moving")
}

func TestDeadlinesAndCancellation(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(10))
	g.Server.Inject(gitserver.Stall(0))
	t.Run("the client's time limit is GitTimeout", func(t *testing.T) {
		r := newClient(t, g.url(), Auth{}, Options{Advertise: 50 * time.Millisecond})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
	})
	t.Run("the caller's deadline is GitTimeout", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := g.client().Resolve(ctx, "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
	})
	t.Run("the caller's cancellation is not a failure", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := g.client().Resolve(ctx, "main")
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, v1alpha1.Reason("none"), failure.Reason(err, "none"))
	})
}

func TestUnreachableServers(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, address := range map[string]string{
		"connection refused is GitUnreachable": gone.URL + "/x.git",
		"an unknown name is GitUnreachable":    "https://name.invalid/x.git",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newClient(t, parseURL(t, address), Auth{Token: repotest.Token(tripwire)}, Options{}).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		})
	}
}

func TestNonGitServers(t *testing.T) {
	for name, tt := range map[string]struct{ contentType, body, says string }{
		"a login page is UnsupportedRepository with advice": {"text/html; charset=utf-8", "<html>", `"text/html"`},
		"dumb http is UnsupportedRepository":                {"text/plain", strings.Repeat("1", 40) + "\trefs/heads/main\n", "smart HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.contentType)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer srv.Close()
			_, err := newClient(t, parseURL(t, srv.URL+"/x.git"), Auth{}, Options{}).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
			assert.ErrorContains(t, err, tt.says)
		})
	}
	for name, answer := range map[string]string{
		"not HTTP":      "220 mail.example.com ESMTP\r\n",
		"not packets":   "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\nContent-Length: 9\r\n\r\nnot a pkt",
		"other packets": "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\nContent-Length: 16\r\n\r\n0008oops0008oops",
	} {
		t.Run(name+" is GitUnreachable", func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = http.ReadRequest(bufio.NewReader(c))
					_, _ = c.Write([]byte(answer))
					_ = c.Close()
				}
			}()
			_, err = newClient(t, parseURL(t, "http://"+l.Addr().String()+"/x.git"), Auth{}, Options{}).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.ErrorContains(t, err, "does not answer as a git server")
		})
	}
	t.Run("object format sha256 is UnsupportedRepository", func(t *testing.T) {
		g := newSiteWith(t, gitserver.Options{}, "--object-format=sha256")
		g.Commit("first", repotest.Views(1))
		_, err := newClient(t, g.url(), Auth{}, Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
		assert.ErrorContains(t, err, "sha256")
	})
}

func TestCredentials(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{Auth: gitserver.Basic("git", tripwire)})
	g.Push("first", repotest.Views(3))
	t.Run("a token is sent as basic authentication, and read for each request", func(t *testing.T) {
		var mu sync.Mutex
		current := "S3CR3T-old"
		r := newClient(t, g.url(), Auth{Token: func() (secret.String, error) {
			mu.Lock()
			defer mu.Unlock()
			return secret.New(current + "\n"), nil // with a newline, as in a file
		}}, Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		mu.Lock()
		current = tripwire
		mu.Unlock()
		pull(t, openStore(t, store.Options{}), r, "main")
	})
	t.Run("credentials in the address are used, and not printed", func(t *testing.T) {
		u := parseURL(t, strings.Replace(g.Server.URL("site.git"), "://", "://git:"+tripwire+"@", 1))
		pull(t, openStore(t, store.Options{}), newClient(t, u, Auth{}, Options{}), "main")
		assert.Equal(t, g.Server.URL("site.git"), u.String())
	})
	t.Run("missing credentials", func(t *testing.T) {
		_, err := g.client().Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "git.auth")
	})
	t.Run("an ssh key with an https address", func(t *testing.T) {
		_, err := newClient(t, g.url(), Auth{Key: repotest.Token(tripwire)}, Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.ErrorContains(t, err, "ssh:// address")
	})
	t.Run("a token that cannot be read or is empty is AuthFailed", func(t *testing.T) {
		for _, f := range []func() (secret.String, error){
			repotest.Token(" \n"), func() (secret.String, error) { return secret.String{}, errors.New("no such file") },
		} {
			_, err := newClient(t, g.url(), Auth{Token: f}, Options{}).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		}
	})
	t.Run("an echoed token is redacted", func(t *testing.T) {
		defer g.Server.Heal()
		basic := base64.StdEncoding.EncodeToString([]byte("git:" + tripwire))
		echo := gitserver.Rewrite(func([]byte) []byte {
			text := "ERR no such user " + tripwire + " of Basic " + basic
			return fmt.Appendf(nil, "%04x%s", len(text)+4, text)
		})
		remove := g.Server.Inject(echo)
		r := newClient(t, g.url(), Auth{Token: repotest.Token(tripwire)}, Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		remove()
		res, err := r.Resolve(t.Context(), "main")
		require.NoError(t, err)
		g.Server.Inject(echo.On(gitserver.UploadPack))
		_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.ErrorContains(t, err, "no such user REDACTED of Basic REDACTED")
		assert.NotContains(t, err.Error(), basic)
	})
	for name, c := range map[string]struct {
		user string
		auth Auth
		says string
	}{
		"user name of the URL":        {tripwire, Auth{}, "no such user REDACTED"},
		"short user name of the URL":  {"git", Auth{}, "no such user git"},
		"user name beside auth.token": {"deployer", Auth{Username: "deployer", Token: repotest.Token("x-oauth-basic")}, "no such user deployer"},
	} {
		t.Run("a user name is redacted if it may be a token: "+name, func(t *testing.T) {
			g := newSiteWith(t, gitserver.Options{Auth: gitserver.Basic(c.user, "x-oauth-basic")})
			text := "ERR no such user " + c.user
			g.Server.Inject(gitserver.Rewrite(func([]byte) []byte { return fmt.Appendf(nil, "%04x%s", len(text)+4, text) }))
			u := g.url()
			if c.auth.Token == nil {
				u = parseURL(t, strings.Replace(g.Server.URL("site.git"), "://", "://"+c.user+":x-oauth-basic@", 1))
			}
			_, err := newClient(t, u, c.auth, Options{}).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.ErrorContains(t, err, c.says)
		})
	}
	t.Run("the log has no credentials", func(t *testing.T) {
		var log bytes.Buffer
		l := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		u := parseURL(t, strings.Replace(g.Server.URL("site.git"), "://", "://git:"+tripwire+"@", 1))
		s := openStore(t, store.Options{Log: l})
		pull(t, s, newClient(t, u, Auth{Token: repotest.Token(tripwire)}, Options{Log: l}), "main")
		l.Info("x", "url", u, "auth", fmt.Sprintf("%+v", u))
		assert.NotEmpty(t, log.String())
		assert.NotContains(t, log.String(), "S3CR3T")
	})
}

// The client truncates and escapes a text of the server. It must redact secrets before, because it would not find a truncated or escaped one.
func TestEchoedSecretsAreRemovedFirst(t *testing.T) {
	for name, token := range map[string]string{"truncated secret": strings.Repeat("s3cr3t-", 20), "escaped secret": `s3cr3t-"\-end`} {
		t.Run(name, func(t *testing.T) {
			g := newSiteWith(t, gitserver.Options{Auth: gitserver.Basic("git", token), Pushes: true})
			commit := g.Push("first", gitserver.Write("a", "1"))
			r := newClient(t, g.url(), Auth{Token: repotest.Token(token)}, Options{})
			res, err := r.Resolve(t.Context(), "main")
			require.NoError(t, err)
			echo := strings.Repeat("x", 150) + token
			g.Server.Inject(gitserver.Rewrite(func([]byte) []byte { return fmt.Appendf(nil, "%04xERR %s", len(echo)+8, echo) }).On(gitserver.UploadPack))
			_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
			repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
			assert.ErrorContains(t, err, "xREDACTED")
			assert.NotContains(t, err.Error(), "s3cr3t")
			g.Server.Heal()

			g.Server.Inject(gitserver.Rewrite(func([]byte) []byte { return fmt.Appendf(nil, "%04x\x03%s", len(echo)+5, echo) }).On(gitserver.ReceivePack))
			err = r.Push(t.Context(), "refs/heads/pushed", plan.ID{}, commit, nil)
			require.Error(t, err)
			assert.ErrorContains(t, err, "xREDACTED")
			assert.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

// The client also redacts secrets in headers, in the capabilities, and in the first bytes of what should be a pack.
func TestEchoedSecretsOutsideRefusals(t *testing.T) {
	const token = `S3cr3t-"\;-end`
	contentType := func(value string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", value) }
	}
	for name, c := range map[string]struct {
		service gitserver.Service
		answer  func(w http.ResponseWriter, r *http.Request)
		says    string
	}{
		"type of the refs": {gitserver.Advertisement, contentType("text/x-" + token), `answers with "text/x-REDACTED"`},
		"type of the pack": {gitserver.UploadPack, contentType("text/x-" + token), `with "text/x-REDACTED"`},
		"another host": {gitserver.Advertisement, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://"+strings.ReplaceAll(token, `\`, "")+".example.com/")
			w.WriteHeader(http.StatusFound)
		}, "redirects to another host"},
		"object format": {gitserver.Advertisement, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			line := strings.Repeat("1", 40) + " refs/heads/main\x00object-format=" + token + "\n"
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s0000", len(line)+4, line)
		}, `object format "REDACTED"`},
		"no pack": {gitserver.UploadPack, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			fmt.Fprintf(w, "00000008NAK\n%04x\x01%s0000", len(token)+5, token)
		}, "is not a pack"},
	} {
		t.Run(name, func(t *testing.T) {
			secretText := token
			if name == "another host" { // a host has no backslash
				secretText = strings.ReplaceAll(token, `\`, "")
			}
			g := newSite(t)
			g.Push("first", repotest.Views(3))
			target, err := url.Parse(g.Server.URL(""))
			require.NoError(t, err)
			forward := httputil.NewSingleHostReverseProxy(target)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if (r.Method == http.MethodGet) == (c.service == gitserver.Advertisement) {
					c.answer(w, r)
					return
				}
				forward.ServeHTTP(w, r)
			}))
			defer server.Close()
			r := newClient(t, parseURL(t, server.URL+"/site.git"), Auth{Token: repotest.Token(secretText)}, Options{})
			res, err := r.Resolve(t.Context(), "main")
			if c.service == gitserver.UploadPack {
				require.NoError(t, err)
				_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
			}
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, strings.ToLower(err.Error()), "s3cr3t")
			assert.NotContains(t, err.Error(), "-end")
		})
	}
}

// F9: credentials never reach another host.
func TestRedirectDropsCredentials(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.URL.String()+" "+r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	g := newSite(t)
	g.Push("first", repotest.Views(3))
	thiefURL, err := url.Parse(thief.URL)
	require.NoError(t, err)
	for name, to := range map[string]string{
		"another port":                thief.URL,
		"another scheme":              "https://" + strings.TrimPrefix(g.Server.URL(""), "http://"),
		"another name, same address":  "http://localhost:" + thiefURL.Port(),
		"credentials in the location": "http://x:" + tripwire + "@" + thiefURL.Host,
	} {
		for _, service := range []gitserver.Service{gitserver.Advertisement, gitserver.UploadPack} {
			t.Run(name+" during "+string(service), func(t *testing.T) {
				g.Server.Heal()
				g.Server.Inject(gitserver.Redirect(to).On(service))
				r := newClient(t, g.url(), Auth{Token: repotest.Token(tripwire)}, Options{})
				res, err := r.Resolve(t.Context(), "main")
				if service == gitserver.UploadPack {
					require.NoError(t, err)
					_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
				}
				repotest.RequireReason(t, v1alpha1.ReasonRedirectRefused, err)
				assert.ErrorContains(t, err, "redirects to another host")
			})
		}
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Empty(t, seen, "no request reaches the other host")
}

// renamed returns another address of a repository, from which its server redirects as forges do after a rename: to an origin, or if that is
// empty, to a path.
func renamed(t *testing.T, server *gitserver.Server, origin string) URL {
	t.Helper()
	back, err := url.Parse(server.URL(""))
	require.NoError(t, err)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/old.git/info/refs") {
			http.Redirect(w, r, origin+strings.Replace(r.URL.String(), "/old.git", "/site.git", 1), http.StatusMovedPermanently)
			return
		}
		repotest.ReverseProxy(back).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return parseURL(t, front.URL+"/old.git")
}

func TestRedirectOnSameHost(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{Auth: gitserver.Basic("git", tripwire)})
	first := g.Push("first", repotest.Views(3))
	for name, c := range map[string]struct{ address, origin string }{
		"path":         {"http://git.example/old.git", ""},
		"default port": {"http://git.example/old.git", "http://git.example:80"},
		"letter case":  {"http://git.example:8080/old.git", "http://Git.Example:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			front := renamed(t, g.Server, c.origin)
			repotest.ProxyEnvironment(t, map[string]string{"HTTP_PROXY": newProxy(t, front.String()).URL})
			s := openStore(t, store.Options{})
			pull(t, s, newClient(t, parseURL(t, c.address), Auth{Token: repotest.Token(tripwire)}, Options{}), "main")
			repotest.RequireSame(t, g, s, first)
		})
	}
}

func TestEndlessRedirects(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/x"+r.URL.String(), http.StatusFound)
	}))
	defer srv.Close()
	_, err := newClient(t, parseURL(t, srv.URL+"/a.git"), Auth{Token: repotest.Token(tripwire)}, Options{}).Resolve(t.Context(), "main")
	repotest.RequireReason(t, v1alpha1.ReasonRedirectRefused, err)
	assert.ErrorContains(t, err, "again and again")
}

func TestTLS(t *testing.T) {
	g := newSiteWith(t, gitserver.Options{TLS: true})
	g.Push("first", repotest.Views(3))
	t.Run("an unknown authority is GitUnreachable and names the field", func(t *testing.T) {
		_, err := g.client().Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.ErrorContains(t, err, "git.caSecretRef")
	})
	t.Run("a CA bundle is trusted, and read again when it changes", func(t *testing.T) {
		ca := []byte("no certificate")
		r := newClient(t, g.url(), Auth{CA: func() ([]byte, error) { return ca, nil }}, Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		ca = g.Server.CA()
		pull(t, openStore(t, store.Options{}), r, "main")
	})
	t.Run("an expired certificate is GitUnreachable", func(t *testing.T) {
		old := newSiteWith(t, gitserver.Options{TLS: true, NotAfter: time.Now().Add(-time.Hour)})
		old.Push("first", repotest.Views(3))
		r := newClient(t, old.url(), Auth{CA: func() ([]byte, error) { return old.Server.CA(), nil }}, Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.ErrorContains(t, err, "certificate")
	})
	t.Run("https to an http server", func(t *testing.T) {
		plain := newSite(t)
		_, err := newClient(t, parseURL(t, strings.Replace(plain.Server.URL("site.git"), "http:", "https:", 1)), Auth{}, Options{}).
			Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.ErrorContains(t, err, "mixed up")
	})
}
