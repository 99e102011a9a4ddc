package inject_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/podcase"
)

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
