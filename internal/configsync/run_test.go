package configsync_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// kstatus returns the status that the library kstatus computes for the ConfigSync.
func (w *world) kstatus() status.Status {
	w.t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.get())
	require.NoError(w.t, err)
	result, err := status.Compute(&unstructured.Unstructured{Object: object})
	require.NoError(w.t, err)
	return result.Status
}

func TestApplyCreatesChangesAndPrunes(t *testing.T) {
	w := newWorld(t)
	first := w.commit("k8s/a.yaml", configMap("a", "1"), "k8s/b/b.yaml", configMap("b", "1")+configMap("c", "1"))
	w.create("")
	r := w.must()
	assert.Contains(t, r.Plan.String(), "3 to create")
	assert.Equal(t, map[string]string{"a": "1"}, w.data("b"))
	cs := w.get()
	assert.Equal(t, first, cs.Status.SourceRevision)
	assert.Equal(t, "3/3", cs.Status.TargetsReady)
	assert.Equal(t, first, cs.Status.LastGood.Commit)
	assert.Len(t, cs.Status.Inventory, 3)
	assert.Equal(t, v1alpha1.ConfigCreated, cs.Status.Targets[0].State)
	assert.Equal(t, "k8s/a.yaml", cs.Status.Targets[0].File)
	assert.Equal(t, status.CurrentStatus, w.kstatus())

	r = w.must()
	assert.Contains(t, r.Plan.String(), "3 unchanged")
	w.must()
	assert.Equal(t, w.get().ResourceVersion, func() string { w.must(); return w.get().ResourceVersion }(), "an unchanged status must not be written")

	second := w.commit("k8s/a.yaml", configMap("a", "2"), "k8s/b/b.yaml", configMap("b", "1"))
	r = w.must()
	assert.Equal(t, "main at "+second[:7]+`: 1 to configure, 1 unchanged, 1 to prune
configure  ConfigMap `+w.namespace+`/a: data.a
prune      ConfigMap `+w.namespace+"/c\n", r.Plan.String())
	assert.Equal(t, map[string]string{"a": "2"}, w.data("a"))
	assert.Nil(t, w.data("c"))
	cs = w.get()
	assert.Len(t, cs.Status.Inventory, 2)
	require.Len(t, cs.Status.History, 2)
	assert.Equal(t, second, cs.Status.History[0].Commit)
	assert.Contains(t, cs.Status.History[0].Subject, " (Test)")
	w.tracked()
	reasons := map[string]bool{}
	for _, e := range w.events() {
		reasons[e.Reason] = true
	}
	assert.True(t, reasons[v1alpha1.EventSyncCompleted])
	assert.True(t, reasons[v1alpha1.EventPruned])
}

// G2: if one document is broken, or the API server refuses one object, nothing is applied.
func TestRefusalChangesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broken string
		reason v1alpha1.Reason
	}{
		"not YAML":             {"a: [", v1alpha1.ReasonManifestInvalid},
		"not an object":        {"a: b", v1alpha1.ReasonManifestInvalid},
		"unknown kind":         {"{apiVersion: example.com/v1, kind: Unknown, metadata: {name: a}}", v1alpha1.ReasonKindUnknown},
		"unknown field":        {"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, dat: {a: b}}", v1alpha1.ReasonApplyRefused},
		"wrong type":           {"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: x}}", v1alpha1.ReasonApplyRefused},
		"invalid value":        {"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: [{port: 99999999}]}}", v1alpha1.ReasonApplyRefused},
		"no namespace":         {"{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: of-another-team}}", v1alpha1.ReasonApplyRefused},
		"with and without NS":  {configMap("n1", "2") + "{apiVersion: v1, kind: ConfigMap, metadata: {name: n1, namespace: NS}}", v1alpha1.ReasonManifestInvalid},
		"kustomization":        {"", v1alpha1.ReasonManifestInvalid},
		"not YAML, built":      {"a: [", v1alpha1.ReasonManifestInvalid},
		"invalid value, built": {"{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: [{port: 99999999}]}}", v1alpha1.ReasonApplyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			text := ""
			for _, n := range []string{"n2", "n3", "n4", "n5"} {
				text += configMap(n, "1")
			}
			w.commit("k8s/a.yaml", text, "k8s/z.yaml", c.broken+" ")
			switch {
			case name == "kustomization":
				w.commit("k8s/sub/kustomization.yaml", "resources: [https://example.com/x]")
			case strings.HasSuffix(name, ", built"):
				w.commit("k8s/kustomization.yaml", "resources: [a.yaml, z.yaml]")
			}
			w.create("")
			_, err := w.apply()
			require.Error(t, err)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			if strings.HasPrefix(name, "not YAML") {
				assert.ErrorContains(t, err, "k8s/z.yaml")
			}
			assert.Empty(t, w.ours())
			assert.Empty(t, w.get().Status.Inventory)
			ready := w.condition(v1alpha1.ConditionReady)
			require.NotNil(t, ready)
			assert.Equal(t, metav1.ConditionFalse, ready.Status)
			assert.Equal(t, string(c.reason), ready.Reason)
			if c.reason.Class() == v1alpha1.ClassStalled {
				assert.Equal(t, status.FailedStatus, w.kstatus())
			} else {
				assert.Equal(t, status.InProgressStatus, w.kstatus())
			}
		})
	}
}

