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
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// kubeconfig returns a kubeconfig as JSON with more fields of its cluster and its user.
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

// G10: no kubeconfig makes a panic, or a configuration that reads a file or starts a program.
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
		config := &rest.Config{Host: server.URL + "/edge/", QPS: -1}
		LimitMemory(config, limit, full)
		clients, err := connectTo(config, "test", -1, 0)
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
