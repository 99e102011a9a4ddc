package ignition_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/leak"
)

func TestBackup(t *testing.T) {
	g := start(t, simulator.Options{})
	var b bytes.Buffer
	require.NoError(t, client(t, g).Backup(t.Context(), &b))
	_, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/backup", Status: 403}))
	requireReason(t, v1alpha1.ReasonGatewayForbidden, client(t, g).Backup(t.Context(), &b))
}

// bounded fails beyond a number of bytes.
type bounded int

var errFull = errors.New("full")

func (b *bounded) Write(p []byte) (int, error) {
	if *b -= bounded(len(p)); *b < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// F25: a gateway whose backup is truncated, late, endless or not a backup.
func TestHostileBackup(t *testing.T) {
	part := append([]byte("PK\x03\x04"), make([]byte, 1<<20)...)
	send := func(w http.ResponseWriter, p []byte) {
		_, _ = w.Write(p)
		_ = http.NewResponseController(w).Flush()
	}
	cases := map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"empty":     {func(http.ResponseWriter, *http.Request) {}, "did not answer with a backup"},
		"a page":    {func(w http.ResponseWriter, _ *http.Request) { send(w, []byte("<html>")) }, "did not answer with a backup"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) { send(w, part); panic(http.ErrAbortHandler) }, "EOF"},
		"shorter than its length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2000000")
			send(w, part)
		}, "EOF"},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) }, "no bytes arrived"},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			send(w, part)
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}, "no bytes arrived"},
		"missing": {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, "404"},
	}
	ask := func(t *testing.T, answer http.HandlerFunc, stall time.Duration, w io.Writer) error {
		server := httptest.NewServer(answer)
		t.Cleanup(server.Close)
		c, err := ignition.New(ignition.Config{URL: server.URL, BackupStall: stall})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c.Backup(t.Context(), w)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := ask(t, c.answer, 200*time.Millisecond, io.Discard)
			requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
			assert.ErrorContains(t, err, c.want)
		})
	}
	t.Run("endless", func(t *testing.T) {
		endless := func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				send(w, part)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		limit := bounded(64 << 20)
		require.ErrorIs(t, ask(t, endless, time.Minute, &limit), errFull)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), "the client keeps no part of the backup")
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := start(t, simulator.Options{})
		cancel()
		assert.ErrorIs(t, client(t, g).Backup(ctx, io.Discard), context.Canceled)
	})
}

func TestMain(m *testing.M) { leak.Main(m) }

const (
	postProjects = "POST /data/api/v1/scan/projects"
	getProjects  = "GET /data/api/v1/scan/projects"
	// bound is far longer than any step of a test takes.
	bound = 20 * time.Second
)

