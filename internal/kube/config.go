package kube

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Clients are the ways to the API server.
type Clients struct {
	Config  *rest.Config
	Core    kubernetes.Interface
	Dynamic dynamic.Interface
	// Clock is the API server's; nil for this node's.
	Clock *Clock
}

// Now is the time by the clock of the API server.
func (c Clients) Now() time.Time { return c.Clock.Now() }

// Connect makes clients from a kubeconfig file, or, where none is named, from the pod that this runs in. Nothing is
// dialled yet. agent names the program in requests ("stoker-agent/v1.2").
func Connect(kubeconfig, agent string) (Clients, error) {
	config, err := configure(kubeconfig, rest.InClusterConfig)
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	return ConnectTo(config, agent)
}

// configure finds the API server. From a pod the way to it leads through the cluster: a proxy in the environment, which is for
// git, does not know its address.
func configure(kubeconfig string, inCluster func() (*rest.Config, error)) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	config, err := inCluster()
	if err != nil {
		return nil, err
	}
	config.Proxy = unproxied
	return config, nil
}

func unproxied(*http.Request) (*url.URL, error) { return nil, nil }

// Directly is for who has found the API server otherwise, as kubectl does: where it is the pod's own, which env tells of, and
// nobody has named a proxy for it, it is asked without one, too. It changes config.
func Directly(config *rest.Config, env func(string) string) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host != "" && config.Proxy == nil && config.Host == "https://"+net.JoinHostPort(host, port) {
		config.Proxy = unproxied
	}
}

// ConnectTo makes clients from a configuration, which is copied.
func ConnectTo(config *rest.Config, agent string) (Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	config.QPS, config.Burst = 20, 40
	clock := &Clock{}
	config.Wrap(clock.told)
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	both, err := rest.HTTPClientFor(config) // one connection: client-go shares none where a proxy, or none, was named
	if err != nil {
		return Clients{}, err
	}
	core, err := kubernetes.NewForConfigAndClient(config, both)
	if err != nil {
		return Clients{}, err
	}
	plain := rest.CopyConfig(config) // custom resources are served as JSON
	plain.ContentType, plain.AcceptContentTypes = "", ""
	dyn, err := dynamic.NewForConfigAndClient(plain, both)
	if err != nil {
		return Clients{}, err
	}
	return Clients{Config: config, Core: core, Dynamic: dyn, Clock: clock}, nil
}
