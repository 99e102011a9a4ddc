package wire

import (
	"bufio"
	"encoding/base64"
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
