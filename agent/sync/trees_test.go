package sync_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/trees"
)

// A patch changes every resource of a real gateway. A gateway that verifies all signatures must leave each one unchanged. The
// simulator computes the signatures independently.
func TestPatchedRealTreeIsStable(t *testing.T) {
	files := trees.Files(t, trees.Gateway83(t))
	b := newBench(t, simulator.Options{Mode: "dev", Unknowns: simulator.Unknowns{SignConfig: true}})
	b.engine.MaxBlob = 0
	b.target.Facts = plan.Facts{GatewayName: "line-1"}
	b.target.Profile.SystemNameTemplate, b.target.Profile.DeploymentMode = "plant-{{.GatewayName}}", "dev"
	// The permissions of that gateway do not admit our token.
	b.target.Profile.ExcludePatterns = append(v1alpha1.BuiltinExcludes(), "**/security-properties/", "**/api-token/")
	for i := range b.target.Profile.Mappings {
		b.target.Profile.Mappings[i].Patches = []v1alpha1.Patch{{
			File: "**/resource.json", Set: map[string]v1alpha1.PatchValue{"attributes.probe": "{{.GatewayName}}"},
		}}
	}
	b.push(gitserver.Files(files))
	r := b.sync()
	require.Equal(t, b.target.Commit, r.Commit, r.String())
	require.NotEmpty(t, r.Scans, r.String())
	require.Empty(t, b.gw.Data.LoadErrors())

	checked := 0
	for path, content := range files {
		before, err := resource.ParseSigned([]byte(content))
		now := b.read(path)
		if !strings.HasSuffix(path, "/"+resource.File) || err != nil || before.Stored() == "" || !strings.Contains(now, `"probe"`) {
			continue
		}
		after, err := resource.ParseSigned([]byte(now))
		require.NoError(t, err)
		want := string(before.WithSignature(after.Stored()))
		assert.Equal(t, want, withoutProbe(now), "the gateway rewrote %s", path)
		assert.NotEqual(t, before.Stored(), after.Stored())
		checked++
	}
	assert.Greater(t, checked, 400)
	name := b.read("config/resources/core/ignition/system-properties/config.json")
	assert.Contains(t, name, `"systemName": "plant-line-1"`)
}

// withoutProbe removes the patched attribute.
func withoutProbe(resourceJSON string) string {
	before, after, _ := strings.Cut(resourceJSON, ",\n    \"probe\": \"line-1\"")
	return before + after
}
