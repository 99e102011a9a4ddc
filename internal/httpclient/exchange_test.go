package httpclient

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func get(t *testing.T, c Client, address string) (*Answer, error) {
	t.Helper()
	return c.Do(t.Context(), http.MethodGet, address, nil, nil)
}

func TestExchange(t *testing.T) {
	var got *http.Request
	var body []byte
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.Background())
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("X-Answer", "a")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "done")
	}))
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	header := http.Header{"X-Mine": {"1"}}
	answer, err := Client{CA: ca, Loopback: true}.Do(t.Context(), http.MethodPost, s.URL+"/path?a=b", header, []byte("question"))
	require.NoError(t, err)
	assert.Equal(t, http.StatusAccepted, answer.Status)
	assert.Equal(t, "done", string(answer.Body))
	assert.Equal(t, "a", answer.Header.Get("X-Answer"))
	assert.Equal(t, "question", string(body))
	assert.Equal(t, "/path?a=b", got.URL.String())
	assert.Equal(t, "1", got.Header.Get("X-Mine"))
	assert.Equal(t, "stoker", got.Header.Get("User-Agent"))
	assert.Equal(t, http.Header{"X-Mine": {"1"}}, header, "the exchange must not change the caller's header")

	t.Run("unknown authority", func(t *testing.T) {
		_, err := get(t, Client{Loopback: true}, s.URL)
		assert.ErrorContains(t, err, "certificate")
	})
	t.Run("any certificate", func(t *testing.T) {
		_, err := get(t, Client{Loopback: true, InsecureSkipVerify: true}, s.URL)
		assert.NoError(t, err)
	})
	t.Run("bundle without certificate", func(t *testing.T) {
		_, err := get(t, Client{Loopback: true, CA: []byte("none")}, s.URL)
		assert.ErrorContains(t, err, "no PEM certificate")
	})
}

// C17: whatever a server does, the exchange ends in time and within the bounds.
func TestHostileServers(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	c := Client{Loopback: true, Timeout: 300 * time.Millisecond, MaxAnswer: 1 << 10}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		err     string
	}{
		{"hang before the header", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "no complete answer within 300ms"},
		{"slow drip", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(20 * time.Millisecond)
			}
		}, "no complete answer within 300ms"},
		{"huge answer", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }, "too large"},
		{"endless answer", func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, "too large"},
		{"huge header", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("a", 1<<20)) }, "exceeded"},
		{"answer that is cut", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, "unexpected EOF"},
		{"compressed answer is not decompressed", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }, ""},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := httptest.NewServer(tc.handler)
			defer s.Close()
			began := time.Now()
			_, err := get(t, c, s.URL)
			assert.Less(t, time.Since(began), 5*time.Second)
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.err)
			assert.Less(t, len(err.Error()), 400)
		})
	}
	assert.Zero(t, elsewhere.Load(), "no redirect is followed")

	t.Run("no HTTP answer, control characters", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = io.WriteString(conn, "\x1b[31mHTTP\r\n\r\n")
				_ = conn.Close()
			}
		}()
		_, err = get(t, c, "http://"+l.Addr().String())
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "\x1b")
	})
	t.Run("no TLS handshake", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		_, err = get(t, c, "https://"+l.Addr().String())
		require.ErrorContains(t, err, "no complete answer within 300ms")
	})
}

// A server that hangs until the client gives up may still answer the request, and its answer may arrive.
func TestAnswerAfterTimeout(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client has gone
		<-r.Context().Done()
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	c := Client{Loopback: true, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), Timeout: 100 * time.Millisecond}
	var group errgroup.Group
	for range 16 {
		group.Go(func() error {
			for range 10 {
				if answer, err := c.Do(t.Context(), http.MethodPost, s.URL, nil, []byte("{}")); err == nil {
					return fmt.Errorf("answered %d", answer.Status)
				}
			}
			return nil
		})
	}
	assert.NoError(t, group.Wait())
}

