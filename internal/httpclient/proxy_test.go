package httpclient

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// connectProxy is a small real proxy for CONNECT. It connects every name to one server, as a proxy with a name server of its own.
type connectProxy struct {
	*httptest.Server
	to     string
	answer int // the status instead of a connection; 0 connects, and -1 hangs

	mu     sync.Mutex
	asked  []string
	header http.Header
	seen   bytes.Buffer // what passed from the client
}

func newConnectProxy(t *testing.T, to string) *connectProxy {
	t.Helper()
	p := &connectProxy{to: to}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *connectProxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked, p.header = append(p.asked, r.Method+" "+r.Host), r.Header.Clone()
	answer := p.answer
	p.mu.Unlock()
	switch {
	case r.Method != http.MethodConnect:
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	case answer < 0: // it hangs
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case answer > 0:
		http.Error(w, "<b>S3CR3T</b>", answer)
		return
	}
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer server.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	_, _ = io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n")
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(client, server)
		client.Close()
		close(done)
	}()
	_, _ = io.Copy(io.MultiWriter(server, writer(func(b []byte) { p.mu.Lock(); p.seen.Write(b); p.mu.Unlock() })), buffered)
	server.Close()
	<-done
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// took returns the requests since the last call.
func (p *connectProxy) took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

// resolves replaces the name server until the end of the test. The new one knows only names, which maps each to an IPv4 address.
func resolves(t *testing.T, names map[string]string) {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	was := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", l.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = was; _ = l.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := l.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RCode: dnsmessage.RCodeNameError}, Questions: m.Questions}
			if a, ok := names[strings.TrimSuffix(q.Name.String(), ".")]; ok {
				answer.RCode = dnsmessage.RCodeSuccess
				if q.Type == dnsmessage.TypeA {
					answer.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1},
						Body: &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()}}}
				}
			}
			if raw, err := answer.Pack(); err == nil {
				_, _ = l.WriteTo(raw, from)
			}
		}
	}()
}

