package inject_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
)

// I5: whatever the annotations of a pod request, its agent has the same image, account and permissions as every agent. A warning
// tells the author of the pod.
func TestNoAnnotationGivesThePodMoreThanEveryAgentHas(t *testing.T) {
	patched := func(key, value string) (string, inject.Decision) {
		s := readScene(t, "testdata/golden/official-chart/input.yaml")
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
	plain, decision := patched("", "")
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
		after, decision := patched(key, value)
		assert.Equal(t, plain, after, key)
		require.Len(t, decision.Warnings, 1, key)
		_, name, _ := strings.Cut(key, "/")
		assert.Contains(t, decision.Warnings[0], name[:min(len(name), 40)], key)
		assert.Contains(t, decision.Warnings[0], "ignored", key)
	}
	s := readScene(t, "testdata/golden/official-chart/input.yaml")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.pod.Annotations["stoker.io/"+name] = "x"
	}
	s.pod.Annotations["example.com/privileged"] = "theirs"
	_, decision = decide(s.pod, s.all)
	assert.Equal(t, []string{`annotations that set nothing about an agent are ignored: "stoker.io/a", "stoker.io/b", "stoker.io/c", and 2 more`}, decision.Warnings)
}

// The annotation can only select a volume of the pod itself.
func TestADataVolumeIsOneOfThePodsOwn(t *testing.T) {
	for _, value := range []string{"/etc", "../x", "host", `{"hostPath":{"path":"/"}}`, "stoker-token"} {
		s := readScene(t, "testdata/golden/official-chart/input.yaml")
		s.pod.Annotations[v1alpha1.AnnotationDataVolume] = value
		ops, decision := decide(s.pod, s.all)
		assert.Empty(t, ops, value)
		assert.False(t, decision.Injected, value)
		assert.Equal(t, v1alpha1.ReasonNoDataVolume, decision.Reason, value)
	}
}