// G2: a run applies nothing if another ConfigSync owns one of its objects, or if an object of no ConfigSync differs from git and the spec
// does not adopt it.
func TestForeignObject(t *testing.T) {
	w := newWorld(t)
	w.ApplyYAML(t, w.namespace, configMap("theirs", "other"))
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("theirs", "1"))
	w.create("")
	w.fails(v1alpha1.ReasonNotOwned, "data.a")
	assert.Nil(t, w.data("a"))
	assert.Equal(t, map[string]string{"a": "other"}, w.data("theirs"))
	assert.Equal(t, v1alpha1.ConfigHeld, w.get().Status.Targets[0].State)
	assert.Equal(t, "0/2", w.get().Status.TargetsReady)

	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("theirs", "other"))
	w.must()
	assert.ElementsMatch(t, []string{"a", "theirs"}, w.ours(), "an equal object must be adopted")

	w.ApplyYAML(t, w.namespace, configMap("more", "other"))
	w.commit("k8s/a.yaml", configMap("a", "1")+configMap("theirs", "other")+configMap("more", "1"))
	w.create("apply: {adoptPolicy: always}")
	w.must()
	assert.Equal(t, map[string]string{"a": "1"}, w.data("more"))

	w.commit("other/b.yaml", configMap("marked", "1"))
	w.createNamed("other", "{source: {git: {path: other}}}")
	require.NoError(t, w.run("other"))
	w.commit("k8s/b.yaml", configMap("marked", "1"))
	_, err := w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonNotOwned), "the object of another ConfigSync must not be adopted: %v", err)
	assert.Equal(t, "3/4", w.get().Status.TargetsReady, "what earlier runs applied must still count as ready")
}

