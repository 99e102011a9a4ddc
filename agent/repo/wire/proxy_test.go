package wire

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// proxy is an HTTP proxy that forwards every request to one server, whatever host is requested.
type proxy struct {
	*httptest.Server
	target string // host:port

	mu     sync.Mutex
	want   string // required credentials; "" for none
	status int    // answered instead of forwarding; 0 for none
	asked  []string
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	u, err := url.Parse(target)
	require.NoError(t, err)
	p := &proxy{target: u.Host}
	forward := repotest.ReverseProxy(&url.URL{Scheme: "http", Host: u.Host})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.Host)
		want, status := p.want, p.status
		p.mu.Unlock()
		got := r.Header.Get("Proxy-Authorization")
		switch {
		case want != "" && got != "Basic "+base64.StdEncoding.EncodeToString([]byte(want)):
			http.Error(w, "no "+got, http.StatusProxyAuthRequired)
		case status != 0:
			http.Error(w, "no "+got, status)
		case r.Method == http.MethodConnect:
			p.tunnel(w)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) tunnel(w http.ResponseWriter) {
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		http.Error(w, "", http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	from, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		_, _ = io.Copy(to, bufio.NewReader(buf))
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// hosts returns the method and the host of each request.
func (p *proxy) hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

func (p *proxy) url(login string) string { return strings.Replace(p.URL, "://", "://"+login, 1) }

func TestEnvironmentProxies(t *testing.T) {
	plain := newSite(t)
	plain.Push("first", repotest.Views(3))
	safe := newSiteWith(t, gitserver.Options{TLS: true})
	safe.Push("first", repotest.Views(3))
	ca := func() ([]byte, error) { return safe.Server.CA(), nil }
	for name, tt := range map[string]struct {
		g       *site
		address string // not a loopback address, because clients use no proxy for those
		want    string
	}{
		"http":                   {plain, "http://git.example:8080/site.git", "GET git.example:8080"},
		"https through a tunnel": {safe, "https://localhost.:8443/site.git", "CONNECT localhost.:8443"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, tt.g.Server.URL(""))
			p.want = "me:" + tripwire
			both := func(address string) map[string]string {
				return map[string]string{"HTTP_PROXY": address, "HTTPS_PROXY": address}
			}
			fresh := func() *testClient {
				return newClient(t, parseURL(t, tt.address), Auth{CA: ca, Token: repotest.Token("S3CR3T-token")}, Options{})
			}
			resolve := func() error {
				_, err := fresh().Resolve(t.Context(), "main")
				return err
			}
			repotest.ProxyEnvironment(t, both(p.url("me:"+tripwire+"@")))
			pull(t, openStore(t, store.Options{}), fresh(), "main")
			assert.Contains(t, p.hosts(), tt.want)

			t.Run("wrong credentials are AuthFailed, and the error names the proxy", func(t *testing.T) {
				repotest.ProxyEnvironment(t, both(p.url("me:S3CR3T-old@")))
				err := resolve()
				repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
				assert.ErrorContains(t, err, p.Listener.Addr().String())
			})
			t.Run("the error names a proxy that refuses or fails", func(t *testing.T) {
				repotest.ProxyEnvironment(t, both(p.url("me:"+tripwire+"@")))
				for _, status := range []int{403, 502} {
					t.Run(strconv.Itoa(status), func(t *testing.T) {
						p.mu.Lock()
						p.status = status
						p.mu.Unlock()
						err := resolve()
						require.Error(t, err)
						want := v1alpha1.ReasonGitUnreachable
						if name == "http" && status == 403 {
							want = v1alpha1.ReasonAuthFailed
						}
						repotest.RequireReason(t, want, err)
						if name != "http" { // without a tunnel, the git host itself could have sent the answer
							assert.ErrorContains(t, err, p.Listener.Addr().String())
						}
					})
				}
			})
			t.Run("a missing proxy is GitUnreachable, and the error names it", func(t *testing.T) {
				p.Close()
				err := resolve()
				repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
				assert.ErrorContains(t, err, "through the proxy "+p.Listener.Addr().String())
			})
		})
	}
	t.Run("NO_PROXY and loopback addresses use no proxy", func(t *testing.T) {
		p := newProxy(t, plain.Server.URL(""))
		repotest.ProxyEnvironment(t, map[string]string{"HTTP_PROXY": p.URL, "NO_PROXY": ".example"})
		pull(t, openStore(t, store.Options{}), plain.client(), "main")
		_, err := newClient(t, parseURL(t, "http://git.example:8080/site.git"), Auth{}, Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
		assert.Empty(t, p.hosts())
	})
	t.Run("an invalid address is not printed", func(t *testing.T) {
		repotest.ProxyEnvironment(t, map[string]string{"HTTP_PROXY": "http://me:" + tripwire + "@[::1/"})
		_, err := newClient(t, parseURL(t, "http://git.example:1/site.git"), Auth{}, Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	})
}

// go-git decodes the path of an advertisement for the requests that follow.
func TestEscapedPath(t *testing.T) {
	g := newSite(t)
	first := g.Push("first", repotest.Views(3))
	back, err := url.Parse(g.Server.URL(""))
	require.NoError(t, err)
	for _, path := range []string{"/plant%3Fsite.git", "/plant%23site.git", "/100%25.git", "/100%2541.git", "/plant%20site.git"} {
		t.Run(path, func(t *testing.T) {
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rest, ok := strings.CutPrefix(r.URL.EscapedPath(), path)
				if !ok {
					http.NotFound(w, r)
					return
				}
				r.URL.Path, r.URL.RawPath = "/site.git"+rest, ""
				repotest.ReverseProxy(back).ServeHTTP(w, r)
			}))
			defer front.Close()
			s := openStore(t, store.Options{})
			pull(t, s, newClient(t, parseURL(t, front.URL+path), Auth{}, Options{}), "main")
			repotest.RequireSame(t, g, s, first)
		})
	}
}

