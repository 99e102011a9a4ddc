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

// bounded is a writer that fails beyond a number of bytes.
type bounded int

var errFull = errors.New("full")

func (b *bounded) Write(p []byte) (int, error) {
	if *b -= bounded(len(p)); *b < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// F25 of docs/internals/threats.md: a gateway whose backup is truncated, late, endless or not a backup.
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
			stall := time.Minute
			if c.want == "no bytes arrived" {
				stall = 200 * time.Millisecond
			}
			err := ask(t, c.answer, stall, io.Discard)
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

func TestRoleFromRedundancyXML(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<!DOCTYPE properties SYSTEM "http://java.sun.com/dtd/properties.dtd">
<properties>
<comment>Redundancy Settings</comment>
`
	for name, c := range map[string]struct{ content, want string }{
		"backup":              {head + `<entry key="redundancy.noderole">Backup</entry></properties>`, ignition.RoleBackup},
		"master, with spaces": {head + "<entry key=\"redundancy.gan.host\">10.0.0.1</entry>\n<entry key=\"redundancy.noderole\"> MASTER\n</entry></properties>", ignition.RoleMaster},
		"independent":         {head + `<entry key="redundancy.noderole">Independent</entry></properties>`, ignition.RoleIndependent},
		"no role":             {head + `</properties>`, ignition.RoleIndependent},
		"empty file":          {"", ignition.RoleIndependent},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ignition.NodeRole([]byte(c.content))
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	for name, content := range map[string]string{
		"too large": "<properties>" + strings.Repeat(" ", ignition.MaxRedundancyFile) + "</properties>",
		"truncated": `<properties><entry key="redundancy.noderole">Backup`, "unbalanced": `<properties><entry></properties>`,
		"entity":            `<!DOCTYPE p [<!ENTITY a "Backup">]><properties><entry key="redundancy.noderole">&a;</entry></properties>`,
		"invalid character": head + `<entry key="redundancy.noderole">Tertiary&#x1b;</entry></properties>`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ignition.NodeRole([]byte(content))
			assert.Error(t, err)
		})
	}
}

func TestRedundancyRoles(t *testing.T) {
	for role, paired := range map[string]bool{ignition.RoleIndependent: false, ignition.RoleMaster: true, ignition.RoleBackup: true} {
		t.Run(role, func(t *testing.T) {
			c := client(t, start(t, simulator.Options{Role: role}))
			red, err := c.Redundancy(t.Context())
			require.NoError(t, err)
			assert.Equal(t, role, red.Role)
			assert.Equal(t, paired, red.Paired())
			assert.Equal(t, role != ignition.RoleBackup, red.HasConfigAccess)
			p, err := c.Platform(t.Context())
			require.NoError(t, err)
			assert.Equal(t, ignition.Platform{Version: ignition.Version{Major: 8, Minor: 3, Patch: 8}, Role: role}, p)
		})
	}
}

func TestScanModule(t *testing.T) {
	for _, version := range []string{"8.1.44", "8.3.8"} {
		t.Run(version, func(t *testing.T) {
			_, err := client(t, start(t, simulator.Options{Version: version})).ScanByModule(t.Context(), true)
			require.ErrorIs(t, err, ignition.ErrNoScanModule)

			g := start(t, simulator.Options{Version: version, ScanModule: true})
			_, err = g.Designers.Open("ann", "P")
			require.NoError(t, err)
			c := client(t, g)
			done, err := c.ScanByModule(t.Context(), true)
			require.NoError(t, err)
			assert.True(t, done.DesignersNotified)
			assert.Equal(t, 1, g.Designers.Notifications())

			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "POST /data/project-scan-endpoint/scan", Status: 200, Body: `{"gatewayProjectScanSuccess":false}`}))
			_, err = c.ScanByModule(t.Context(), true)
			requireReason(t, v1alpha1.ReasonScanFailed, err)
			require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /data/project-scan-endpoint/confirm-support", Status: 200, Body: `{"supported":false}`}))
			_, err = c.ScanByModule(t.Context(), true)
			require.ErrorIs(t, err, ignition.ErrNoScanModule)
		})
	}
}

const view = "com.inductiveautomation.perspective/views/Main"

// designer opens a Designer session on a new project P.
func designer(t *testing.T, g *simulator.Gateway, dir string) string {
	t.Helper()
	put(t, dir, "projects/P/project.json", projectJSON)
	require.NoError(t, g.Scans.Run("projects"))
	id, err := g.Designers.Open("ann", "P")
	require.NoError(t, err)
	return id
}

