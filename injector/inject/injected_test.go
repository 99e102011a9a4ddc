package inject_test

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/podcase"
)

var update = flag.Bool("update", false, "write the expected decisions and pods into testdata")

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
	name string
	pod  *corev1.Pod
	raw  []byte // the pod as JSON
	all  inject.Candidates
}

func (s scene) patch() ([]inject.Op, inject.Decision) { return decide(s.pod, s.all) }

func sceneOf(c podcase.Case) scene {
	return scene{c.Name, c.Pod, c.Raw, inject.Candidates{Read: c.GatewaySyncs}}
}

// named returns a case of testdata.
func named(tb testing.TB, name string) scene {
	tb.Helper()
	return sceneOf(podcase.Named(tb, "testdata", name))
}

// scenes returns all cases of testdata.
func scenes(tb testing.TB) []scene {
	tb.Helper()
	var list []scene
	for _, c := range podcase.All(tb, "testdata") {
		list = append(list, sceneOf(c))
	}
	require.Greater(tb, len(list), 20)
	return list
}

func decide(pod *corev1.Pod, all inject.Candidates) ([]inject.Op, inject.Decision) {
	if !inject.Requested(pod.Annotations) || inject.Has(pod) {
		return inject.Patch(pod, nil, defaults)
	}
	gs, decision := inject.Choose(pod, all)
	if gs == nil {
		return nil, decision
	}
	return inject.Patch(pod, gs, defaults)
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

// I9, I1, I6: each case of testdata gets exactly the expected pod. It passes the Pod Security Standard restricted, and a second
// admission does not change it.
//
// To add a case, add its input to one of the archives in testdata: <case>/pod.yaml is a strategic merge patch of the pod in
// testdata/base.yaml, <case>/gatewaysync.yaml a JSON merge patch of the GatewaySync. Either may be omitted. Then run
//
//	go test ./injector/inject -run TestInjectedPods -update
//
// and read <case>/decision.yaml and <case>/injected.diff, which it adds. A pod that gets no agent belongs in TestSkippedPods.
func TestInjectedPods(t *testing.T) {
	for _, c := range podcase.All(t, "testdata") {
		t.Run(c.Name, func(t *testing.T) {
			s := sceneOf(c)
			before := s.pod.DeepCopy()
			ops, decision := s.patch()
			assert.Equal(t, before, s.pod, "Patch must not change its argument")
			require.True(t, decision.Injected, decision.Message)
			assert.Empty(t, decision.Reason)
			pod, _ := apply(t, s.raw, ops)
			c.Check(t, "testdata", decision, pod, *update)
			assert.Equal(t, inject.Container, pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1].Name, "the agent must start after the pod's own init containers")
			restricted(t, pod)

			again, second := decide(pod, s.all)
			assert.Empty(t, again)
			assert.Equal(t, v1alpha1.ReasonAlreadyInjected, second.Reason)
		})
	}
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

// I5: whatever the annotations of a pod request, its agent has the same image, account and permissions as every agent. A warning
// tells the author of the pod.
func TestAnnotationsGrantNoPrivileges(t *testing.T) {
	patched := func(t *testing.T, key, value string) (string, inject.Decision) {
		s := named(t, podcase.Base)
		if key != "" {
			s.pod.Annotations[key] = value
		}
		ops, decision := decide(s.pod, s.all)
		require.True(t, decision.Injected, "%s: %s", key, decision.Message)
		raw, err := json.Marshal(s.pod)
		require.NoError(t, err)
		pod, _ := apply(t, raw, ops)
		restricted(t, pod)
		delete(pod.Annotations, key)
		after, err := json.Marshal(pod)
		require.NoError(t, err)
		return string(after), decision
	}
	plain, decision := patched(t, "", "")
	require.Empty(t, decision.Warnings)
	for key, value := range map[string]string{
		v1alpha1.AnnotationAgentImage:          "evil.example/agent:1",
		"ignition-sync.io/agent-image":         "evil.example/agent:1",
		"stoker.io/image":                      "evil.example/agent:1",
		"stoker.io/host-path":                  "/etc",
		"stoker.io/hostPath":                   "/etc",
		"stoker.io/volumes":                    `[{"name":"x","hostPath":{"path":"/"}}]`,
		"stoker.io/volume-mounts":              `[{"name":"x","mountPath":"/host"}]`,
		"stoker.io/privileged":                 "true",
		"stoker.io/security-context":           `{"privileged":true}`,
		"stoker.io/run-as-user":                "0",
		"stoker.io/capabilities":               "SYS_ADMIN",
		"stoker.io/service-account":            "cluster-admin",
		"stoker.io/service-account-name":       "cluster-admin",
		"ignition-sync.io/serviceaccount":      "cluster-admin",
		"stoker.io/args":                       "--kubeconfig=/etc/admin.conf",
		"stoker.io/env":                        "SECRETS_DIR=/",
		"stoker.io/" + strings.Repeat("x", 63): "true",
	} {
		t.Run(key, func(t *testing.T) {
			after, decision := patched(t, key, value)
			assert.Equal(t, plain, after)
			require.Len(t, decision.Warnings, 1)
			_, name, _ := strings.Cut(key, "/")
			assert.Contains(t, decision.Warnings[0], name[:min(len(name), 40)])
			assert.Contains(t, decision.Warnings[0], "ignored")
		})
	}
	s := named(t, podcase.Base)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.pod.Annotations["stoker.io/"+name] = "x"
	}
	s.pod.Annotations["example.com/privileged"] = "theirs"
	_, decision = decide(s.pod, s.all)
	assert.Equal(t, []string{`unknown annotations are ignored: "stoker.io/a", "stoker.io/b", "stoker.io/c", and 2 more`}, decision.Warnings)
}

// The annotation can only select a volume of the pod itself.
func TestDataVolumeAnnotationSelectsOwnVolume(t *testing.T) {
	for _, value := range []string{"/etc", "../x", "host", `{"hostPath":{"path":"/"}}`, "stoker-token"} {
		t.Run(value, func(t *testing.T) {
			s := named(t, podcase.Base)
			s.pod.Annotations[v1alpha1.AnnotationDataVolume] = value
			ops, decision := s.patch()
			assert.Empty(t, ops)
			assert.False(t, decision.Injected)
			assert.Equal(t, v1alpha1.ReasonNoDataVolume, decision.Reason)
		})
	}
}
