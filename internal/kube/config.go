package kube

import (
	"fmt"

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
}

// Connect makes clients from a kubeconfig file, or, where none is named, from the pod that this runs in. Nothing is
// dialled yet. agent names the program in requests ("stoker-agent/v1.2").
func Connect(kubeconfig, agent string) (Clients, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	return ConnectTo(config, agent)
}

// ConnectTo makes clients from a configuration, which is copied.
func ConnectTo(config *rest.Config, agent string) (Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	config.QPS, config.Burst = 20, 40
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Clients{}, err
	}
	plain := rest.CopyConfig(config) // custom resources are served as JSON
	plain.ContentType, plain.AcceptContentTypes = "", ""
	dyn, err := dynamic.NewForConfig(plain)
	if err != nil {
		return Clients{}, err
	}
	return Clients{Config: config, Core: core, Dynamic: dyn}, nil
}