func TestParseURLAccepts(t *testing.T) {
	for in, want := range map[string]string{
		"https://git.example.com/plant/site.git":       "https://git.example.com/plant/site.git",
		"HTTPS://Git.Example.COM:443/Plant.git":        "https://git.example.com/Plant.git",
		"https://git.example.com:8443/plant.git/":      "https://git.example.com:8443/plant.git",
		"http://git/plant":                             "http://git/plant",
		"https://[2001:db8::1]:8443/a.git":             "https://[2001:db8::1]:8443/a.git",
		"https://[2001:db8::1]/a.git":                  "https://[2001:db8::1]/a.git",
		"https://git.example.com/a%20b/_git/c":         "https://git.example.com/a%20b/_git/c",
		"https://S3CR3T@git.example.com/a.git":         "https://git.example.com/a.git",
		"https://user:S3CR3T%40@git.example.com/a.git": "https://git.example.com/a.git",
		"file:///srv/git/plant.git":                    "/srv/git/plant.git",
		"ssh://git@Git.Example.com/plant/site.git":     "ssh://git.example.com/plant/site.git",
		"ssh://git.example.com:22/plant.git/":          "ssh://git.example.com/plant.git",
		"git+ssh://me@git.example.com:2222/plant.git":  "ssh://git.example.com:2222/plant.git",
		"ssh://git.example.com:2222/~me/plant.git":     "ssh://git.example.com:2222/~me/plant.git",
		"git@git.example.com:plant/site.git":           "git.example.com:plant/site.git",
		"git.example.com:plant.git":                    "git.example.com:plant.git",
		"git@git.example.com:/srv/plant.git":           "ssh://git.example.com/srv/plant.git",
		"git@[2001:db8::1]:plant.git":                  "[2001:db8::1]:plant.git",
		"ssh://[2001:db8::1]:2222/plant.git":           "ssh://[2001:db8::1]:2222/plant.git",
		"git@ssh.dev.azure.com:v3/org/project/repo":    "ssh.dev.azure.com:v3/org/project/repo",
		"file://localhost/srv/git/a%20b.git":           "/srv/git/a b.git",
		"/srv/git/../git/plant.git":                    "/srv/git/plant.git",
	} {
		t.Run(in, func(t *testing.T) {
			u, err := ParseURL(in)
			require.NoError(t, err, in)
			assert.Equal(t, want, u.String(), in)
			again, err := ParseURL(u.String())
			require.NoError(t, err, "the printed address can be parsed")
			assert.Equal(t, want, again.String())
		})
	}
	u := parseURL(t, "https://user:pa%3Ass@git.example.com/a.git")
	username, password := u.credentials()
	assert.Equal(t, "user", username)
	assert.Equal(t, "pa:ss", password)
	assert.False(t, u.Plaintext())
	assert.True(t, parseURL(t, "http://git/a").Plaintext())
	assert.True(t, parseURL(t, "/a").Local())
	assert.True(t, parseURL(t, "me@h:a").SSH())
	assert.Equal(t, "me", parseURL(t, "me@h:a").sshLogin())
	assert.Equal(t, "git", parseURL(t, "h:a").sshLogin())
	assert.Equal(t, "h:22", parseURL(t, "h:a").dialAddress())
	assert.Equal(t, "[2001:db8::1]:2222", parseURL(t, "ssh://[2001:db8::1]:2222/a").dialAddress())
}

