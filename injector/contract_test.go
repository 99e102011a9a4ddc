package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

// The injector must set only variables that the agent documents, and all required ones.
func TestTheEnvironmentIsTheOneThatTheAgentDocuments(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "../docs/agent.md"), "\n### Environment\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows := reference.Rows(section, 2)
	require.NotEmpty(t, rows)
	files, err := filepath.Glob("inject/testdata/golden/*/patch.json")
	require.NoError(t, err)
	written := map[string]bool{}
	for _, file := range files {
		var ops []inject.Op
		require.NoError(t, json.Unmarshal([]byte(readFile(t, file)), &ops))
		if len(ops) == 0 {
			continue
		}
		own := map[string]bool{}
		for _, v := range container(t, ops).Env {
			own[v.Name], written[v.Name] = true, true
			if !strings.HasPrefix(v.Name, "STOKER_SUBPATH_") { // referenced by a subPathExpr of the pod
				assert.Contains(t, rows, v.Name, "docs/agent.md does not list it")
			}
		}
		for name, row := range rows {
			if row[0] == "required" {
				assert.True(t, own[name], "%s: the agent needs %s", file, name)
			}
		}
	}
	for name := range rows {
		assert.True(t, written[name], "the injector never sets %s", name)
	}
}

// SECRETS must list exactly the mounted keys, because the agent treats all other keys as unavailable.
func TestTheListOfSecretsIsWhatThePodMounts(t *testing.T) {
	files, err := filepath.Glob("inject/testdata/golden/*/patch.json")
	require.NoError(t, err)
	several := false
	for _, file := range files {
		var ops []inject.Op
		require.NoError(t, json.Unmarshal([]byte(readFile(t, file)), &ops))
		if len(ops) == 0 {
			continue
		}
		var volumes []string
		for _, op := range ops {
			raw, err := json.Marshal(op.Value)
			require.NoError(t, err)
			var list []corev1.Volume
			if json.Unmarshal(raw, &list) != nil {
				var one corev1.Volume
				if json.Unmarshal(raw, &one) != nil {
					continue
				}
				list = append(list, one)
			}
			for _, v := range list {
				if strings.HasPrefix(op.Path, "/spec/volumes") && v.Secret != nil && strings.HasPrefix(v.Name, "stoker-") {
					for _, item := range v.Secret.Items {
						assert.Equal(t, item.Key, item.Path)
						volumes = append(volumes, v.Secret.SecretName+"/"+item.Key)
					}
				}
			}
		}
		env := map[string]string{}
		agent := container(t, ops)
		for _, v := range agent.Env {
			env[v.Name] = v.Value
		}
		assert.Equal(t, strings.Join(volumes, ","), env["SECRETS"], file)
		several = several || len(volumes) > 2
		for _, id := range volumes {
			name, _, _ := strings.Cut(id, "/")
			assert.True(t, slices.ContainsFunc(agent.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == env["SECRETS_DIR"]+"/"+name }), "%s: %s", file, id)
		}
	}
	assert.True(t, several, "some pod mounts several")
}

// container returns the agent's container from a patch.
func container(t *testing.T, ops []inject.Op) corev1.Container {
	t.Helper()
	for _, op := range ops {
		if !strings.HasPrefix(op.Path, "/spec/initContainers") {
			continue
		}
		raw, err := json.Marshal(op.Value)
		require.NoError(t, err)
		var one corev1.Container
		if list := []corev1.Container{}; json.Unmarshal(raw, &list) == nil {
			return list[0]
		}
		require.NoError(t, json.Unmarshal(raw, &one))
		return one
	}
	t.Fatal("no container")
	return corev1.Container{}
}

// maxBinary is a ceiling, not a goal. Most of the size is client-go.
const maxBinary = 40 << 20

func TestTheReleaseBinaryStaysSmall(t *testing.T) { program.Small(t, "injector", maxBinary) }
