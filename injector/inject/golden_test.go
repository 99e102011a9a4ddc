package inject_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

var update = flag.Bool("update", false, "write the golden files anew")

var defaults = inject.Defaults{
	Image:         v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent", Tag: "1.2.3", PullPolicy: corev1.PullIfNotPresent},
	AllowedImages: []string{"registry.example.com/trusted"},
	Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	},
}

// scene is a pod and the GatewaySyncs of its namespace.
type scene struct {
	pod *corev1.Pod
	raw []byte // the pod as JSON
	all []*v1alpha1.GatewaySync
}

func (s scene) patch() ([]inject.Op, inject.Decision) { return decide(s.pod, s.all) }

func decide(pod *corev1.Pod, all []*v1alpha1.GatewaySync) ([]inject.Op, inject.Decision) {
	if !inject.Wanted(pod.Annotations) || inject.Has(pod) {
		return inject.Patch(pod, nil, defaults)
	}
	gs, decision := inject.Choose(pod, all)
	if gs == nil {
		return nil, decision
	}
	return inject.Patch(pod, gs, defaults)
}

func readScene(t *testing.T, file string) scene {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var s scene
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return s
		}
		require.NoError(t, err)
		raw, err := yaml.YAMLToJSONStrict(document)
		require.NoError(t, err)
		var head struct{ Kind string }
		require.NoError(t, json.Unmarshal(raw, &head))
		switch head.Kind {
		case "Pod":
			s.raw, s.pod = raw, &corev1.Pod{}
			require.NoError(t, yaml.UnmarshalStrict(raw, s.pod))
		case v1alpha1.Kind:
			gs := &v1alpha1.GatewaySync{}
			require.NoError(t, yaml.UnmarshalStrict(raw, gs))
			s.all = append(s.all, gs)
		}
	}
}

func scenes(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/golden/*/input.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 40)
	return files
}

// apply patches the pod as the API server does.
func apply(t *testing.T, raw []byte, ops []inject.Op) (*corev1.Pod, []byte) {
	t.Helper()
	if len(ops) > 0 {
		encoded, err := json.Marshal(ops)
		require.NoError(t, err)
		patch, err := jsonpatch.DecodePatch(encoded)
		require.NoError(t, err)
		raw, err = patch.Apply(raw)
		require.NoError(t, err)
	}
	pod := &corev1.Pod{}
	require.NoError(t, json.Unmarshal(raw, pod))
	return pod, raw
}

func golden(t *testing.T, file string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, append(got, '\n'), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run go test -update")
	assert.JSONEq(t, string(want), string(got))
}

// I9, I1, I6: every kind of pod gets its patch or the reason against it. Patched pods pass the Pod Security Standard restricted. A
// second admission changes nothing.
func TestEveryPodGetsItsPatchOrItsReason(t *testing.T) {
	seen := map[v1alpha1.Reason]bool{}
	for _, file := range scenes(t) {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s := readScene(t, file)
			before := s.pod.DeepCopy()
			ops, decision := s.patch()
			assert.Equal(t, before, s.pod, "Patch changed its argument")
			golden(t, filepath.Join(dir, "patch.json"), ops)
			golden(t, filepath.Join(dir, "report.json"), decision)
			seen[decision.Reason] = true

			pod, _ := apply(t, s.raw, ops)
			assert.Equal(t, decision.Injected, len(ops) > 0)
			if !decision.Injected {
				assert.Equal(t, v1alpha1.ClassNotInjected, classOf(decision.Reason))
				assert.NotEmpty(t, decision.Message)
				return
			}
			assert.Equal(t, inject.Container, pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Name, "it starts after the pod's own init containers")
			restricted(t, pod)

			again, second := decide(pod, s.all)
			assert.Empty(t, again)
			assert.Equal(t, v1alpha1.ReasonAlreadyInjected, second.Reason)
		})
	}
	for _, r := range v1alpha1.Reasons {
		if r.Class == v1alpha1.ClassNotInjected && !notOfThePod[r.Reason] {
			assert.True(t, seen[r.Reason], "no pod here is left out for %s", r.Reason)
		}
	}
}

// classOf returns the class of a reason, except that ProfileNotFound counts as a reason against injection.
func classOf(r v1alpha1.Reason) v1alpha1.Class {
	if r == v1alpha1.ReasonProfileNotFound {
		return v1alpha1.ClassNotInjected
	}
	return r.Class()
}

// restricted checks a pod with the Pod Security evaluator of the API server.
func restricted(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	pod = pod.DeepCopy()
	pod.Spec.HostNetwork = false // set by the pod itself; such a pod violates the standard even without an agent
	for _, r := range evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		assert.True(t, r.Allowed, "%s: %s", r.ForbiddenReason, r.ForbiddenDetail)
	}
}

// notOfThePod lists reasons that do not follow from a pod and its GatewaySync.
var notOfThePod = map[v1alpha1.Reason]bool{v1alpha1.ReasonNamespaceExcluded: true, v1alpha1.ReasonMissingSidecar: true}
