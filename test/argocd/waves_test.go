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

	"github.com/argoproj/argo-cd/v2/server/deeplinks"
	"github.com/argoproj/argo-cd/v2/util/settings"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/sync/hook"
	"github.com/argoproj/gitops-engine/pkg/sync/syncwaves"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
