package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	kinds   = "../resource_customizations/stoker.io"
	scripts = kinds + "/GatewaySync"
	shipped = "../../../charts/stoker/files/argocd"
)

func TestConfigMapsAreCurrent(t *testing.T) {
	patches, err := render(os.DirFS(kinds))
	require.NoError(t, err)
	for name, want := range patches {
		got, err := os.ReadFile(filepath.Join(shipped, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got), "run go generate ./hooks/argocd/...")
	}
}

// Argo CD must run exactly the files that the tests cover, byte for byte.
func TestConfigMapHoldsScripts(t *testing.T) {
	patches, err := render(os.DirFS(kinds))
	require.NoError(t, err)
	var cm struct{ Data map[string]string }
	require.NoError(t, yaml.UnmarshalStrict([]byte(patches["argocd-cm.yaml"]), &struct {
		APIVersion, Kind string
		Metadata         map[string]string
		Data             *map[string]string
	}{Data: &cm.Data}))
	file := func(path string) string {
		text, err := os.ReadFile(filepath.Join(scripts, path))
		require.NoError(t, err)
		return string(text)
	}
	assert.Equal(t, file("health.lua"), cm.Data["resource.customizations.health.stoker.io_GatewaySync"])
	assert.Equal(t, file("../ConfigSync/health.lua"), cm.Data["resource.customizations.health.stoker.io_ConfigSync"])
	var menu struct {
		Discovery   string `json:"discovery.lua"`
		Definitions []struct {
			Name   string `json:"name"`
			Action string `json:"action.lua"`
		} `json:"definitions"`
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.actions.stoker.io_GatewaySync"]), &menu))
	assert.Equal(t, file("actions/discovery.lua"), menu.Discovery)
	folders, err := filepath.Glob(filepath.Join(scripts, "actions", "*", "action.lua"))
	require.NoError(t, err)
	require.Len(t, menu.Definitions, len(folders), "each action with a script must be offered")
	for _, d := range menu.Definitions {
		assert.Equal(t, file("actions/"+d.Name+"/action.lua"), d.Action)
	}
	menu.Definitions = nil
	require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.actions.stoker.io_ConfigSync"]), &menu))
	assert.Equal(t, file("../ConfigSync/actions/discovery.lua"), menu.Discovery)
	require.Len(t, menu.Definitions, 4)
	for _, d := range menu.Definitions {
		assert.Equal(t, file("actions/"+d.Name+"/action.lua"), d.Action, "both kinds must have the same action")
	}
	for _, kind := range []string{"GatewaySync", "ConfigSync"} {
		var updates struct{ JSONPointers []string }
		require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.ignoreResourceUpdates.stoker.io_"+kind]), &updates))
		assert.Equal(t, []string{"/status"}, updates.JSONPointers)
	}
	assert.Len(t, cm.Data, 6)
}