func start(t *testing.T, opts simulator.Options) *simulator.Gateway {
	t.Helper()
	if opts.Data == "" {
		opts.Data = t.TempDir()
	}
	g, err := simulator.Start(opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	return g
}

// client returns a client with short poll intervals and the gateway's own token.
func client(t *testing.T, g *simulator.Gateway, change ...func(*ignition.Config)) *ignition.Client {
	t.Helper()
	cfg := ignition.Config{
		URL:          g.URL(),
		Key:          func() (secret.String, error) { return secret.New(g.Token()), nil },
		Timeout:      bound,
		PollInterval: time.Millisecond,
		ScanTimeout:  bound,
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := ignition.New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func withKey(key string) func(*ignition.Config) {
	return func(c *ignition.Config) {
		c.Key = func() (secret.String, error) { return secret.New(key), nil }
	}
}

func requireReason(t *testing.T, want v1alpha1.Reason, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, string(want), string(failure.Reason(err, "none")), err.Error())
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	full := filepath.Join(dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(t, os.WriteFile(full, []byte(content), 0o644))
}

const projectJSON = `{"title":"","description":"","parent":"","enabled":true,"inheritable":false}`

func TestTrustedGatewayOverTLS(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	token, err := g.Administrator.IssueToken(simulator.TokenSpec{Name: "tls", Levels: []string{"Authenticated/ApiKeys/Stoker"}, Secure: true})
	require.NoError(t, err)
	for name, trust := range map[string]ignition.TLS{
		"authority and name": {CA: func() ([]byte, error) { return g.CA(), nil }, ServerName: "gateway.example"},
		"explicit skip":      {InsecureSkipVerify: true},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := client(t, g, withKey(token), overTLS(g, trust)).Info(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "gateway", info.Name)
		})
	}
}

func TestUntrustedGatewayGetsNoToken(t *testing.T) {
	ca := func(g *simulator.Gateway) func() ([]byte, error) {
		return func() ([]byte, error) { return g.CA(), nil }
	}
	for name, c := range map[string]struct {
		opts simulator.TLSOptions
		tls  func(*simulator.Gateway) ignition.TLS
		says string
	}{
		"unknown authority": {tls: func(*simulator.Gateway) ignition.TLS { return ignition.TLS{ServerName: "gateway.example"} }, says: "gateway.tlsConfig.caSecretRef"},
		"wrong name":        {tls: func(g *simulator.Gateway) ignition.TLS { return ignition.TLS{CA: ca(g)} }, says: "gateway.example and not for 127.0.0.1: set spec.gateway.tlsConfig.serverName"},
		"expired": {opts: simulator.TLSOptions{NotAfter: time.Now().Add(-24 * time.Hour)}, says: "renew it",
			tls: func(g *simulator.Gateway) ignition.TLS {
				return ignition.TLS{CA: ca(g), ServerName: "gateway.example"}
			}},
		"not PEM": {tls: func(*simulator.Gateway) ignition.TLS {
			return ignition.TLS{CA: func() ([]byte, error) { return []byte("none"), nil }}
		}, says: "no PEM certificate"},
		"unreadable CA": {tls: func(*simulator.Gateway) ignition.TLS {
			return ignition.TLS{CA: func() ([]byte, error) { return nil, errors.New("no such file") }}
		}, says: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{TLS: &c.opts})
			_, err := client(t, g, overTLS(g, c.tls(g))).Scan(t.Context(), ignition.Projects)
			requireReason(t, v1alpha1.ReasonGatewayUntrusted, err)
			assert.ErrorContains(t, err, "is not trusted")
			assert.ErrorContains(t, err, c.says)
			assert.Empty(t, g.Requests.List())
		})
	}
}

func TestWrongScheme(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	for url, want := range map[string]struct {
		reason v1alpha1.Reason
		says   string
	}{
		strings.Replace(g.URL(), "http:", "https:", 1):    {v1alpha1.ReasonGatewayUntrusted, "does not use TLS"},
		strings.Replace(g.TLSURL(), "https:", "http:", 1): {v1alpha1.ReasonGatewayUnreachable, "set spec.gateway.tls"},
	} {
		t.Run(url, func(t *testing.T) {
			_, err := client(t, g, func(c *ignition.Config) { c.URL = url }).Info(t.Context())
			requireReason(t, want.reason, err)
			assert.ErrorContains(t, err, want.says)
		})
	}
}

func TestRotatedAuthority(t *testing.T) {
	g := start(t, simulator.Options{TLS: &simulator.TLSOptions{}})
	var good atomic.Bool
	c := client(t, g, overTLS(g, ignition.TLS{ServerName: "gateway.example", CA: func() ([]byte, error) {
		if good.Load() {
			return g.CA(), nil
		}
		return nil, errors.New("not there yet")
	}}))
	_, err := c.Info(t.Context())
	require.Error(t, err)
	good.Store(true)
	_, err = c.Info(t.Context())
	require.NoError(t, err)
}

func overTLS(g *simulator.Gateway, trust ignition.TLS) func(*ignition.Config) {
	return func(c *ignition.Config) { c.URL, c.TLS = g.TLSURL(), trust }
}
