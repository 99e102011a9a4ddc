// Package argocd tests hooks/argocd with the code of Argo CD 3. The parent module has the same tests for Argo CD 2, and those of
// examples/argocd.
package argocd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/notifications-engine/pkg/api"
	"github.com/argoproj/notifications-engine/pkg/services"
	jsonpatch "github.com/evanphx/json-patch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

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
		impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua, nil)
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
			impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua, nil)
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

// inbox keeps what it is sent.
type inbox struct{ messages []string }

func (b *inbox) Send(n services.Notification, _ services.Destination) error {
	b.messages = append(b.messages, n.Message)
	return nil
}

// The code of Argo CD reads the ConfigMap. It sends the health of the GatewaySync if its Application is Degraded or Suspended.
func TestNotificationsOfHealth(t *testing.T) {
	text, err := os.ReadFile("../../../charts/stoker/files/argocd/argocd-notifications-cm.yaml")
	require.NoError(t, err)
	var cm corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict(text, &cm))
	config, err := api.ParseConfig(&cm, &corev1.Secret{Data: map[string][]byte{"stoker-token": []byte("t")}})
	require.NoError(t, err)
	notifications, err := api.NewAPI(*config, func(app map[string]any, _ services.Destination) map[string]any {
		return map[string]any{"app": app, "context": map[string]string{"argocdUrl": "https://argocd.example.com"}}
	})
	require.NoError(t, err)
	people := &inbox{}
	notifications.AddNotificationService("people", people)

	for health, trigger := range map[string]string{"Degraded": "on-stoker-degraded", "Suspended": "on-stoker-waiting", "Healthy": "", "Progressing": "", "": ""} {
		t.Run(health, func(t *testing.T) {
			status := map[string]any{"resources": []any{
				map[string]any{"version": "v1", "kind": "Service", "namespace": "plant", "name": "line"},
				map[string]any{"group": "stoker.io", "kind": "GatewaySync", "namespace": "plant", "name": "line", "health": map[string]any{"status": health, "message": "area-4: ScanFailed"}},
			}}
			if health != "" {
				status["health"] = map[string]any{"status": health}
			}
			app := map[string]any{"metadata": map[string]any{"name": "plant", "namespace": "argocd"}, "status": status}
			for _, name := range []string{"on-stoker-degraded", "on-stoker-waiting"} {
				t.Run(name, func(t *testing.T) {
					results, err := notifications.RunTrigger(name, app)
					require.NoError(t, err)
					require.Len(t, results, 1)
					assert.Equal(t, name == trigger, results[0].Triggered, name)
					if !results[0].Triggered {
						return
					}
					people.messages = nil
					require.NoError(t, notifications.Send(app, results[0].Templates, services.Destination{Service: "people", Recipient: "plant"}))
					assert.Equal(t, []string{"Application plant is " + health + ".\nGatewaySync plant/line is " + health +
						": area-4: ScanFailed. See: stoker status line --namespace plant\nhttps://argocd.example.com/applications/argocd/plant\n"}, people.messages)
				})
			}
		})
	}
}
