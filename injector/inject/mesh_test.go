package inject

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// A mesh proxy in an ordinary container starts after all init containers, and therefore after the agent.
func TestAProxyThatStartsAfterTheAgentIsWarnedOf(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		init []corev1.Container
		main []corev1.Container
		warn string
	}{
		"no mesh":                  {init: []corev1.Container{{Name: "seed"}}},
		"a proxy in the ordinary":  {init: []corev1.Container{{Name: "istio-init"}}, main: []corev1.Container{{Name: "istio-proxy"}}, warn: "istio-proxy"},
		"a native sidecar":         {init: []corev1.Container{{Name: "istio-init"}, {Name: "istio-proxy", RestartPolicy: &always}}},
		"another mesh":             {init: []corev1.Container{{Name: "linkerd-init"}}, main: []corev1.Container{{Name: "linkerd-proxy"}}, warn: "linkerd-proxy"},
		"the other mesh's sidecar": {init: []corev1.Container{{Name: "linkerd-init"}, {Name: "linkerd-proxy", RestartPolicy: &always}}},
	} {
		s := sidecar{pod: &corev1.Pod{Spec: corev1.PodSpec{InitContainers: c.init, Containers: c.main}}}
		s.warnMesh()
		if c.warn == "" {
			assert.Empty(t, s.warnings, name)
		} else if assert.Len(t, s.warnings, 1, name) {
			assert.Contains(t, s.warnings[0], c.warn, name)
			assert.Less(t, len(s.warnings[0]), 240, "an API server shows no more of it")
		}
	}
}
