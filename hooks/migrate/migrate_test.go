package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/clientset"
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

// foreignPod returns a pod with a foreign agent, which the StatefulSet line owns.
func foreignPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	always, yes := corev1.ContainerRestartPolicyAlways, true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "plant", Name: name, Annotations: map[string]string{"stoker.io/inject": "true", "stoker.io/cr-name": "line"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "line", Controller: &yes}},
		},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{
			Name: "stoker-agent", Image: "other", RestartPolicy: &always, Env: []corev1.EnvVar{{Name: "POD_NAME", Value: "x"}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func unnamed(p *corev1.Pod) { delete(p.Annotations, "stoker.io/cr-name") }

// fakeFinder returns a Finder for a cluster with the objects, the injector of Stoker, and no kinds of stoker.io.
func fakeFinder(objects ...runtime.Object) (migrate.Finder, *clientset.Fake) {
	core := clientset.New(append(objects, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "stoker-injector"}}, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line"}})...)
	return migrate.Finder{Clients: kube.Clients{Core: core, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())}, NoAgent: injected}, core
}

func TestEvictionOrder(t *testing.T) {
	for name, c := range map[string]struct {
		pods []runtime.Object
		want []string // kinds of the actions
	}{
		"all are ready":         {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", nil)}, []string{migrate.Evict, migrate.ByHand}},
		"only itself not ready": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", notReady)}, []string{migrate.ByHand, migrate.Evict}},
		"another not ready":     {[]runtime.Object{foreignPod("line-0", notReady), foreignPod("line-1", notReady)}, []string{migrate.ByHand, migrate.ByHand}},
		"itself being deleted": {[]runtime.Object{foreignPod("line-0", func(p *corev1.Pod) {
			now := metav1.Now()
			p.DeletionTimestamp, p.Finalizers = &now, []string{"example.com/x"}
		})}, []string{migrate.ByHand}},
		"GatewaySync not named": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", unnamed)}, []string{migrate.Evict, migrate.ByHand}},
		"GatewaySync not named, itself not ready": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", func(p *corev1.Pod) {
			unnamed(p)
			notReady(p)
		})}, []string{migrate.ByHand, migrate.Evict}},
		"finished pod": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("old", func(p *corev1.Pod) {
			notReady(p)
			p.Status.Phase = corev1.PodFailed
		})}, []string{migrate.Evict}},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := fakeFinder(c.pods...)
			list, text := plan(t, f)
			var kinds []string
			for _, a := range list {
				kinds = append(kinds, a.Do)
			}
			assert.Equal(t, c.want, kinds, text)
		})
	}
}

// injected says that every new pod gets an agent.
func injected(context.Context, *corev1.Pod) (string, error) { return "", nil }

// The webhook configuration exists, but the API server does not reach the injector.
func TestInjectorDoesNotAnswer(t *testing.T) {
	f, _ := fakeFinder(foreignPod("line-0", nil))
	f.NoAgent = func(_ context.Context, p *corev1.Pod) (string, error) {
		return "cannot call the injector for " + p.Namespace + "/" + p.Annotations["stoker.io/cr-name"], nil
	}
	list, err := f.Plan(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, migrate.ByHand, list[0].Do)
	assert.Contains(t, list[0].Why, "cannot call the injector for plant/line")
}

func TestUnreadableWebhooks(t *testing.T) {
	f, core := fakeFinder(foreignPod("line-0", nil))
	core.PrependReactor("list", "mutatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "mutatingwebhookconfigurations"}, "", errors.New("forbidden"))
	})
	list, err := f.Plan(t.Context())
	require.Error(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, migrate.ByHand, list[0].Do)
	assert.Contains(t, list[0].Why, "the webhook configurations cannot be read")
}

// If the API server does not answer, the plan fails, and has no step for the pod.
func TestUnknownReplacement(t *testing.T) {
	busy := apierrors.NewTooManyRequestsError("busy")
	for name, set := range map[string]func(*migrate.Finder, *clientset.Fake){
		"the StatefulSet cannot be read": func(_ *migrate.Finder, core *clientset.Fake) {
			core.PrependReactor("get", "statefulsets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, busy })
		},
		"the dry run cannot be made": func(f *migrate.Finder, _ *clientset.Fake) {
			f.NoAgent = func(context.Context, *corev1.Pod) (string, error) { return "", busy }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, core := fakeFinder(foreignPod("line-0", nil))
			set(&f, core)
			list, err := f.Plan(t.Context())
			require.ErrorIs(t, err, busy)
			require.ErrorContains(t, err, "plant pod/line-0: it is unknown whether its replacement gets an agent")
			assert.Empty(t, list)
		})
	}
}

func TestTruncatedPodList(t *testing.T) {
	f, core := fakeFinder()
	core.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []corev1.Pod{*foreignPod("line-0", nil)}}, nil
	})
	list, err := f.Plan(t.Context())
	require.ErrorContains(t, err, "more than 5000 pods")
	assert.Empty(t, list, "without a complete list, no pod may be evicted")
}

// fakeDiscovery is a client whose discovery is another one.
type fakeDiscovery struct {
	kubernetes.Interface
	client discovery.DiscoveryInterfaces
}

func (f fakeDiscovery) Discovery() discovery.DiscoveryInterfaces { return f.client }

// partial is the discovery of a cluster in which the server of one API group does not answer.
type partial struct {
	discovery.DiscoveryInterfaces
	group string
}

func (p partial) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	failed := map[schema.GroupVersion]error{{Group: p.group, Version: "v1"}: errors.New("the server is unable to handle the request")}
	return []*metav1.APIResourceList{{GroupVersion: "v1"}}, &discovery.ErrGroupDiscoveryFailed{Groups: failed}
}

func TestUnavailableAPIGroup(t *testing.T) {
	for group, fails := range map[string]bool{"stoker.io": true, "metrics.k8s.io": false} {
		t.Run(group, func(t *testing.T) {
			f, core := fakeFinder()
			f.Core = fakeDiscovery{core, partial{core.Discovery(), group}}
			_, err := f.Plan(t.Context())
			assert.Equal(t, fails, err != nil, fmt.Sprint(err))
		})
	}
}
