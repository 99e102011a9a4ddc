package migrate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

func finder(t *testing.T, cluster *kubetest.Cluster, namespace string) migrate.Finder {
	t.Helper()
	clients, err := kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	return migrate.Finder{Clients: clients, Namespace: namespace, Release: "stoker", ReleaseNamespace: "stoker-system", NoAgent: injected}
}

func plan(t *testing.T, f migrate.Finder) (list []migrate.Action, text string) {
	t.Helper()
	list, err := f.Plan(t.Context())
	require.NoError(t, err)
	for _, a := range list {
		text += fmt.Sprintf("%s %s: %s\n", a.Do, a.Object, a.Why)
	}
	return list, text
}

func apply(t *testing.T, list []migrate.Action) {
	t.Helper()
	for _, a := range list {
		require.NoError(t, a.Apply(t.Context()))
	}
}

// definitions holds the CRDs of an earlier product.
const definitions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gatewaysyncs.stoker.io}
spec:
  group: stoker.io
  scope: Namespaced
  names: {kind: GatewaySync, plural: gatewaysyncs, singular: gatewaysync, listKind: GatewaySyncList}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: syncprofiles.stoker.io}
spec:
  group: stoker.io
  scope: Namespaced
  names: {kind: SyncProfile, plural: syncprofiles, singular: syncprofile, listKind: SyncProfileList}
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

func TestDefinitionsOfEarlierProduct(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.WithoutKinds())
	namespace := cluster.Namespace(t)
	f := finder(t, cluster, namespace)
	_, text := plan(t, f)
	require.Empty(t, text, "an empty cluster must need no migration")

	cluster.ApplyYAML(t, namespace, definitions)
	require.Eventually(t, func() bool {
		served, err := f.Core.Discovery().ServerResourcesForGroupVersion("stoker.io/v1alpha1")
		return err == nil && len(served.APIResources) == 2
	}, time.Minute, 50*time.Millisecond)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: SyncProfile
metadata: {name: line, finalizers: [stoker.io/finalizer]}
`)
	list, text := plan(t, f)
	assert.Contains(t, text, "label for Helm customresourcedefinition/gatewaysyncs.stoker.io: ")
	assert.Contains(t, text, "by hand customresourcedefinition/syncprofiles.stoker.io: kind SyncProfile belongs to an earlier product")
	assert.Contains(t, text, "remove finalizer "+namespace+" syncprofiles.stoker.io/line: ")
	apply(t, list)
	_, text = plan(t, f)
	assert.Equal(t, 1, strings.Count(text, "\n"), text)
	assert.Contains(t, text, "by hand customresourcedefinition/syncprofiles.stoker.io")

	crds := f.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	crd, err := crds.Get(t.Context(), "gatewaysyncs.stoker.io", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "Helm", crd.GetLabels()["app.kubernetes.io/managed-by"])
	assert.Equal(t, "stoker", crd.GetAnnotations()["meta.helm.sh/release-name"])
	assert.Equal(t, "stoker-system", crd.GetAnnotations()["meta.helm.sh/release-namespace"])

	f.Release = "another"
	list, text = plan(t, f)
	assert.Contains(t, text, "by hand customresourcedefinition/gatewaysyncs.stoker.io: Helm manages it")
	apply(t, list)
	again, err := crds.Get(t.Context(), "gatewaysyncs.stoker.io", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, crd.GetResourceVersion(), again.GetResourceVersion(), "the definition of another release must not change")
}

func TestFinalizers(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace, other := cluster.Namespace(t), cluster.Namespace(t)
	object := `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line, finalizers: [example.com/keep, stoker.io/finalizer]}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`
	cluster.ApplyYAML(t, namespace, object)
	cluster.ApplyYAML(t, other, object)
	f := finder(t, cluster, namespace)
	list, text := plan(t, f)
	require.Len(t, list, 1, text)
	assert.Equal(t, migrate.RemoveFinalizer, list[0].Do)

	syncs := kube.GatewaySyncs(f.Dynamic, namespace)
	_, err := syncs.Patch(t.Context(), "line", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Error(t, list[0].Apply(t.Context()), "a change of the object must make the step fail")
	list, _ = plan(t, f)
	apply(t, list)
	gs, err := syncs.Get(t.Context(), "line")
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/keep"}, gs.Finalizers)
	_, text = plan(t, f)
	assert.Empty(t, text)
	gs, err = kube.GatewaySyncs(f.Dynamic, other).Get(t.Context(), "line")
	require.NoError(t, err)
	assert.Contains(t, gs.Finalizers, migrate.Finalizer, "objects of other namespaces must not change")
}

const webhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: NAME}
webhooks:
  - name: pods.stoker.io
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    clientConfig: {service: {name: s, namespace: default}}
    objectSelector: {matchLabels: {no: pod}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`

func TestPodsWithForeignAgent(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	f := finder(t, cluster, namespace)
	spec := `{terminationGracePeriodSeconds: 0, containers: [{name: gateway, image: gateway}], initContainers: [{name: stoker-agent, image: other, restartPolicy: Always, env: [{name: POD_NAME, value: x}]}]}`
	cluster.ApplyYAML(t, namespace, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: line}
spec:
  replicas: 0
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: gateway, image: gateway}]}}
`)
	set, err := f.Core.AppsV1().StatefulSets(namespace).Get(t.Context(), "line", metav1.GetOptions{})
	require.NoError(t, err)
	pod := func(name, owner string) {
		cluster.ApplyYAML(t, namespace, `
apiVersion: v1
kind: Pod
metadata: {name: `+name+`, annotations: {stoker.io/inject: "true", stoker.io/cr-name: line}`+owner+`}
spec: `+spec)
		_, err := f.Core.CoreV1().Pods(namespace).Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	owned := `, ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: line, uid: ` + string(set.UID) + `, controller: true}]`
	pod("line-0", owned)
	pod("line-1", owned)
	pod("single", "")

	_, text := plan(t, f)
	assert.NotContains(t, text, "evict "+namespace)
	assert.Contains(t, text, "install Stoker and delete the other webhook first")

	cluster.ApplyYAML(t, namespace, strings.ReplaceAll(webhook, "NAME", "other-webhook")+"---"+strings.ReplaceAll(webhook, "NAME", "stoker-injector"))
	list, text := plan(t, f)
	assert.Contains(t, text, "by hand mutatingwebhookconfiguration/other-webhook")
	assert.NotContains(t, text, "evict "+namespace)
	apply(t, list)

	require.NoError(t, f.Core.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), "other-webhook", metav1.DeleteOptions{}))
	list, text = plan(t, f)
	assert.Contains(t, text, "evict "+namespace+" pod/line-0")
	assert.Contains(t, text, "by hand "+namespace+" pod/line-1: its container stoker-agent belongs to another program; not evicted now: pod line-0 is evicted first")
	assert.Contains(t, text, "by hand "+namespace+" pod/single")
	apply(t, list)
	left, err := f.Core.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for i := range left.Items {
		if left.Items[i].DeletionTimestamp == nil {
			names = append(names, left.Items[i].Name)
		}
	}
	assert.Equal(t, []string{"line-1", "single"}, names)
}
