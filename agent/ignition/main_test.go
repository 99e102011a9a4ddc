package ignition_test

import (
	"os"
	"path/filepath"
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
