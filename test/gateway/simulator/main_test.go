package simulator_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	bound       = 20 * time.Second
	projectJSON = `{"title":"","description":"","parent":"","enabled":true,"inheritable":false}`
	view        = "com.inductiveautomation.perspective/views/Main"
)

// bench is a simulated gateway with the helpers of a test.
type bench struct {
	*simulator.Gateway
	t    *testing.T
	dir  string
	http *http.Client
}

func start(t *testing.T, opts simulator.Options) bench {
	t.Helper()
	if opts.Data == "" {
		opts.Data = t.TempDir()
	}
	g, err := simulator.Start(opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	client := &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.Cleanup(client.CloseIdleConnections)
	return bench{g, t, opts.Data, client}
}

// put writes a file in the data directory.
func (b bench) put(name, content string) {
	b.t.Helper()
	full := filepath.Join(b.dir, filepath.FromSlash(name))
	require.NoError(b.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(b.t, os.WriteFile(full, []byte(content), 0o644))
}

func (b bench) read(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.dir, filepath.FromSlash(name)))
	require.NoError(b.t, err)
	return string(raw)
}

// resource writes a resource with one data file.
func (b bench) resource(dir, file, content string) {
	b.t.Helper()
	b.put(dir+"/"+file, content)
	b.put(dir+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["`+file+`"],"attributes":{}}`)
}

// ask sends a request with the gateway's token.
func (b bench) ask(method, path, body string, headers ...string) (int, string) {
	b.t.Helper()
	return b.send(method, b.URL()+path, body, append([]string{"X-Ignition-API-Token", b.Token()}, headers...)...)
}

// admin sends a request to the simulator's own interface.
func (b bench) admin(method, path, body string) (int, string) {
	b.t.Helper()
	return b.send(method, b.AdminURL()+path, body)
}

func (b bench) send(method, url, body string, headers ...string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, url, strings.NewReader(body))
	require.NoError(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := b.http.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp.StatusCode, string(raw)
}
