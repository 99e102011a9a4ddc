package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// meshes are the init containers by which a service mesh redirects the pod's connections, or checks that its CNI plugin did,
// and the proxies that they are redirected to.
var meshes = []struct{ redirect, proxy string }{
	{"istio-init", "istio-proxy"}, {"istio-validation", "istio-proxy"},
	{"linkerd-init", "linkerd-proxy"}, {"linkerd-network-validator", "linkerd-proxy"},
}

// warnMesh warns of a proxy that starts after the agent: until it runs the agent reaches nobody, and the kubelet not its
// probes. One that is a native sidecar starts before.
func (s *sidecar) warnMesh() {
	there := func(name string) bool {
		return slices.ContainsFunc(s.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	}
	for _, m := range meshes {
		if there(m.redirect) && !there(m.proxy) {
			s.warn("%s redirects connections to %s, which starts after the agent, so that the gateway does not start for long: make it a native sidecar (docs/pods.md, Service meshes)", m.redirect, m.proxy)
		}
	}
}
