// Package argocd tests hooks/argocd and examples/argocd with the code of Argo CD 3. The parent module has
// the same tests for Argo CD 2.
package argocd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/health"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	jsonpatch "github.com/evanphx/json-patch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	root    = "../../.."
	scripts = root + "/hooks/argocd/resource_customizations/stoker.io/GatewaySync"
)

// argoCD returns the Lua VM of an Argo CD with the shipped argocd-cm.
func argoCD(t *testing.T) lua.VM {
	t.Helper()
	var cm struct{ Data map[string]string }
	read(t, root+"/kustomize/components/argocd/argocd-cm.yaml", &cm)
	overrides := map[string]v1alpha1.ResourceOverride{}
	for _, kind := range []string{"GatewaySync", "ConfigSync"} {
		overrides["stoker.io/"+kind] = v1alpha1.ResourceOverride{
			HealthLua: cm.Data["resource.customizations.health.stoker.io_"+kind],
			Actions:   cm.Data["resource.customizations.actions.stoker.io_"+kind],
		}
	}
	return lua.VM{ResourceOverrides: overrides}
}

func TestHealth(t *testing.T) {
	vm := argoCD(t)
	for _, folder := range []string{scripts, scripts + "/../ConfigSync"} {
		var tests struct {
			Tests []struct {
				InputPath    string
				HealthStatus health.HealthStatus
			}
		}
		read(t, folder+"/health_test.yaml", &tests)
		require.NotEmpty(t, tests.Tests)
		for _, c := range tests.Tests {
			obj := object(t, folder+"/"+c.InputPath)
			t.Run(obj.GetKind()+"/"+c.InputPath, func(t *testing.T) {
				confirmNow(t, obj)
				script, open, err := vm.GetHealthScript(obj)
				require.NoError(t, err)
				require.False(t, open, "scripts of argocd-cm have no string and no math")
				got, err := vm.ExecuteHealthLua(obj, script)
				require.NoError(t, err)
				assert.Equal(t, &c.HealthStatus, got)
			})
		}
	}
}

// confirmNow sets the lead's confirmation time in the testdata to now, because Argo CD uses the real
// clock. Other times are part of the tests and stay.
func confirmNow(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if at, _, _ := unstructured.NestedString(obj.Object, "status", "confirmedAt"); at == "2026-01-02T12:00:00Z" {
		require.NoError(t, unstructured.SetNestedField(obj.Object, time.Now().UTC().Format(time.RFC3339), "status", "confirmedAt"))
	}
}

func TestDiscovery(t *testing.T) {
	vm := argoCD(t)
	var tests struct {
		DiscoveryTests []struct {
			InputPath string
			Result    []v1alpha1.ResourceAction
		}
	}
	read(t, scripts+"/actions/action_test.yaml", &tests)
	require.NotEmpty(t, tests.DiscoveryTests)
	for _, c := range tests.DiscoveryTests {
		obj := object(t, scripts+"/actions/"+c.InputPath)
		script, err := vm.GetResourceActionDiscovery(obj)
		require.NoError(t, err)
		got, err := vm.ExecuteResourceActionDiscovery(obj, script)
		require.NoError(t, err, c.InputPath)
		assert.ElementsMatch(t, c.Result, got, c.InputPath)
	}
}

func TestActions(t *testing.T) {
	vm := argoCD(t)
	var tests struct {
		ActionTests []struct{ Action, InputPath, ExpectedOutputPath string }
	}
	read(t, scripts+"/actions/action_test.yaml", &tests)
	require.NotEmpty(t, tests.ActionTests)
	for _, c := range tests.ActionTests {
		name := c.Action + " of " + c.InputPath
		obj := object(t, scripts+"/actions/"+c.InputPath)
		action, err := vm.GetResourceAction(obj, c.Action)
		require.NoError(t, err, name)
		impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua, nil)
		require.NoError(t, err, name)
		require.Len(t, impacted, 1)
		require.Equal(t, lua.PatchOperation, impacted[0].K8SOperation)
		want := object(t, scripts+"/actions/"+c.ExpectedOutputPath)
		got := impacted[0].UnstructuredObj
		assert.Equal(t, timeless(t, patch(t, obj, want), false), timeless(t, patch(t, obj, got), true), name)
	}
}

