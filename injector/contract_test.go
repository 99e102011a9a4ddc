package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/podcase"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

// added returns the agent's container and the volumes that the injector adds to the pod of a case.
func added(t *testing.T, c podcase.Case) (agent corev1.Container, volumes []corev1.Volume) {
	t.Helper()
	gs, _ := inject.Choose(c.Pod, inject.Candidates{Read: c.GatewaySyncs})
	ops, decision := inject.Patch(c.Pod, gs, inject.Defaults{Image: v1alpha1.AgentImage{Repository: "ghcr.io/stoker-io/agent", Tag: "1.2.3"}})
	require.True(t, decision.Injected, decision.Message)
	for _, op := range ops {
		switch value := op.Value.(type) {
		case corev1.Container:
			agent = value
		case []corev1.Container:
			agent = value[0]
		case corev1.Volume:
			volumes = append(volumes, value)
		case []corev1.Volume:
			volumes = append(volumes, value...)
		}
	}
	require.Equal(t, inject.Container, agent.Name)
	return agent, volumes
}

// The injector must set only variables that the agent documents, and all required ones.
func TestAgentEnvironmentIsDocumented(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "../docs/reference/agent.md"), "\n### Environment\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows := reference.Rows(section, 2)
	require.NotEmpty(t, rows)
	written := map[string]bool{}
	for _, c := range podcase.All(t, "inject/testdata") {
		t.Run(c.Name, func(t *testing.T) {
			agent, _ := added(t, c)
			own := map[string]bool{}
			for _, v := range agent.Env {
				own[v.Name], written[v.Name] = true, true
				if !strings.HasPrefix(v.Name, "STOKER_SUBPATH_") { // referenced by a subPathExpr of the pod
					assert.Contains(t, rows, v.Name, "docs/reference/agent.md does not list it")
				}
			}
			for name, row := range rows {
				if row[0] == "required" {
					assert.True(t, own[name], "the agent needs %s", name)
				}
			}
		})
	}
	for name := range rows {
		assert.True(t, written[name], "the injector never sets %s", name)
	}
}

// SECRETS must list exactly the mounted keys, because the agent treats all other keys as unavailable.
func TestSecretsVariable(t *testing.T) {
	several := false
	for _, c := range podcase.All(t, "inject/testdata") {
		t.Run(c.Name, func(t *testing.T) {
			agent, volumes := added(t, c)
			var keys []string
			for _, v := range volumes {
				if m := v.ConfigMap; m != nil && strings.HasPrefix(v.Name, "stoker-secret-") {
					for _, item := range m.Items {
						assert.Equal(t, item.Key, item.Path)
						keys = append(keys, "configmap_"+m.Name+"/"+item.Key)
					}
				}
				if v.Secret == nil {
					continue
				}
				for _, item := range v.Secret.Items {
					assert.Equal(t, item.Key, item.Path)
					keys = append(keys, v.Secret.SecretName+"/"+item.Key)
				}
			}
			env := map[string]string{}
			for _, v := range agent.Env {
				env[v.Name] = v.Value
			}
			assert.Equal(t, strings.Join(keys, ","), env["SECRETS"])
			several = several || len(keys) > 2
			for _, id := range keys {
				name, _, _ := strings.Cut(id, "/")
				assert.True(t, slices.ContainsFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == env["SECRETS_DIR"]+"/"+name }), id)
			}
		})
	}
	assert.True(t, several, "at least one case must mount several keys")
}

// maxBinary is a ceiling, not a goal. Most of the size is client-go.
const maxBinary = 40 << 20

func TestReleaseBinarySize(t *testing.T) { program.Small(t, "injector", maxBinary) }