// F5: the parser rejects any address that a program or a transport helper could read as an option or a command.
func TestParseURLRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "-", "--upload-pack=touch /tmp/x", "-oProxyCommand=S3CR3T", "ext::sh -c S3CR3T", "ext::S3CR3T", "fd::17/S3CR3T",
		"ssh://-oProxyCommand=x/S3CR3T", "-oProxyCommand=x:S3CR3T", "git@-oProxyCommand=x:S3CR3T", "-u@host:S3CR3T", "git@host:-S3CR3T",
		"ssh://git:S3CR3T@host/a.git", "ssh://host", "ssh://host/", "ssh://host/a?S3CR3T", "ssh://host:0/S3CR3T", "ssh://a%20b@host/S3CR3T",
		"ssh://-a@host/S3CR3T", "ssh://a'b@host/S3CR3T", "a b@host:S3CR3T", "git@host:", "git@host:/", "git@:S3CR3T", "@host:S3CR3T",
		"git@ho/st:S3CR3T", "git@host::S3CR3T", "git@[::1:S3CR3T", "git:S3CR3T@host:a", "git@host:\x7fS3CR3T",
		"git://host/S3CR3T", "ftp://host/S3CR3T", "javascript://S3CR3T", "relative/S3CR3T", "../S3CR3T", "~/S3CR3T", "S3CR3T",
		"https://", "https:///S3CR3T", "https://:443/S3CR3T", "https://user:S3CR3T@/x", "https://-host/S3CR3T", "https://ho st/S3CR3T",
		"https://host:/S3CR3T", "https://host:0/S3CR3T", "https://host:70000/S3CR3T", "https://host:port/S3CR3T", "https://hö.st/S3CR3T",
		"https://host/a?token=S3CR3T", "https://host/a?", "https://host/a#S3CR3T", "https://host/a#", "https://host/%00S3CR3T",
		"https://host/%0aS3CR3T", "https://host/\nS3CR3T", "https://host/\x7fS3CR3T", "https://host/%zzS3CR3T", "https://ho%2dst/S3CR3T",
		"https:S3CR3T", "https:/S3CR3T", "file://host/S3CR3T", "file://S3CR3T", "file:///%0aS3CR3T", "file:///%zzS3CR3T",
		"https://user:S3CR3T@host:99999/x", "https://user:S3CR3T@[::1/x", "\xff\xfeS3CR3T", "https://host/\xffS3CR3T",
		"https://host/" + strings.Repeat("S3CR3T", 1000), "/srv/\x00S3CR3T",
	} {
		t.Run(fmt.Sprintf("%.40q", in), func(t *testing.T) {
			u, err := ParseURL(in)
			require.Error(t, err, "%q", in)
			repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
			assert.True(t, u.IsZero(), "%q", in)
		})
	}
}

func FuzzParseURLRedact(f *testing.F) {
	for _, s := range []string{
		"https://%s@host/a.git", "https://user:%s@host/a", "https://%s:x@host:1/a", "http://u:%s@[::1]/", "ssh://git:%s@host/a",
		"https://host/?t=%s", "https://host/#%s", "//u:%s@host", "https://u:%s@host:bad/", "%s", "-%s", "file://%s/a", "git@%s:a", "s@u:%s@", "http://a/aa>//aaa^//", "https://\n%s@h",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, shape string) {
		// The secret replaces the credentials. Elsewhere it would be a path, which is not secret.
		in := strings.ReplaceAll(shape, "%s", "S3CR3Tq7")
		u, err := ParseURL(in)
		if err != nil {
			repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
			return
		}
		enc, jsonErr := json.Marshal(struct{ U any }{u})
		require.NoError(t, jsonErr)
		c := NewClient(u, Auth{}, Options{})
		printed := string(enc)
		for _, v := range []any{u, &u, struct{ u URL }{u}, c, c.transport} {
			printed += fmt.Sprintf("%v %+v %#v %s %q", v, v, v, v, v)
		}
		username, password := u.credentials()
		for _, s := range []string{username, password} {
			if strings.Contains(s, "S3CR3Tq7") && !strings.Contains(u.path+u.host, "S3CR3Tq7") && !strings.Contains(u.host, "s3cr3tq7") {
				require.False(t, strings.Contains(printed, "S3CR3Tq7"), "the secret is printed")
			}
		}
		again, err := ParseURL(u.String())
		require.NoError(t, err)
		require.Equal(t, u.String(), again.String())
		require.Equal(t, u.origin(), again.origin())
	})
}

// The address may have a password, so errors name only the character.
func TestURLErrorNamesCharacter(t *testing.T) {
	for address, says := range map[string]string{
		"https://git.example.com/my plant.git":     "a space: write %20",
		"https://git.example.com/plant.git?ref=x":  "a question mark: write %3F",
		"https://git.example.com/plant.git#main":   "a #: write %23",
		"ssh://git@git.example.com/plant.git#main": "a #: write %23",
		"https://git.example.com/plant.git?":       "a question mark: write %3F",
	} {
		t.Run(address, func(t *testing.T) {
			_, err := ParseURL(address)
			assert.ErrorContains(t, err, says)
		})
	}
}