func TestCancel(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	why := errors.New("the agent stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	_, err := Client{Loopback: true}.Do(ctx, http.MethodGet, s.URL, nil, nil)
	assert.ErrorIs(t, err, why)
}

// C17: errors show neither the credentials nor the path and query of an address, which are often secret.
func TestErrorsHideTheAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := l.Addr().String()
	require.NoError(t, l.Close())
	for _, address := range []string{
		"http://user:S3CR3T@" + closed + "/S3CR3T?token=S3CR3T", "http://user:S3CR3T@127.0.0.1/?S3CR3T", "http://S3CR3T@/", "http://S3CR3T@a b/", "%zzS3CR3T", "ftp://h/S3CR3T",
		"https://user:S3CR3T@" + closed + "/",
	} {
		t.Run(address, func(t *testing.T) {
			for name, c := range map[string]Client{"refused": {Timeout: time.Second}, "dialed": {Timeout: time.Second, Loopback: true}} {
				t.Run(name, func(t *testing.T) {
					_, err := get(t, c, address)
					require.Error(t, err)
					assert.NotContains(t, err.Error(), "S3CR3T")
				})
			}
		})
	}
}

// Without Client.Proxy, the proxies of the environment do not apply.
func TestProxyIsNotUsed(t *testing.T) {
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	_, err := get(t, Client{Timeout: time.Second}, "http://plant.invalid/")
	require.Error(t, err)
	assert.Zero(t, asked.Load())
}

// C17: the guard checks the address that is dialed, not the name.
func TestLoopbackIsNotReached(t *testing.T) {
	var reached atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer s.Close()
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "localhost", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"} {
		t.Run(host, func(t *testing.T) {
			_, err := get(t, Client{Timeout: 2 * time.Second}, "http://"+net.JoinHostPort(strings.Trim(host, "[]"), port))
			var forbidden *ForbiddenError
			require.ErrorAs(t, err, &forbidden)
		})
	}
	assert.Zero(t, reached.Load())
}

func TestGuard(t *testing.T) {
	for address, kind := range map[string]string{
		"127.0.0.1":                "a loopback address",
		"127.255.255.254":          "a loopback address",
		"::1":                      "a loopback address",
		"::ffff:127.0.0.1":         "a loopback address",
		"64:ff9b::7f00:1":          "a loopback address",
		"2002:7f00:1::":            "a loopback address",
		"::127.0.0.1":              "a loopback address",
		"0.0.0.0":                  "an unspecified address",
		"0.1.2.3":                  "an unspecified address",
		"::":                       "an unspecified address",
		"169.254.169.254":          "a link-local address",
		"64:ff9b::169.254.169.254": "a link-local address",
		"64:ff9b:1::a9fe:a9fe":     "a link-local address",
		"64:ff9b:1:a9fe:a9:fe00::": "an unspecified address", // a prefix of 48 bits
		"2001::5601:5601":          "a link-local address",   // 169.254.169.254 with inverted bits
		"169.254.170.2":            "a link-local address",
		"fe80::1%eth0":             "a link-local address",
		"224.0.0.1":                "a multicast address",
		"ff02::1":                  "a multicast address",
		"ff01::1":                  "a multicast address",
		"255.255.255.255":          "a reserved address",
		"240.0.0.1":                "a reserved address",
		"fd00:ec2::254":            "the metadata service of a cloud",
		"100.100.100.200":          "the metadata service of a cloud",
		"168.63.129.16":            "the metadata service of a cloud",
		"fd20:ce::254":             "the metadata service of a cloud",
		"192.0.0.192":              "the metadata service of a cloud",

		"10.0.0.1":         "",
		"172.16.3.4":       "",
		"192.168.1.1":      "",
		"100.64.0.1":       "",
		"192.0.2.7":        "",
		"fd00::7":          "",
		"2001:db8::1":      "",
		"64:ff9b::a01:203": "",

		"64:ff9b:1::a01:203":                   "",
		"2001:0:4136:e378:8000:63bf:3fff:fdd2": "",
	} {
		t.Run(address, func(t *testing.T) {
			assert.Equal(t, kind, guard{}.forbidden(netip.MustParseAddr(address)))
		})
	}
	t.Run("loopback allowed", func(t *testing.T) {
		g := guard{loopback: true}
		assert.Empty(t, g.forbidden(netip.MustParseAddr("127.0.0.1")))
		assert.NotEmpty(t, g.forbidden(netip.MustParseAddr("169.254.169.254")))
		assert.NotEmpty(t, g.forbidden(netip.MustParseAddr("0.0.0.0")))
	})
	t.Run("unknown network", func(t *testing.T) {
		assert.Error(t, guard{}.control(t.Context(), "unix", "/run/docker.sock", nil))
		assert.Error(t, guard{}.control(t.Context(), "tcp4", "plant.example.com:80", nil))
	})
}
