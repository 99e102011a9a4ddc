package wire

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/test/gitserver"
)

// C17: with a guard, no address of a user leads to the program's own pod or to the metadata of a cloud, over any protocol, and nothing
// says what answers there.
func TestGuard(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			assert.Fail(t, "the program connected")
			_ = conn.Close()
		}
	}()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	_, key, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	app := &GitHubApp{AppID: 7, InstallationID: 42, APIBaseURL: "http://127.0.0.1:" + port, Key: repotest.Token(key)}
	for address, auth := range map[string]Auth{
		"http://127.0.0.1:PORT/plant/site.git":          {},
		"http://localhost:PORT/plant/site.git":          {},
		"http://[::ffff:127.0.0.1]:PORT/plant/site.git": {},
		"https://127.0.0.1:PORT/plant/site.git":         {},
		"http://169.254.169.254/plant/site.git":         {},
		"ssh://git@127.0.0.1:PORT/plant/site.git":       {Key: repotest.Token(key), InsecureIgnoreHostKey: true},
		"http://git.invalid/plant/site.git":             {App: app},
	} {
		t.Run(address, func(t *testing.T) {
			_, err := newClient(t, parseURL(t, strings.ReplaceAll(address, "PORT", port)), auth, Options{Guard: httpclient.NewGuard()}).Resolve(t.Context(), "main")
			require.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
			assert.ErrorContains(t, err, "which Stoker does not contact for a user")
		})
	}
	t.Run("through a proxy", func(t *testing.T) {
		proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { assert.Fail(t, "the proxy was asked") }))
		t.Cleanup(proxy.Close)
		t.Setenv("HTTP_PROXY", proxy.URL)
		_, err := newClient(t, parseURL(t, "http://169.254.169.254/plant/site.git"), Auth{}, Options{Guard: httpclient.NewGuard()}).Resolve(t.Context(), "main")
		require.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
	})
}
