package charts

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

// C5: a setter may patch ConfigSyncs, and not update them. So the policy stoker-gatewaysyncs, which is also about ConfigSyncs, lets it
// change annotations of requests only. stoker config run may not update ConfigSyncs either, but must set their finalizer, and only that:
// in the namespaces that it serves, and to end a deletion.
func TestConfigSyncRequestRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	_, err := p.as(t, p.RESTConfig(), "configsyncs").Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant, annotations: {note: theirs}}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git"}}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	p.rightsOf(t, "configsync", with(set("configSync.enabled", true), set("configSync.namespaces", []any{p.namespace})))
	const finalizer = `{"metadata":{"finalizers":["stoker.io/configsync"]}}`
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	try := func(in, who, patch string) error {
		_, err := p.as(t, p.As(t, in, who, ""), "configsyncs").Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		return err
	}
	const annotations = `{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-over":"v2@HEAD","stoker.io/paused":"true"}}}`
	require.NoError(t, try(p.namespace, "setter", annotations))
	for _, patch := range []string{
		`{"spec":{"serviceAccountName":"other"}}`, `{"spec":{"source":{"git":{"branch":"main"}}}}`, `{"metadata":{"annotations":{"note":"mine"}}}`,
		`{"metadata":{"labels":{"a":"b"}}}`, finalizer,
	} {
		denied(t, try(p.namespace, "setter", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
		assert.NoError(t, try(p.namespace, "editor", patch), patch)
	}
	for _, patch := range []string{annotations, finalizer} {
		assert.NoError(t, try(namespace, "stoker-configsync", patch), patch)
	}
	for _, patch := range []string{
		`{"spec":{"serviceAccountName":"other"}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"stoker.io/prune":"disabled"}}}`,
		`{"metadata":{"finalizers":["stoker.io/configsync"]},"spec":{"paused":true}}`,
	} {
		denied(t, try(namespace, "stoker-configsync", patch), "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	}

	elsewhere := newPlant(t, p.server)
	admin := elsewhere.as(t, p.RESTConfig(), "configsyncs")
	_, err = admin.Create(t.Context(), parseOne(t, `
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: plant, finalizers: [stoker.io/configsync]}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git"}}}`), metav1.CreateOptions{})
	require.NoError(t, err)
	other := elsewhere.as(t, p.As(t, namespace, "stoker-configsync", ""), "configsyncs")
	for _, patch := range []string{annotations, `{"metadata":{"finalizers":[]}}`} {
		_, err := other.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		denied(t, err, "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	}
	require.NoError(t, admin.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	_, err = other.Patch(t.Context(), "plant", types.MergePatchType, []byte(annotations), dry)
	denied(t, err, "stoker-gatewaysyncs", "may patch ConfigSyncs and not update them")
	_, err = other.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
	require.NoError(t, err, "it ends a deletion, also in a namespace that is not served any more")
}

// C21: one table says which annotations setters may change; the policy and the page have the same.
func TestSetterAnnotations(t *testing.T) {
	t.Parallel()
	policy := rendered(t, nil)["ValidatingAdmissionPolicy/stoker-gatewaysyncs"]
	require.NotNil(t, policy)
	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	require.NoError(t, err)
	listed := regexp.MustCompile(`'(stoker\.io/[a-z-]+)'`).FindAllStringSubmatch(variables[0].(map[string]any)["expression"].(string), -1)
	var inPolicy, setters, all, page []string
	for _, m := range listed {
		inPolicy = append(inPolicy, m[1])
	}
	for _, a := range v1alpha1.RequestAnnotations() {
		all = append(all, a.Name)
		if a.Writer != v1alpha1.WriterEditor { // another policy asks for the verb approve
			setters = append(setters, a.Name)
		}
	}
	assert.Equal(t, setters, inPolicy)
	b, err := os.ReadFile("../../docs/reference/gatewaysync.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(b), "\n## Annotations of a GatewaySync\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `(stoker\\.io/[a-z-]+)`").FindAllStringSubmatch(table, -1) {
		page = append(page, m[1])
	}
	assert.ElementsMatch(t, page, all)
}

// C21: a setter marks no object of a ConfigSync, approves no deletion, restores no snapshot, and leaves no large annotations.
func TestSettersChangeRequestsOnly(t *testing.T) {
	t.Parallel()
	p := policed(t)
	setter, editor := p.as(t, p.As(t, p.namespace, "setter", ""), "gatewaysyncs"), p.as(t, p.As(t, p.namespace, "editor", ""), "gatewaysyncs")
	patch := func(annotations map[string]any) []byte {
		return []byte(mustJSON(t, map[string]any{"metadata": map[string]any{"annotations": annotations}}))
	}
	_, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/configsync": p.namespace + "/site"}), metav1.PatchOptions{})
	require.NoError(t, err)
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	for _, a := range v1alpha1.RequestAnnotations() {
		if a.Writer == v1alpha1.WriterApprover {
			continue
		}
		_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{a.Name: "x"}), dry)
		if a.Writer == v1alpha1.WriterSetter {
			assert.NoError(t, err, a.Name)
		} else {
			denied(t, err, "stoker-gatewaysyncs", "it may change annotations of requests")
		}
		_, err = editor.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{a.Name: "x"}), dry)
		assert.NoError(t, err, a.Name)
	}
	for name, change := range map[string]map[string]any{
		"mark removed": {"stoker.io/configsync": nil}, "not pruned": {"stoker.io/prune": "disabled"}, "unknown": {"stoker.io/unknown": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := setter.Patch(t.Context(), "plant", types.MergePatchType, patch(change), dry)
			denied(t, err, "stoker-gatewaysyncs", "it may change annotations of requests")
		})
	}
	large := strings.Repeat("x", 8<<10)
	_, err = setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/requested-ids": large, "stoker.io/requested-tags": large}), dry)
	require.NoError(t, err)
	_, err = setter.Patch(t.Context(), "plant", types.MergePatchType, patch(map[string]any{"stoker.io/requested-ids": large, "stoker.io/requested-tags": large, "stoker.io/force-sync": large + "x"}), dry)
	denied(t, err, "stoker-gatewaysyncs", "at most 24576 characters in annotations of requests")
}
