package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// behindAProxy marks the child process, which starts with a proxy in its environment, because net/http reads it only once.
const behindAProxy = "STOKER_TEST_BEHIND_A_PROXY"

func TestInClusterIgnoresProxy(t *testing.T) {
	if os.Getenv(behindAProxy) == "" {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), behindAProxy+"=1", "HTTPS_PROXY=http://proxy.invalid:3128", "https_proxy=", "NO_PROXY=", "no_proxy=")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	const server = "https://10.96.0.1:443"
	var dialled []string
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("no cluster")
	}
	ask := func(config *rest.Config, err error) {
		t.Helper()
		require.NoError(t, err)
		config.Dial = dial
		clients, err := ConnectTo(config, "test")
		require.NoError(t, err)
		_, err = clients.Core.CoreV1().Pods("plant").Get(t.Context(), "x", metav1.GetOptions{})
		require.ErrorContains(t, err, "no cluster")
		_, err = SyncTargets(clients.Dynamic, "plant").Get(t.Context(), "x")
		require.ErrorContains(t, err, "no cluster")
	}
	ask(findConfig("", func() (*rest.Config, error) { return &rest.Config{Host: server}, nil }))
	assert.Equal(t, []string{"10.96.0.1:443", "10.96.0.1:443"}, dialled)

	t.Log("outside a pod, a kubeconfig applies with the proxies of the environment")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte("{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: '"+server+"'}}]}"), 0o600))
	dialled = nil
	ask(findConfig(file, nil))
	assert.Equal(t, []string{"proxy.invalid:3128", "proxy.invalid:3128"}, dialled)

	t.Log("the lookup of kubectl finds the API server of the pod")
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	found := func(config *rest.Config) (*rest.Config, error) {
		Directly(config, func(name string) string { return pod[name] })
		return config, nil
	}
	dialled = nil
	ask(found(&rest.Config{Host: server}))
	assert.Equal(t, []string{"10.96.0.1:443", "10.96.0.1:443"}, dialled)
	dialled = nil
	ask(found(&rest.Config{Host: "https://api.example.com:6443"}))
	assert.Equal(t, []string{"proxy.invalid:3128", "proxy.invalid:3128"}, dialled, "another cluster uses the proxies of the environment")
	named, err := url.Parse("http://named.invalid:3128")
	require.NoError(t, err)
	dialled = nil
	ask(found(&rest.Config{Host: server, Proxy: http.ProxyURL(named)}))
	assert.Equal(t, []string{"named.invalid:3128", "named.invalid:3128"}, dialled, "the proxy of the kubeconfig applies")
	pod = nil
	dialled = nil
	ask(found(&rest.Config{Host: server}))
	assert.Equal(t, []string{"proxy.invalid:3128", "proxy.invalid:3128"}, dialled, "outside a pod, the proxies of the environment apply")

	_, err = findConfig("", func() (*rest.Config, error) { return nil, rest.ErrNotInCluster })
	assert.ErrorIs(t, err, rest.ErrNotInCluster)
}

func TestClientsShareConnection(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	config, err := findConfig("", func() (*rest.Config, error) {
		return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
	})
	require.NoError(t, err)
	clients, err := ConnectTo(config, "test")
	require.NoError(t, err)
	for range 3 {
		_, err = clients.Core.CoreV1().Pods("plant").Get(t.Context(), "x", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = SyncTargets(clients.Dynamic, "plant").Get(t.Context(), "x")
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	assert.EqualValues(t, 1, opened.Load())
}

// U5: whatever answers a client of an API server, no second request leaves.
func TestNoRedirectIsFollowed(t *testing.T) {
	var elsewhere, paths []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Host+r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	var status int
	var location string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		w.Header().Set("Location", location)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")

	clients, err := ConnectTo(&rest.Config{Host: server.URL, BearerToken: "reader"}, "test")
	require.NoError(t, err)
	slow, err := clients.WithRate(5, 5, 0)
	require.NoError(t, err)
	accounts, err := clients.Accounts()
	require.NoError(t, err)
	account, err := accounts("plant", "author")
	require.NoError(t, err)
	meta, err := MetadataOf(clients)
	require.NoError(t, err)
	proxied := func(c Clients) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Core.CoreV1().Pods("plant").ProxyGet("http", "line-0", "8082", "state", nil).Stream(ctx)
			return err
		}
	}
	pod, api := "pod line-0 in namespace plant", "the API server at "+host
	for name, c := range map[string]struct {
		from string
		do   func(context.Context) error
	}{
		"pod":          {pod, proxied(clients)},
		"pod, slow":    {pod, proxied(slow)},
		"pod, account": {pod, proxied(account)},
		"get": {api, func(ctx context.Context) error {
			_, err := GatewaySyncs(clients.Dynamic, "plant").Get(ctx, "x")
			return err
		}},
		"metadata": {api, func(ctx context.Context) error {
			_, err := meta.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, metav1.ListOptions{})
			return err
		}},
		"watch": {api, func(ctx context.Context) error {
			_, err := clients.Core.CoreV1().Pods("plant").Watch(ctx, metav1.ListOptions{})
			return err
		}},
		"patch": {api, func(ctx context.Context) error {
			_, err := clients.Core.CoreV1().Pods("plant").Patch(ctx, "x", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			return err
		}},
		"delete": {api, func(ctx context.Context) error {
			return clients.Core.CoreV1().Pods("plant").Delete(ctx, "x", metav1.DeleteOptions{})
		}},
		"discovery": {api, func(context.Context) error { _, err := clients.Core.Discovery().ServerVersion(); return err }},
	} {
		for _, to := range []string{other.URL + "/api", "//" + strings.TrimPrefix(other.URL, "http://") + "/api", "../../../../../../../api/v1/secrets", "/api/v1/secrets", ""} {
			for _, code := range []int{300, 301, 302, 303, 307, 308, 399} {
				t.Run(fmt.Sprintf("%s/%d %s", name, code, strings.ReplaceAll(to, "/", "_")), func(t *testing.T) {
					status, location, paths, elsewhere = code, to, nil, nil
					err := c.do(t.Context())
					redirect := &RedirectError{}
					require.ErrorAs(t, err, &redirect)
					assert.Equal(t, RedirectError{c.from, code}, *redirect)
					assert.Len(t, paths, 1)
					assert.False(t, slices.Contains(paths, "/api/v1/secrets"))
					assert.Empty(t, elsewhere)
					assert.False(t, Transient(err), "asking again does not help")
				})
			}
		}
	}
}
