package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/hooks/migrate"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/clientset"
)

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
		"name left out": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", unnamed)}, []string{migrate.Evict, migrate.ByHand}},
		"name left out, another not ready": {[]runtime.Object{foreignPod("line-0", nil), foreignPod("line-1", func(p *corev1.Pod) {
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
func injected(context.Context, *corev1.Pod) string { return "" }

// The webhook configuration exists, but the API server does not reach the injector.
func TestInjectorDoesNotAnswer(t *testing.T) {
	f, _ := fakeFinder(foreignPod("line-0", nil))
	f.NoAgent = func(_ context.Context, p *corev1.Pod) string {
		return "cannot call the injector for " + p.Namespace + "/" + p.Annotations["stoker.io/cr-name"]
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
