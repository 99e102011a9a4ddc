// Package agentstest simulates agents behind the pod proxy and exec of a real API server. The test clusters have no nodes, so their pods
// have no address and the real pod proxy cannot reach them.
package agentstest

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/kube/podexec/podexectest"
	"stoker.io/stoker/test/cluster/kubetest"
)

// Proxy is an HTTP server in front of an API server. It answers requests for the state of agents, and for pods/exec of pods with a program
// (see Execute). It forwards all others.
type Proxy struct {
	server       *httptest.Server
	mu           sync.Mutex
	bodies       map[string]string              // by namespace/pod:port and the path below /state
	programs     map[string]podexectest.Program // of agents, by namespace/pod
	read         map[string]bool                // GatewaySyncs that a client has read, as namespace/name
	requestPaths []string                       // paths of all requests
}

// New returns a Proxy that forwards to a cluster with all permissions.
func New(t testing.TB, cluster *kubetest.Cluster) *Proxy {
	t.Helper()
	config := cluster.RESTConfig()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	target, err := url.Parse(config.Host)
	require.NoError(t, err)
	p := &Proxy{bodies: map[string]string{}, programs: map[string]podexectest.Program{}, read: map[string]bool{}}
	forward := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requestPaths = append(p.requestPaths, r.URL.Path)
		p.mu.Unlock()
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api/v1/namespaces/NS/pods/http:POD:8082/proxy/state
		if len(parts) == 7 && parts[6] == "exec" {
			p.mu.Lock()
			program, ok := p.programs[parts[3]+"/"+parts[5]]
			p.mu.Unlock()
			if ok {
				podexectest.Serve(w, r, program)
				return
			}
		}
		if len(parts) < 8 || parts[6] != "proxy" || parts[7] != "state" {
			forward.ServeHTTP(w, r)
			if r.Method == http.MethodGet && len(parts) == 7 && parts[5] == kube.GatewaySync.Plural {
				p.mu.Lock()
				p.read[parts[4]+"/"+parts[6]] = true
				p.mu.Unlock()
			}
			return
		}
		p.mu.Lock()
		body, ok := p.bodies[strings.Join(append([]string{parts[3], strings.TrimPrefix(parts[5], "http:")}, parts[8:]...), "/")]
		p.mu.Unlock()
		if !ok {
			http.Error(w, "no agent", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(body)) // the client may have disconnected
	}))
	t.Cleanup(func() {
		p.server.CloseClientConnections() // ends open watches
		p.server.Close()
	})
	return p
}

// Answer sets the body that the agent in a pod returns for /state. pod may be POD, POD:PORT, or POD:PORT/PATH for a path below
// /state. The default port is 8082.
func (p *Proxy) Answer(namespace, pod, body string) {
	if !strings.Contains(pod, ":") {
		pod += ":8082"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bodies[namespace+"/"+pod] = body
}

// Execute makes a pod run a program for requests of pods/exec.
func (p *Proxy) Execute(namespace, pod string, program podexectest.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.programs[namespace+"/"+pod] = program
}

// IsRead reports whether a client has read a GatewaySync.
func (p *Proxy) IsRead(namespace, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read[namespace+"/"+name]
}

// RequestPaths returns the paths of all requests so far.
func (p *Proxy) RequestPaths() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.requestPaths...)
}

// Stop makes the API server unreachable.
func (p *Proxy) Stop() {
	_ = p.server.Listener.Close()
	p.server.CloseClientConnections()
}

// Config returns a client configuration for the proxy.
func (p *Proxy) Config() *rest.Config { return &rest.Config{Host: p.server.URL} }

// Kubeconfig adds the context "proxied", which uses the proxy, to the kubeconfig in file.
func (p *Proxy) Kubeconfig(file, namespace string) error {
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return err
	}
	config.Clusters["proxied"] = &api.Cluster{Server: p.server.URL}
	config.AuthInfos["proxied"] = &api.AuthInfo{}
	config.Contexts["proxied"] = &api.Context{Cluster: "proxied", AuthInfo: "proxied", Namespace: namespace}
	return clientcmd.WriteToFile(*config, file)
}
