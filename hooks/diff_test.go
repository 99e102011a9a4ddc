package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// proxied is the real API server with simulated agents behind its pod proxy, because pods have no address in a cluster without
// nodes.
type proxied struct {
	server *httptest.Server
	mu     sync.Mutex
	states map[string]string // namespace/pod:port → body
	read   map[string]bool   // namespace/name of GatewaySyncs that a client read
}

func newProxied(t *testing.T, cluster *kubetest.Cluster) *proxied {
	t.Helper()
	config := cluster.RESTConfig()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	target, err := url.Parse(config.Host)
	require.NoError(t, err)
	p := &proxied{states: map[string]string{}, read: map[string]bool{}}
	through := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api/v1/namespaces/NS/pods/POD:8082/proxy/state
		if len(parts) != 8 || parts[6] != "proxy" || parts[7] != "state" {
			through.ServeHTTP(w, r)
			if r.Method == http.MethodGet && len(parts) == 7 && parts[5] == kube.GatewaySync.Plural {
				p.mu.Lock()
				p.read[parts[4]+"/"+parts[6]] = true
				p.mu.Unlock()
			}
			return
		}
		p.mu.Lock()
		body, ok := p.states[parts[3]+"/"+strings.TrimPrefix(parts[5], "http:")]
		p.mu.Unlock()
		if !ok {
			http.Error(w, "no agent", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(body)) // the client may have disconnected
	}))
	t.Cleanup(p.server.Close)
	return p
}

// answer sets the response of a pod. The port defaults to 8082.
func (p *proxied) answer(namespace, pod, body string) {
	if !strings.Contains(pod, ":") {
		pod += ":" + healthPort
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states[namespace+"/"+pod] = body
}

// isRead reports whether a client has read a GatewaySync through the proxy.
func (p *proxied) isRead(namespace, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read[namespace+"/"+name]
}

// kubeconfig adds a context that uses the proxy.
func (p *proxied) kubeconfig(file, namespace string) error {
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return err
	}
	config.Clusters["proxied"] = &api.Cluster{Server: p.server.URL}
	config.AuthInfos["proxied"] = &api.AuthInfo{}
	config.Contexts["proxied"] = &api.Context{Cluster: "proxied", AuthInfo: "proxied", Namespace: namespace}
	return clientcmd.WriteToFile(*config, file)
}

func TestAgentStateRoundTrip(t *testing.T) {
	commit, err := plan.ParseID(strings.Repeat("ab", 20))
	require.NoError(t, err)
	raw, err := json.Marshal(loop.State{
		GatewayName: "line", Ref: "main", Commit: commit, Drift: &disk.Drift{Files: 1, Paths: []disk.Drifted{{Path: "projects/a/x.json", What: disk.Modified}}},
	})
	require.NoError(t, err)
	var s state
	require.NoError(t, json.Unmarshal(raw, &s))
	assert.Equal(t, "line", s.Gateway)
	assert.Equal(t, "main", s.Ref)
	assert.Equal(t, commit, s.Commit)
	require.NotNil(t, s.Drift)
	require.Len(t, s.Drift.Paths, 1)
	assert.Equal(t, "projects/a/x.json", s.Drift.Paths[0].Path)
	assert.Equal(t, "modified", s.Drift.Paths[0].What)
}