func TestRequestsThroughProxy(t *testing.T) {
	var bodies []string
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.Host+" "+string(b))
	}))
	defer s.Close()
	proxy := newConnectProxy(t, s.Listener.Addr().String())
	resolves(t, map[string]string{"inside.example.com": "10.1.2.3", "metadata.example.com": "169.254.169.254", "loop.example.com": "127.0.0.1", "direct.example.com": "127.0.0.1"})
	for _, name := range []string{"https_proxy", "HTTP_PROXY", "http_proxy", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	t.Setenv("HTTPS_PROXY", strings.Replace(proxy.URL, "http://", "http://user:S3CR3T@", 1))
	t.Setenv("NO_PROXY", "direct.example.com,10.0.0.0/8")
	through, err := ProxyFromEnvironment()
	require.NoError(t, err)
	c := Client{Proxy: through, Timeout: 5 * time.Second, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
	post := func(address string) error {
		_, err := c.Do(t.Context(), http.MethodPost, address, nil, []byte("question"))
		return err
	}

	for name, address := range map[string]string{"name known to the proxy only": "https://hooks.example.com/T0?token=S3CR3T", "name of a private address": "https://inside.example.com:8443/"} {
		t.Run(name, func(t *testing.T) {
			bodies = nil
			require.NoError(t, post(address))
			host := strings.Split(strings.TrimPrefix(address, "https://"), "/")[0]
			assert.Equal(t, []string{host + " question"}, bodies)
			if !strings.Contains(host, ":") {
				host += ":443"
			}
			assert.Equal(t, []string{"CONNECT " + host}, proxy.took())
			assert.Equal(t, "Basic dXNlcjpTM0NSM1Q=", proxy.header.Get("Proxy-Authorization"))
			assert.NotContains(t, proxy.seen.String(), "question", "the proxy must not see the request inside TLS")
			assert.NotContains(t, proxy.seen.String(), "S3CR3T")
		})
	}
	t.Run("unknown certificate behind the proxy", func(t *testing.T) {
		strict := c
		strict.CA = nil
		_, err := strict.Do(t.Context(), http.MethodGet, "https://hooks.example.com/", nil, nil)
		assert.ErrorContains(t, err, "certificate")
		proxy.took()
	})

	// C17: what the guard refuses without a proxy, it refuses with one.
	for _, host := range []string{"169.254.169.254", "[fd00:ec2::254]", "metadata.example.com", "loop.example.com", "[::ffff:169.254.169.254]", "0.0.0.0", "127.0.0.1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			var forbidden *ForbiddenError
			require.ErrorAs(t, post("https://"+host+"/"), &forbidden)
			assert.Empty(t, proxy.took())
		})
	}
	t.Run("NO_PROXY", func(t *testing.T) {
		var forbidden *ForbiddenError
		require.ErrorAs(t, post("https://direct.example.com/"), &forbidden, "NO_PROXY applies, so the guard rejects the address")
		assert.Empty(t, proxy.took())
	})
	t.Run("plain HTTP", func(t *testing.T) {
		require.Error(t, post("http://hooks.example.com/"))
		assert.Empty(t, proxy.took())
	})
	for want, answer := range map[string]int{"requires other credentials (HTTP 407)": 407, "does not allow this host (HTTP 403)": 403, "refused the connection (HTTP 502)": 502, "no complete answer within 1s": -1} {
		t.Run(want, func(t *testing.T) {
			proxy.mu.Lock()
			proxy.answer = answer
			proxy.mu.Unlock()
			short := c
			short.Timeout = time.Second
			_, err := short.Do(t.Context(), http.MethodPost, "https://hooks.example.com/S3CR3T", nil, nil)
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	t.Run("unreachable", func(t *testing.T) {
		proxy.CloseClientConnections()
		proxy.Close()
		err := post("https://hooks.example.com/S3CR3T")
		require.ErrorContains(t, err, "proxyconnect")
		assert.NotContains(t, err.Error(), "S3CR3T")
	})
}

func TestProxyOfEnvironment(t *testing.T) {
	for _, name := range []string{"https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	for value, want := range map[string]string{"": "", "http://proxy:3128": "", "proxy:3128": "", "https://proxy": "", "socks5://proxy": "HTTPS_PROXY must be", "http://user:S3CR3T@ %": "HTTPS_PROXY must be"} {
		t.Run(value, func(t *testing.T) {
			t.Setenv("HTTPS_PROXY", value)
			find, err := ProxyFromEnvironment()
			if want == "" {
				require.NoError(t, err)
				assert.Equal(t, value != "", find != nil)
				return
			}
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

func TestRetryAfter(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"0": 0, "7": 7 * time.Second, "99999999999": time.Hour, "Fri, 02 Jan 2026 00:00:10 GMT": 10 * time.Second,
		"Thu, 01 Jan 2026 00:00:00 GMT": 0,
	} {
		t.Run(header, func(t *testing.T) {
			got, ok := RetryAfter(header, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), time.Hour)
			assert.True(t, ok, header)
			assert.Equal(t, want, got, header)
		})
	}
	for _, header := range []string{"", "soon", "-1"} {
		t.Run(header, func(t *testing.T) {
			_, ok := RetryAfter(header, time.Now(), time.Hour)
			assert.False(t, ok, header)
		})
	}
}

func TestRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect to another host was followed") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name := strings.TrimPrefix(r.URL.Path, "/"); name {
		case "elsewhere":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "for ever":
			http.Redirect(w, r, "/for%20ever", http.StatusFound)
		case "here":
			http.Redirect(w, r, "/end", http.StatusFound)
		}
	}))
	defer server.Close()
	get := func(p Policy, path string) (int, error) {
		res, err := p.Client().Get(server.URL + path)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	for _, path := range []string{"/elsewhere", "/for%20ever", "/here"} {
		t.Run("none"+path, func(t *testing.T) {
			status, err := get(Policy{}, path)
			require.NoError(t, err)
			assert.Equal(t, http.StatusFound, status)
		})
		t.Run("same origin"+path, func(t *testing.T) {
			status, err := get(Policy{Refusal: func(host string) error { return fmt.Errorf("%s: %w", host, assert.AnError) }}, path)
			if path == "/here" {
				require.NoError(t, err)
				assert.Equal(t, http.StatusOK, status)
				return
			}
			require.ErrorIs(t, err, assert.AnError)
			assert.ErrorContains(t, err, strings.TrimPrefix(server.URL, "http://"))
		})
	}
}
