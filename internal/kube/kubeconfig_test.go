package kube

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// kubeconfig returns a kubeconfig as JSON, with additional fields of its cluster and its user.
func kubeconfig(server, cluster, user string) []byte {
	return fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "a", "user": "u"}}],
		"clusters": [{"name": "a", "cluster": {"server": %q%s}}], "users": [{"name": "u", "user": {%s}}]}`, server, cluster, user)
}

// G10: a kubeconfig that reads files, starts programs, trusts any server or leads elsewhere is refused by its field, without its values.
func TestParseKubeconfigRefuses(t *testing.T) {
	const token, edge = `"token": "S3CR3T"`, "https://edge.example.com:6443"
	for name, c := range map[string]struct {
		text []byte
		says string
	}{
		"exec":                 {kubeconfig(edge, "", token+`, "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/S3CR3T", "interactiveMode": "Never"}`), "exec: no program is started"},
		"auth provider":        {kubeconfig(edge, "", token+`, "auth-provider": {"name": "S3CR3T"}`), "auth-provider:"},
		"token file":           {kubeconfig(edge, "", token+`, "tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"`), "tokenFile: no file is read"},
		"certificate file":     {kubeconfig(edge, "", token+`, "client-certificate": "/etc/a.pem"`), "client-certificate:"},
		"key file":             {kubeconfig(edge, "", token+`, "client-key": "/etc/a.key"`), "client-key:"},
		"authority file":       {kubeconfig(edge, `, "certificate-authority": "/etc/ca.pem"`, token), "certificate-authority:"},
		"any server":           {kubeconfig(edge, `, "insecure-skip-tls-verify": true`, token), "insecure-skip-tls-verify:"},
		"proxy":                {kubeconfig(edge, `, "proxy-url": "http://S3CR3T"`, token), "proxy-url:"},
		"password":             {kubeconfig(edge, "", `"username": "admin", "password": "S3CR3T"`), "username:"},
		"impersonation":        {kubeconfig(edge, "", token+`, "as": "admin"`), "as:"},
		"not encrypted":        {kubeconfig("http://edge.example.com", "", token), "server must be"},
		"socket":               {kubeconfig("unix:///run/a", "", token), "server must be"},
		"user in the address":  {kubeconfig("https://a:S3CR3T@edge.example.com", "", token), "server must be"},
		"no server":            {kubeconfig("", "", token), "server must be"},
		"no credential":        {kubeconfig(edge, "", ""), "the user needs a token"},
		"no context":           {[]byte(`{"apiVersion": "v1", "kind": "Config"}`), "current-context"},
		"no cluster":           {[]byte(strings.Replace(string(kubeconfig(edge, "", token)), `"cluster": "a"`, `"cluster": "b"`, 1)), "must be among clusters and users"},
		"broken certificate":   {kubeconfig(edge, `, "certificate-authority-data": "UzNDUjNU"`, token), "in PEM"},
		"another kind of file": {[]byte(`{"apiVersion": "v1", "kind": "Secret", "data": {"a": "S3CR3T"}}`), ""},
		"nothing":              {nil, "current-context"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseKubeconfig(c.text, nil)
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

// G10: the token of a kubeconfig follows no redirect, and an answer without an end is cut.
func TestKubeconfigClients(t *testing.T) {
	followed := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/elsewhere"):
			followed++
		case strings.HasSuffix(r.URL.Path, "/endless"):
			w.Header().Set("Content-Type", "application/json")
			piece := []byte(strings.Repeat(" ", 1<<20))
			for {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		default:
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}
	}))
	defer server.Close()
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	dialed := 0
	config, err := ParseKubeconfig(kubeconfig(server.URL, `, "certificate-authority-data": "`+authority+`"`, `"token": "S3CR3T"`), func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
	require.NoError(t, err)
	clients, err := ConnectTo(config, "test")
	require.NoError(t, err)
	_, err = clients.Core.CoreV1().ConfigMaps("plant").Get(t.Context(), "a", metav1.GetOptions{})
	require.Error(t, err)
	assert.Zero(t, followed)
	assert.NotZero(t, dialed)
	_, err = clients.Core.CoreV1().ConfigMaps("plant").Get(t.Context(), "endless", metav1.GetOptions{})
	require.ErrorContains(t, err, "the answer has more than")
}

// G10: no kubeconfig causes a panic, or a configuration that reads a file or starts a program.
func FuzzParseKubeconfig(f *testing.F) {
	f.Add(string(kubeconfig("https://edge.example.com", "", `"token": "a"`)))
	f.Add(string(kubeconfig("https://edge.example.com", `, "certificate-authority": "/etc/a"`, `"tokenFile": "/etc/a"`)))
	f.Fuzz(func(t *testing.T, text string) {
		config, err := ParseKubeconfig([]byte(text), nil)
		if err != nil {
			return
		}
		require.True(t, strings.HasPrefix(config.Host, "https://"))
		require.Empty(t, config.BearerTokenFile+config.CAFile+config.CertFile+config.KeyFile)
		require.Nil(t, config.ExecProvider)
		require.Nil(t, config.AuthProvider)
		require.False(t, config.Insecure)
	})
}

// G10: what a server answers to all requests together has a bound, measured by the memory that its objects need.
func TestLimitMemory(t *testing.T) {
	const limit = 16 << 20
	full := errors.New("full")
	var keys strings.Builder
	for i := range 1 << 13 {
		fmt.Fprintf(&keys, "\"%x\":0,", i)
	}
	shapes := map[string]string{
		"lists": strings.Repeat("[],", 1<<13), "objects": strings.Repeat("{},", 1<<13), "texts": strings.Repeat(`"",`, 1<<14), "numbers": strings.Repeat("1e9,", 1<<14),
		"keys": "{" + keys.String() + `"a":0},`, "small objects": strings.Repeat(`{"":{}},`, 1<<12),
	}
	ordinary := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "` + strings.Repeat("{some: text}, ", 800) + `"}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasPrefix(r.URL.Path, "/edge/apis"):
			_, _ = io.WriteString(w, `{"groups": [`+strings.Repeat("{},", 1<<16)+`{}]}`)
		case strings.Contains(r.URL.Path, "hostile"):
			_, _ = io.WriteString(w, `{"apiVersion": "v1", "kind": "ConfigMap", "a": [`+shapes[strings.ReplaceAll(strings.Split(path.Base(r.URL.Path), ".")[1], "-", " ")]+`[]]}`)
		case strings.Contains(r.URL.Path, "binary"):
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf; x=application/json")
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<18))
		default:
			_, _ = io.WriteString(w, ordinary)
		}
	}))
	defer server.Close()
	connect := func() Clients {
		config := &rest.Config{Host: server.URL + "/edge/"}
		LimitMemory(config, limit, full)
		clients, err := connectTo(config, "test", 1e6, 1e6)
		require.NoError(t, err)
		return clients
	}
	get := func(c Clients, name string) (*unstructured.Unstructured, error) {
		return c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("plant").Get(t.Context(), name, metav1.GetOptions{})
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for shape := range shapes {
		t.Run("hostile "+shape, func(t *testing.T) {
			c, before := connect(), heap()
			var held []*unstructured.Unstructured
			for {
				u, err := get(c, fmt.Sprintf("hostile.%s.%d", strings.ReplaceAll(shape, " ", "-"), len(held)))
				if err != nil {
					require.ErrorIs(t, err, full)
					break
				}
				held = append(held, u)
			}
			after := heap()
			t.Logf("%d objects take %d of %d KiB", len(held), (after-before)>>10, limit>>10)
			assert.Less(t, after-before, int64(limit*3/2))
			runtime.KeepAlive(held)
		})
	}
	t.Run("ordinary objects", func(t *testing.T) {
		c := connect()
		for i := range 200 { // 2 MiB of text
			_, err := get(c, fmt.Sprint("a-", i))
			require.NoError(t, err)
		}
	})
	t.Run("the same object again", func(t *testing.T) {
		c := connect()
		for range 20 {
			_, err := get(c, "hostile.keys")
			require.NoError(t, err)
		}
	})
	t.Run("kinds", func(t *testing.T) {
		_, err := connect().Core.Discovery().ServerGroups()
		assert.ErrorIs(t, err, full)
	})
	t.Run("another encoding", func(t *testing.T) {
		_, err := connect().Core.CoreV1().ConfigMaps("plant").Get(t.Context(), "binary", metav1.GetOptions{})
		assert.ErrorIs(t, err, full)
	})
}

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
		BypassProxy(config, func(name string) string { return pod[name] })
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

// U5: no client of an API server sends a second request because an answer is a redirect.
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
