package inject

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// A mesh proxy in an ordinary container starts after all init containers, and therefore after the agent.
func TestMeshProxyWarning(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		init []corev1.Container
		main []corev1.Container
		warn string
	}{
		"no mesh":                {init: []corev1.Container{{Name: "seed"}}},
		"ordinary proxy":         {init: []corev1.Container{{Name: "istio-init"}}, main: []corev1.Container{{Name: "istio-proxy"}}, warn: "istio-proxy"},
		"native sidecar":         {init: []corev1.Container{{Name: "istio-init"}, {Name: "istio-proxy", RestartPolicy: &always}}},
		"linkerd":                {init: []corev1.Container{{Name: "linkerd-init"}}, main: []corev1.Container{{Name: "linkerd-proxy"}}, warn: "linkerd-proxy"},
		"linkerd native sidecar": {init: []corev1.Container{{Name: "linkerd-init"}, {Name: "linkerd-proxy", RestartPolicy: &always}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sidecar{pod: &corev1.Pod{Spec: corev1.PodSpec{InitContainers: c.init, Containers: c.main}}}
			s.warnMesh()
			if c.warn == "" {
				assert.Empty(t, s.warnings)
			} else if assert.Len(t, s.warnings, 1) {
				assert.Contains(t, s.warnings[0], c.warn)
				assert.Less(t, len(s.warnings[0]), 240, "the API server truncates longer warnings")
			}
		})
	}
}
