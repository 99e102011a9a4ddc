// Package argocd tests hooks/argocd and examples/argocd with the code of Argo CD 2. Module v3 tests hooks/argocd with Argo CD 3.
package argocd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/v2/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v2/server/deeplinks"
	"github.com/argoproj/argo-cd/v2/util/lua"
	"github.com/argoproj/argo-cd/v2/util/settings"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/sync/hook"
	"github.com/argoproj/gitops-engine/pkg/sync/syncwaves"
	jsonpatch "github.com/evanphx/json-patch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// The folders with the statuses that the tests of hooks/argocd write: see TestMain.
var gatewaySyncDir, configSyncDir string

// TestMain makes the tests of hooks/argocd write their statuses, and what Argo CD must show for them.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "stoker-argocd-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-run", "^(TestHealth|TestConfigSyncHealth|TestActions)$", "./hooks/argocd", "-write", dir)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			return 1
		}
		gatewaySyncDir, configSyncDir = filepath.Join(dir, "GatewaySync"), filepath.Join(dir, "ConfigSync")
		return m.Run()
	}())
}

// argoCD returns the Lua VM of an Argo CD with the shipped argocd-cm.
func argoCD(t *testing.T) lua.VM {
	t.Helper()
	var cm struct{ Data map[string]string }
	read(t, root+"/charts/stoker/files/argocd/argocd-cm.yaml", &cm)
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
	for _, folder := range []string{gatewaySyncDir, configSyncDir} {
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
				script, openLibs, err := vm.GetHealthScript(obj)
				require.NoError(t, err)
				require.False(t, openLibs, "the script must run without useOpenLibs, that is, without the string and math libraries")
				got, err := vm.ExecuteHealthLua(obj, script)
				require.NoError(t, err)
				assert.Equal(t, &c.HealthStatus, got)
			})
		}
	}
}

// noon is the present time in the statuses. A status with another confirmation time is out of date on purpose.
const noon = "2026-01-02T12:00:00Z"

// confirmNow replaces a status.confirmedAt of noon with the real time, because Argo CD uses the real clock.
func confirmNow(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if at, _, _ := unstructured.NestedString(obj.Object, "status", "confirmedAt"); at == noon {
		require.NoError(t, unstructured.SetNestedField(obj.Object, time.Now().UTC().Format(time.RFC3339), "status", "confirmedAt"))
	}
}

func TestGatewaySyncDiscovery(t *testing.T) {
	vm := argoCD(t)
	var tests struct {
		DiscoveryTests []struct {
			InputPath string
			Result    []v1alpha1.ResourceAction
		}
	}
	read(t, gatewaySyncDir+"/actions/action_test.yaml", &tests)
	require.NotEmpty(t, tests.DiscoveryTests)
	for _, c := range tests.DiscoveryTests {
		obj := object(t, gatewaySyncDir+"/actions/"+c.InputPath)
		script, err := vm.GetResourceActionDiscovery(obj)
		require.NoError(t, err)
		got, err := vm.ExecuteResourceActionDiscovery(obj, script)
		require.NoError(t, err, c.InputPath)
		assert.ElementsMatch(t, c.Result, got, c.InputPath)
	}
}

func TestGatewaySyncActions(t *testing.T) {
	vm := argoCD(t)
	var tests struct {
		ActionTests []struct{ Action, InputPath, ExpectedOutputPath string }
	}
	read(t, gatewaySyncDir+"/actions/action_test.yaml", &tests)
	require.NotEmpty(t, tests.ActionTests)
	for _, c := range tests.ActionTests {
		name := c.Action + " of " + c.InputPath
		obj := object(t, gatewaySyncDir+"/actions/"+c.InputPath)
		action, err := vm.GetResourceAction(obj, c.Action)
		require.NoError(t, err, name)
		impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua)
		require.NoError(t, err, name)
		require.Len(t, impacted, 1)
		require.Equal(t, lua.PatchOperation, impacted[0].K8SOperation)
		want := object(t, gatewaySyncDir+"/actions/"+c.ExpectedOutputPath)
		got := impacted[0].UnstructuredObj
		gotPatch := patch(t, obj, got)
		requirePresent(t, gotPatch)
		assert.Equal(t, timeless(patch(t, obj, want)), timeless(gotPatch), name)
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
			obj := object(t, configSyncDir+"/synced.yaml")
			good, bad := strings.Repeat("1", 40), strings.Repeat("2", 40)
			require.NoError(t, unstructured.SetNestedField(obj.Object, map[string]any{"commit": good}, "status", "lastGood"))
			require.NoError(t, unstructured.SetNestedField(obj.Object, map[string]any{"commit": good, "unless": bad, "over": good + "@main"}, "status", "rollback"))
			obj.SetResourceVersion("41")
			annotations := map[string]string{"plant.example.com/area": "north"}
			if name == "resume" {
				annotations["stoker.io/paused"] = "true"
			}
			obj.SetAnnotations(annotations)
			action, err := vm.GetResourceAction(obj, name)
			require.NoError(t, err)
			impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua)
			require.NoError(t, err)
			require.Len(t, impacted, 1)
			assert.JSONEq(t, want, timeless(patch(t, obj, impacted[0].UnstructuredObj)))
		})
	}
}

