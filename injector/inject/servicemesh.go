package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// meshes are the init containers by which a service mesh redirects connections, or verifies that its CNI plugin did, and the
// proxies that receive these connections.
var meshes = []struct{ redirect, proxy string }{
	{"istio-init", "istio-proxy"}, {"istio-validation", "istio-proxy"},
	{"linkerd-init", "linkerd-proxy"}, {"linkerd-network-validator", "linkerd-proxy"},
}

// warnMesh warns about a proxy that starts after the agent. Until it runs, the agent has no network, and the kubelet's probes
// of the agent fail. A proxy that is a native sidecar starts before the agent.
func (s *sidecar) warnMesh() {
	has := func(name string) bool {
		return slices.ContainsFunc(s.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	}
	for _, m := range meshes {
		if has(m.redirect) && !has(m.proxy) {
			s.warn("%s redirects connections to %s, which starts after the agent, so the gateway starts late: make the proxy a native sidecar (docs/how-to/pods.md, Service meshes)", m.redirect, m.proxy)
		}
	}
}
