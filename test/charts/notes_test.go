package charts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// Following the notes is enough: the API server accepts the GatewaySync, and an annotated gateway gets its
// agent.
func TestNotesLeadToAgent(t *testing.T) {
	t.Parallel()
	s := installed(t)
	r, err := install(t, nil)
	require.NoError(t, err)
	shown := func(from, to string) []byte {
		_, text, found := strings.Cut(r.Info.Notes, from)
		require.True(t, found, from)
		text, _, _ = strings.Cut(text, to)
		return []byte(text)
	}
	o := parseOne(t, string(shown("kubectl apply -n NAMESPACE -f - <<'YAML'\n", "     YAML\n")))
	o.SetNamespace(s.Namespace(t))
	o, err = s.apply(t.Context(), o, false)
	require.NoError(t, err)
	var gs v1alpha1.GatewaySync
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &gs))

	pod := plainPod(nil, nil)
	require.NoError(t, yaml.UnmarshalStrict(shown("(spec.template of a StatefulSet):\n\n", "\n\n"), pod))
	pod.Namespace = gs.Namespace
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: inject.IgnitionData}}
	chosen, decision := inject.Choose(pod, inject.Candidates{Read: []*v1alpha1.GatewaySync{&gs}})
	require.NotNil(t, chosen, decision.Message)
	_, decision = inject.Patch(pod, chosen, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "agent", Tag: "1"}})
	assert.True(t, decision.Injected, decision.Message)
	assert.Empty(t, decision.Warnings)
}