func TestRollbackWithoutTarget(t *testing.T) {
	vm := argoCD(t)
	obj := object(t, gatewaySyncDir+"/actions/new.yaml")
	action, err := vm.GetResourceAction(obj, "rollback")
	require.NoError(t, err)
	_, err = vm.ExecuteResourceAction(obj, action.ActionLua)
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
	assert.NotContains(t, parts, "spec", "an action must not change the spec")
	assert.NotContains(t, parts, "status", "an action must not change the status")
	return string(p)
}

// stamp matches the times in a patch. The scripts put metadata.resourceVersion, which is 41 in the statuses, into the
// nanoseconds of a request, so that two clicks are two requests.
var stamp = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.000000041)?Z`)

// timeless replaces the times in a patch.
func timeless(patch string) string { return stamp.ReplaceAllString(patch, "TIME") }

// requirePresent requires that the times in a patch are those of this run.
func requirePresent(t *testing.T, patch string) {
	t.Helper()
	for _, text := range stamp.FindAllString(patch, -1) {
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
	}
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

// examples returns the objects of examples/argocd by folder, without chart templates.
func examples(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	found := map[string][]*unstructured.Unstructured{}
	err := filepath.WalkDir(root+"/examples/argocd", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil || bytes.Contains(raw, []byte("{{")) {
			return err
		}
		for _, doc := range strings.Split(string(raw), "\n---\n") {
			obj := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
				return err
			}
			if obj.GetKind() != "" {
				found[filepath.Dir(path)] = append(found[filepath.Dir(path)], obj)
			}
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

func TestExampleHooksAndWaves(t *testing.T) {
	for dir, objects := range examples(t) {
		for _, obj := range objects {
			name := dir + ": " + obj.GetKind() + " " + obj.GetName() + obj.GetGenerateName()
			annotations := obj.GetAnnotations()
			if text, there := annotations[common.AnnotationSyncWave]; there {
				assert.Equal(t, text, strconv.Itoa(syncwaves.Wave(obj)), "%s: a wave that is not a number counts as 0", name)
			}
			text, isHook := annotations[common.AnnotationKeyHook]
			assert.Equal(t, isHook, hook.IsHook(obj), name)
			if !isHook {
				assert.Empty(t, obj.GetGenerateName(), "%s: only a hook may have generateName", name)
				continue
			}
			assert.Len(t, hook.Types(obj), len(strings.Split(text, ",")), "%s: Argo CD drops words that it does not know: %s", name, text)
			policies := hook.DeletePolicies(obj)
			assert.Len(t, policies, len(strings.Split(annotations[common.AnnotationKeyHookDeletePolicy], ",")), name)
			generated := obj.GetGenerateName() != ""
			assert.NotEqual(t, generated, slices.Contains(policies, common.HookDeletePolicyBeforeHookCreation),
				"%s: only a hook with a fixed name needs BeforeHookCreation, which makes room for the next one", name)
			if generated {
				assert.Subset(t, policies, []common.HookDeletePolicy{common.HookDeletePolicyHookSucceeded, common.HookDeletePolicyHookFailed}, "%s: nothing else deletes the hook", name)
			}
		}
	}
}

// Argo CD finishes a wave before it starts the next one.
func TestExampleSyncOrder(t *testing.T) {
	for _, name := range []string{"plain", "kustomize"} {
		t.Run(name, func(t *testing.T) {
			phases := map[common.HookType]int{}
			found := map[string]int{}
			for _, obj := range examples(t)[filepath.Clean(root+"/examples/argocd/"+name)] {
				if !hook.IsHook(obj) {
					found[obj.GetKind()] = syncwaves.Wave(obj)
					continue
				}
				for _, phase := range hook.Types(obj) {
					if obj.GetKind() == "Job" {
						phases[phase]++
					}
				}
			}
			assert.Equal(t, map[common.HookType]int{common.HookTypePreSync: 1, common.HookTypePostSync: 1, common.HookTypeSyncFail: 1}, phases, name)
			require.Contains(t, found, "GatewaySync", name)
			require.Contains(t, found, "StatefulSet", name)
			assert.Less(t, found["GatewaySync"], found["StatefulSet"], name)
		})
	}
}

// The documented link leads from a GatewaySync to its page, and no other object has it.
func TestLinkToPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/argocd.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```yaml\ndata:\n  resource.links:")
	require.True(t, found)
	block, _, _ := strings.Cut(rest, "```")
	var config struct{ Data map[string]string }
	require.NoError(t, yaml.Unmarshal([]byte("data:\n  resource.links:"+block), &config))
	var links []settings.DeepLink
	require.NoError(t, yaml.Unmarshal([]byte(config.Data["resource.links"]), &links))
	require.Len(t, links, 1)
	of := func(kind string) []string {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "stoker.io/v1alpha1", "kind": kind, "metadata": map[string]any{"namespace": "plant", "name": "line"}}}
		found, failed := deeplinks.EvaluateDeepLinksResponse(deeplinks.CreateDeepLinksObject(object, nil, nil, nil), "line", links)
		require.Empty(t, failed)
		var urls []string
		for _, l := range found.Items {
			urls = append(urls, l.GetUrl())
		}
		return urls
	}
	assert.Equal(t, []string{"http://127.0.0.1:8090/fleets/plant/line"}, of("GatewaySync"))
	assert.Empty(t, of("ConfigMap"))
}