func TestConfigSyncActions(t *testing.T) {
	vm := argoCD(t)
	for name, want := range map[string]string{
		"pause":      `{"metadata":{"annotations":{"stoker.io/paused":"true"}}}`,
		"resume":     `{"metadata":{"annotations":{"stoker.io/paused":null}}}`,
		"force-sync": `{"metadata":{"annotations":{"stoker.io/force-sync":"TIME","stoker.io/requested-at":"TIME","stoker.io/requested-by":"argocd"}}}`,
		"rollback": `{"metadata":{"annotations":{"stoker.io/requested-ref":"1111111111111111111111111111111111111111","stoker.io/requested-over":"1111111111111111111111111111111111111111@main TIME",` +
			`"stoker.io/requested-unless":"2222222222222222222222222222222222222222","stoker.io/requested-at":"TIME","stoker.io/requested-by":"argocd"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			obj := object(t, scripts+"/../ConfigSync/testdata/synced.yaml")
			good, bad := strings.Repeat("1", 40), strings.Repeat("2", 40)
			require.NoError(t, unstructured.SetNestedField(obj.Object, map[string]any{"commit": good}, "status", "lastGood"))
			require.NoError(t, unstructured.SetNestedField(obj.Object, map[string]any{"commit": good, "unless": bad}, "status", "rollback"))
			obj.SetResourceVersion("41")
			notes := map[string]string{"plant.example.com/area": "north"}
			if name == "resume" {
				notes["stoker.io/paused"] = "true"
			}
			obj.SetAnnotations(notes)
			action, err := vm.GetResourceAction(obj, name)
			require.NoError(t, err)
			impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua, nil)
			require.NoError(t, err)
			require.Len(t, impacted, 1)
			assert.JSONEq(t, want, stamp.ReplaceAllString(patch(t, obj, impacted[0].UnstructuredObj), "TIME"))
		})
	}
}

func TestRollbackWithoutTarget(t *testing.T) {
	vm := argoCD(t)
	obj := object(t, scripts+"/actions/testdata/new.yaml")
	action, err := vm.GetResourceAction(obj, "rollback")
	require.NoError(t, err)
	_, err = vm.ExecuteResourceAction(obj, action.ActionLua, nil)
	require.ErrorContains(t, err, "no good commit is known yet")
}

// patch returns the patch that argocd-server sends.
func patch(t *testing.T, before, after *unstructured.Unstructured) string {
	t.Helper()
	a, err := before.MarshalJSON()
	require.NoError(t, err)
	b, err := after.MarshalJSON()
	require.NoError(t, err)
	p, err := jsonpatch.CreateMergePatch(a, b)
	require.NoError(t, err)
	var parts map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(p, &parts))
	assert.NotContains(t, parts, "spec", "an action leaves the spec")
	assert.NotContains(t, parts, "status", "an action leaves the status")
	return string(p)
}

var stamp = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.000000041)?Z`)

// timeless replaces the times in a patch: those of requests, whose nanoseconds are the version of the object, and of a retry. If now is set,
// they must be times of this run.
func timeless(t *testing.T, patch string, now bool) string {
	t.Helper()
	return stamp.ReplaceAllStringFunc(patch, func(text string) string {
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		if now {
			assert.WithinDuration(t, time.Now(), at, time.Minute)
		}
		return "NOW"
	})
}

func object(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	raw, err := os.ReadFile(filepath.FromSlash(path))
	require.NoError(t, err)
	raw, err = yaml.YAMLToJSON(raw)
	require.NoError(t, err)
	require.NoError(t, obj.UnmarshalJSON(raw), path) // decodes integers as int64, like argocd-server
	return obj
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(path))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, into), path)
}