// G2: only what the inventory lists, by its UID, is deleted.
func TestPruneSparesOthers(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("keep", "1")+configMap("replaced", "1")+configMap("unmarked", "1")+configMap("gone", "1"),
		"k8s/b.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: disabled, annotations: {stoker.io/prune: disabled}}\n",
		"k8s/c.yaml", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: claim}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n")
	w.create("apply: {wait: false}")
	w.must()
	maps := w.core.CoreV1().ConfigMaps(w.namespace)
	old, err := maps.Get(t.Context(), "replaced", metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, maps.Delete(t.Context(), "replaced", metav1.DeleteOptions{}))
	old.UID, old.ResourceVersion, old.ManagedFields = "", "", nil
	_, err = maps.Create(t.Context(), old, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Patch(t.Context(), "unmarked", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/annotations/stoker.io~1configsync"}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	w.ApplyYAML(t, w.namespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: copied, annotations: {stoker.io/configsync: "+w.namespace+"/plant}}\n")

	w.commit("k8s/a.yaml", configMap("keep", "1"), "k8s/b.yaml", "", "k8s/c.yaml", "")
	r := w.must()
	assert.Contains(t, r.Plan.String(), "2 to prune, 1 to keep, 2 released")
	assert.Nil(t, w.data("gone"))
	assert.Nil(t, w.data("unmarked"), "the UID says what is ours")
	for _, name := range []string{"keep", "replaced", "copied", "disabled"} {
		assert.NotNil(t, w.data(name), name)
	}
	_, err = w.core.CoreV1().PersistentVolumeClaims(w.namespace).Get(t.Context(), "claim", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Len(t, w.get().Status.Inventory, 2, "a claim that was not pruned must stay in the inventory")
}

// G2: a commit that deletes most objects, and a path that is gone, change nothing.
func TestMassDeletionWaits(t *testing.T) {
	w := newWorld(t)
	text := ""
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		text += configMap(n, "1")
	}
	w.commit("k8s/a.yaml", text)
	w.create("")
	w.must()
	emptied := w.commit("k8s/a.yaml", configMap("a", "2"))
	w.fails(v1alpha1.ReasonMassDeletion)
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))
	assert.Len(t, w.ours(), 7)
	w.annotate(v1alpha1.AnnotationConfirmDeletion, "0000000")
	_, err := w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonMassDeletion), "a confirmation must count for its commit only: %v", err)

	moved := w.commit("k8s/a.yaml", "", "other/a.yaml", configMap("a", "1"))
	w.annotate(v1alpha1.AnnotationConfirmDeletion, moved[:7])
	w.fails(v1alpha1.ReasonSourceMissing)
	assert.Len(t, w.ours(), 7)

	w.git.ForcePush(emptied)
	w.annotate(v1alpha1.AnnotationConfirmDeletion, emptied[:7])
	w.must()
	assert.Equal(t, []string{"a"}, w.ours())
}

// Pods that are not replaced yet may restart, and read the ConfigMaps and Secrets of the commit before.
func TestDataGoesLast(t *testing.T) {
	w := newWorld(t)
	service := "{apiVersion: v1, kind: Service, metadata: {name: old}, spec: {clusterIP: None, ports: [{port: 1}]}}\n---\n"
	set := "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: s, replicas: %d, selector: {matchLabels: {a: b}}, " +
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}\n---\n"
	w.commit("k8s/a.yaml", service+configMap("old", "1")+fmt.Sprintf(set, 0))
	w.create("progressDeadline: 1s")
	w.must()
	w.commit("k8s/a.yaml", configMap("new", "1")+fmt.Sprintf(set, 1))
	w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
	_, err := w.core.CoreV1().Services(w.namespace).Get(t.Context(), "old", metav1.GetOptions{})
	require.Error(t, err)
	assert.NotNil(t, w.data("old"))
	w.tracked()
	w.commit("k8s/a.yaml", configMap("new", "1")+fmt.Sprintf(set, 0))
	w.must()
	assert.Nil(t, w.data("old"))
	w.tracked()
}

func TestDriftIsRepaired(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.create("")
	w.must()
	_, err := w.core.CoreV1().ConfigMaps(w.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"a":"edited","more":"x"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
	r := w.must()
	assert.Contains(t, r.Plan.String(), "repair     ConfigMap "+w.namespace+"/a: data.a, data.more\n")
	assert.Equal(t, map[string]string{"a": "1"}, w.data("a"))

	_, err = w.core.CoreV1().ConfigMaps(w.namespace).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"a":"edited"}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	require.NoError(t, err)
	w.create("apply: {conflictPolicy: hold}")
	w.fails(v1alpha1.ReasonApplyConflict, "kubectl-edit")
	assert.Equal(t, "edited", w.data("a")["a"])
}

