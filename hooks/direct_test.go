package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// behindAProxy marks the child process, which starts with a proxy in its environment, because net/http reads it only once.
const behindAProxy = "STOKER_TEST_BEHIND_A_PROXY"

// The proxy of a hook Job is for git, not for the API server.
func TestAHookJobAsksTheAPIServerDirectlyWhateverProxyThereIs(t *testing.T) {
	t.Parallel()
	if os.Getenv(behindAProxy) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), behindAProxy+"=1", "HTTPS_PROXY=http://proxy.invalid:3128", "https_proxy=", "NO_PROXY=", "no_proxy=")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	asks := func(env map[string]string) []string {
		t.Helper()
		var mu sync.Mutex
		var dialled []string
		var said strings.Builder
		c := newCLI(&said, &said)
		c.live = true // disables the retries, which take half a minute
		c.env = func(name string) string { return env[name] }
		c.flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
			config.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialled = append(dialled, address)
				return nil, errors.New("nobody is there")
			}
			return config
		}
		assert.Equal(t, exitAgain, c.run(t.Context(), "stoker", []string{"--kubeconfig", kubeconfigOf(t, "https://10.96.0.1:443"), "get", "line"}), &said)
		return dialled
	}
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	assert.Equal(t, []string{"10.96.0.1:443"}, asks(pod))
	assert.Equal(t, []string{"proxy.invalid:3128"}, asks(nil), "whoever is outside has the proxies that kubectl has")
}
