package kube

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Clients are the clients of an API server.
type Clients struct {
	Config  *rest.Config
	Core    Core
	Dynamic dynamic.Interface
	// Clock is the clock of the API server; nil means the clock of this node.
	Clock *Clock
}

// Now returns the time by the clock of the API server.
func (c Clients) Now() time.Time { return c.Clock.Now() }

// Connect returns clients for a kubeconfig file, or for the service account of the pod if kubeconfig is "". It does not connect
// yet. agent is the user agent of the requests ("stoker-agent/v1.2").
func Connect(kubeconfig, agent string) (Clients, error) {
	config, err := findConfig(kubeconfig, rest.InClusterConfig)
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	return ConnectTo(config, agent)
}

// findConfig finds the API server. A pod reaches it inside the cluster, so findConfig ignores the proxy of the environment, which
// is meant for git.
func findConfig(kubeconfig string, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	config, err := inCluster()
	if err != nil {
		return nil, err
	}
	config.Proxy = noProxy
	return config, nil
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// Directly disables the proxy of the environment in config, if config names no proxy and its host is the API server of the pod that
// env describes. It is for configurations that were found in another way than by Connect, for example as kubectl finds them.
func Directly(config *rest.Config, env func(string) string) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host != "" && config.Proxy == nil && config.Host == "https://"+net.JoinHostPort(host, port) {
		config.Proxy = noProxy
	}
}

// ConnectTo returns clients for a copy of config. They follow no redirect.
func ConnectTo(config *rest.Config, agent string) (Clients, error) {
	return connectTo(config, agent, 20, 40)
}

// RequestTimeout is longer than the API server works on a request, which it ends after a minute. If it is overloaded, it carries requests out and
// answers late: a client that gives up earlier and repeats a request adds to the load. client-go finds a dead connection earlier.
const RequestTimeout = 65 * time.Second

// WithRate returns clients of the same API server with connections and a rate limit of their own. timeout bounds each request; 0 means
// no bound.
func (c Clients) WithRate(perSecond float32, burst int, timeout time.Duration) (Clients, error) {
	config := rest.CopyConfig(c.Config)
	config.RateLimiter, config.Timeout = nil, timeout
	return connectTo(config, config.UserAgent, perSecond, burst)
}

func connectTo(config *rest.Config, agent string, perSecond float32, burst int) (Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	config.QPS, config.Burst = perSecond, burst
	clock := &Clock{}
	config.Wrap(clock.transport)
	config.Wrap(refuseRedirects)
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	shared, err := rest.HTTPClientFor(config) // one client, because client-go does not share connections if Proxy is set
	if err != nil {
		return Clients{}, err
	}
	core, err := newCore(config, shared)
	if err != nil {
		return Clients{}, err
	}
	plain := rest.CopyConfig(config) // custom resources have no protobuf encoding
	plain.ContentType, plain.AcceptContentTypes = "", ""
	dyn, err := dynamic.NewForConfigAndClient(plain, shared)
	if err != nil {
		return Clients{}, err
	}
	return Clients{Config: config, Core: core, Dynamic: dyn, Clock: clock}, nil
}

// MetadataOf returns a client that reads only the metadata of objects.
func MetadataOf(c Clients) (metadata.Interface, error) { return metadata.NewForConfig(c.Config) }

// Accounts returns a function that returns clients that impersonate a ServiceAccount. They share the connections of c, whose user needs
// the right to impersonate the account. Impersonation in the config of c has no effect on them.
func (c Clients) Accounts() (func(namespace, name string) (Clients, error), error) {
	own, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return nil, err
	}
	return func(namespace, name string) (Clients, error) {
		return ConnectTo(&rest.Config{
			Host: c.Config.Host, APIPath: c.Config.APIPath, Transport: own.Transport, WarningHandler: rest.NoWarnings{},
			Impersonate: rest.ImpersonationConfig{UserName: AccountUser(namespace, name)},
		}, c.Config.UserAgent)
	}, nil
}

// AccountUser returns the user name of a ServiceAccount.
func AccountUser(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}