func TestLockDelaysDesignerSave(t *testing.T) {
	dir := t.TempDir()
	g := start(t, simulator.Options{Data: dir})
	id := designer(t, g, dir)
	c := client(t, g)
	require.NoError(t, c.Lock(t.Context(), ignition.Projects, time.Minute))
	holder, held, err := c.LockHolder(t.Context(), ignition.Projects)
	require.NoError(t, err)
	assert.True(t, held)
	assert.Equal(t, "stoker", holder)

	save := func(ctx context.Context) error {
		return g.Designers.SaveResource(ctx, id, view, map[string][]byte{"view.json": []byte("{}")}, false)
	}
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, save(short), context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() { done <- save(t.Context()) }()
	_, err = c.Scan(t.Context(), ignition.Projects)
	require.NoError(t, err)
	require.NoError(t, <-done)
	_, held, err = c.LockHolder(t.Context(), ignition.Projects)
	require.NoError(t, err)
	assert.False(t, held)
}

func TestLockExpires(t *testing.T) {
	g := start(t, simulator.Options{})
	c := client(t, g)
	requested := time.Now()
	require.NoError(t, c.Lock(t.Context(), ignition.ConfigScan, time.Millisecond)) // the minimum is one second
	require.Eventually(t, func() bool {
		_, held, err := c.LockHolder(t.Context(), ignition.ConfigScan)
		return err == nil && !held
	}, bound, 10*time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(requested), time.Second, "the gateway holds the lock for at least the requested time")
}

func TestLockHeld(t *testing.T) {
	for name, c := range map[string]struct {
		unknown simulator.Unknowns
		want    error
	}{
		"refused": {simulator.Unknowns{}, ignition.ErrLockHeld},
		"timeout": {simulator.Unknowns{LockWaits: true}, ignition.ErrLockTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, simulator.Options{Unknowns: c.unknown})
			require.NoError(t, g.Locks.Hold("projects", "backup-job", time.Hour))
			impatient := client(t, g, func(cfg *ignition.Config) { cfg.LockWait = time.Millisecond })
			err := impatient.Lock(t.Context(), ignition.Projects, time.Minute)
			require.ErrorIs(t, err, c.want)
			assert.ErrorContains(t, err, "backup-job")
			assert.NoError(t, impatient.Lock(t.Context(), ignition.ConfigScan, time.Minute), "the lock of the other kind is free")
		})
	}
}

func TestLockRefused(t *testing.T) {
	g := start(t, simulator.Options{Commissioning: true})
	err := client(t, g).Lock(t.Context(), ignition.Projects, time.Minute)
	requireReason(t, v1alpha1.ReasonWaitingForCommissioning, err)
	assert.NotErrorIs(t, err, ignition.ErrLockHeld)
}

func TestPing(t *testing.T) {
	for state, want := range map[simulator.State]string{
		simulator.Running: "RUNNING", simulator.Commissioning: "RUNNING/COMMISSIONING", simulator.Starting: "STARTING", simulator.Faulted: "FAULTED",
	} {
		t.Run(string(state), func(t *testing.T) {
			g := start(t, simulator.Options{ClockSkew: -48 * time.Hour})
			require.NoError(t, g.SetState(state))
			ping, err := client(t, g).Ping(t.Context())
			require.NoError(t, err)
			assert.Equal(t, state == simulator.Running, ping.Running())
			assert.Equal(t, state == simulator.Commissioning, ping.Commissioning())
			assert.Equal(t, want, ping.String())
			assert.WithinDuration(t, time.Now().Add(-48*time.Hour), ping.Date, time.Minute)
			for _, r := range g.Requests.List() {
				assert.Empty(t, r.Token, "the status page gets no token")
			}
		})
	}
}

func TestPingFails(t *testing.T) {
	t.Run("gateway down", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.SetState(simulator.Down))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonGatewayUnreachable, err)
		assert.ErrorContains(t, err, "cannot be reached")
	})
	t.Run("redirect to commissioning", func(t *testing.T) {
		g := start(t, simulator.Options{})
		require.NoError(t, g.Faults.Add(simulator.Fault{Route: "GET /StatusPing", Status: 302, Location: "/welcome"}))
		_, err := client(t, g).Ping(t.Context())
		requireReason(t, v1alpha1.ReasonWaitingForCommissioning, err)
		assert.Zero(t, g.Requests.Count("GET /welcome"))
	})
	t.Run("canceled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := client(t, start(t, simulator.Options{})).Ping(ctx)
		assert.ErrorIs(t, err, context.Canceled)
	})
}
