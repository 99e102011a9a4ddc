package configsync

import (
	"cmp"
	"context"
	"net/url"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

const (
	// dialTimeout bounds a connection to another cluster.
	dialTimeout = 10 * time.Second
	// maxAnswers bounds the memory of what another cluster answers in a run, in bytes, if several ConfigSyncs share the program.
	maxAnswers = 192 << 20
)

// clusterClients returns clients of the cluster in which the objects of a ConfigSync are: that of spec.kubeConfig, or else that of the given
// clients. The caller's rights decide whether the Secret may be read.
func (e *Engine) clusterClients(ctx context.Context, cs *v1alpha1.ConfigSync, own kube.Clients) (kube.Clients, error) {
	if cs.Spec.KubeConfig == nil {
		return own, nil
	}
	ref := cs.Spec.KubeConfig.SecretRef
	key := cmp.Or(ref.Key, v1alpha1.DefaultKubeConfigKey)
	data, err := e.secretReader(cs)(ctx, ref.Name)
	if err != nil {
		return kube.Clients{}, err
	}
	invalid := func(format string, args ...any) error {
		return failure.New(v1alpha1.ReasonManifestInvalid, "spec.kubeConfig: key %s of Secret %s: "+format, append([]any{failure.Quote(key), ref.Name}, args...)...)
	}
	text, there := data[key]
	if !there {
		return kube.Clients{}, failure.New(v1alpha1.ReasonSourceMissing, "spec.kubeConfig: Secret %s has no key %s: add it, or correct the spec", ref.Name, failure.Quote(key))
	}
	documents, err := manifest.Documents("kubeconfig", text)
	if err != nil || len(documents) != 1 {
		return kube.Clients{}, invalid("it is not a kubeconfig, which is one document of YAML")
	}
	config, err := kube.ParseKubeconfig(documents[0].JSON, e.Remote.Guard.Dialer(dialTimeout).DialContext)
	if err != nil {
		return kube.Clients{}, invalid("%w", err)
	}
	server, err := url.Parse(config.Host)
	if err == nil {
		err = e.Remote.Guard.CheckProxied(ctx, server.Hostname())
	}
	if err != nil {
		return kube.Clients{}, invalid("server: %w", err)
	}
	if e.StatusClients != nil {
		kube.LimitMemory(config, maxAnswers, failure.New(v1alpha1.ReasonLimitExceeded,
			"spec.kubeConfig: the answers of the server need more than %d MiB of memory: split the ConfigSync", maxAnswers>>20))
	}
	return kube.ConnectTo(config, own.Config.UserAgent)
}