func TestImmutableFieldIsNamed(t *testing.T) {
	w := newWorld(t)
	set := func(service string) string {
		return "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: " + service + ", replicas: 0, selector: {matchLabels: {a: b}}, " +
			"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}"
	}
	w.commit("k8s/a.yaml", set("one"))
	w.create("")
	w.must()
	w.commit("k8s/a.yaml", set("two"))
	w.fails(v1alpha1.ReasonImmutableField, "git changes a field that Kubernetes never changes (one of spec.serviceName): with the annotation stoker.io/recreate: enabled")
	w.commit("k8s/a.yaml", set("one, podManagementPolicy: Sideways"))
	_, err := w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonApplyRefused), "an invalid manifest must not be reported as an immutable field: %v", err)
}

func TestKindsAndNamespacesComeFirst(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", `
apiVersion: NS.example.com/v1
kind: Recipe
metadata: {name: cola, namespace: NS-made}
spec: {sugar: 10}
---
apiVersion: v1
kind: Namespace
metadata: {name: NS-made}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: recipes.NS.example.com}
spec:
  group: NS.example.com
  names: {kind: Recipe, plural: recipes}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: NS-made}}
---
{apiVersion: NS.example.com/v1, kind: Recipe, metadata: {name: own}}
`)
	w.create("")
	r := w.must()
	assert.Contains(t, r.Plan.String(), "5 to create")
	_, err := w.core.CoreV1().ConfigMaps(w.namespace+"-made").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, r.Plan.String(), "Recipe."+w.namespace+".example.com "+w.namespace+"/own", "the inventory must name the namespace before the kind is served")
	assert.Contains(t, w.must().Plan.String(), "5 unchanged")
}

// A cluster-scoped object whose manifest has a namespace, as kustomize writes it, is not pruned while git has it.
func TestClusterScopedObjectWithNamespace(t *testing.T) {
	w := newWorld(t)
	commit := func(versions ...string) {
		text := "{apiVersion: NS.example.com/" + versions[len(versions)-1] + ", kind: Site, metadata: {name: NS, namespace: NS}}\n---\n" +
			"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: sites.NS.example.com}\n" +
			"spec:\n  group: NS.example.com\n  names: {kind: Site, plural: sites}\n  scope: Cluster\n  versions:\n"
		for i, v := range versions {
			text += fmt.Sprintf("  - {name: %s, served: true, storage: %t, schema: {openAPIV3Schema: {type: object}}}\n", v, i == 0)
		}
		w.commit("k8s/a.yaml", text)
	}
	stays := func(r *configsync.Run) {
		t.Helper()
		assert.Zero(t, r.Plan.Pruned(), r.Plan)
		resource := schema.GroupVersionResource{Group: w.namespace + ".example.com", Version: "v1", Resource: "sites"}
		_, err := w.admin.Dynamic.Resource(resource).Get(t.Context(), w.namespace, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Len(t, w.get().Status.Inventory, 2)
	}
	commit("v1")
	w.create("")
	w.must()
	commit("v1", "v2")
	stays(w.must())

	cs := w.get()
	id := manifest.ID{Group: w.namespace + ".example.com", Kind: "Site", Namespace: w.namespace, Name: w.namespace}
	cs.Status.Inventory = append(cs.Status.Inventory, manifest.Entry{ID: id}.String()) // of a run that ended early
	_, err := kube.ConfigSyncs(w.admin.Dynamic, w.namespace).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
	require.NoError(t, err)
	stays(w.must())
}

func TestUnhealthyObjects(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.yaml", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, "+
		"template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: c}]}}}}")
	w.create("progressDeadline: 2s")
	w.fails(v1alpha1.ReasonProgressDeadlineExceeded)
	cs := w.get()
	assert.Equal(t, "0/1", cs.Status.TargetsReady)
	assert.Nil(t, cs.Status.LastGood)
	assert.Len(t, cs.Status.Inventory, 1)
	assert.Equal(t, metav1.ConditionTrue, w.condition(v1alpha1.ConditionDegraded).Status)
	assert.Equal(t, metav1.ConditionFalse, w.condition(v1alpha1.ConditionAvailable).Status)
	assert.Equal(t, status.FailedStatus, w.kstatus())
	w.create("{progressDeadline: 2s, apply: {wait: false}}")
	w.must()
	assert.Equal(t, status.CurrentStatus, w.kstatus())
}
