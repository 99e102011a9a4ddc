package argocd

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/common"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/hook"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/syncwaves"
	"github.com/argoproj/notifications-engine/pkg/api"
	"github.com/argoproj/notifications-engine/pkg/services"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

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

// The GatewaySync must exist before the pods of the gateways are created. Argo CD finishes a wave before it starts the next one.
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

// inbox keeps what it is sent.
type inbox struct{ messages []string }

func (b *inbox) Send(n services.Notification, _ services.Destination) error {
	b.messages = append(b.messages, n.Message)
	return nil
}

// Argo CD's own code reads the ConfigMap, and sends what a GatewaySync says when the health of its Application asks for it.
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
