package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// pods are all pods that an installation runs.
func pods(t *testing.T, v values) map[string]corev1.PodTemplateSpec {
	t.Helper()
	r, err := install(t, v)
	require.NoError(t, err)
	all := parse(t, []byte(r.Manifest))
	found := map[string]corev1.PodTemplateSpec{}
	for name, o := range all {
		if o.GetKind() == "Deployment" {
			var d appsv1.Deployment
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			found[name] = d.Spec.Template
		}
		assert.NotContains(t, []string{"StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"}, o.GetKind(), "this test does not look at it yet")
	}
	for _, hook := range r.Hooks {
		for name, o := range parse(t, []byte(hook.Manifest)) {
			var p corev1.Pod
			require.Equal(t, "Pod", o.GetKind())
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
			found[name] = corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
		}
	}
	require.Len(t, found, 2, "the injector, and the pod of helm test")
	return found
}

// I6: what is installed runs in a namespace that enforces the Pod Security Standard restricted.
func TestPodsAreRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	for _, c := range valueCases {
		for name, p := range pods(t, with(c.given, set(c.path, c.value))) {
			for _, result := range evaluator.EvaluatePod(level, &p.ObjectMeta, &p.Spec) {
				assert.True(t, result.Allowed, "%s with %s: %s %s", name, c.path, result.ForbiddenReason, result.ForbiddenDetail)
			}
			for _, c := range p.Spec.Containers {
				assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
				assert.False(t, c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero(), name)
			}
			assert.Empty(t, p.Spec.SecurityContext.RunAsUser, "%s: the image says which user; some clusters give one", name)
		}
	}
}

// A replica that is asked to go stays until the API server has heard of it, and a rollout never has less than all.
func TestAReplicaLeavesAfterTheAPIServerHasHeardOfIt(t *testing.T) {
	spec := pods(t, nil)[deployment].Spec
	c := spec.Containers[0]
	require.NotNil(t, c.Lifecycle.PreStop.Sleep)
	assert.Positive(t, c.Lifecycle.PreStop.Sleep.Seconds)
	assert.Less(t, c.Lifecycle.PreStop.Sleep.Seconds+10, *spec.TerminationGracePeriodSeconds, "time to answer what is under way")
	all := rendered(t, nil)
	for path, want := range map[string]any{
		"spec/strategy/rollingUpdate/maxUnavailable": int64(0),
		"spec/strategy/rollingUpdate/maxSurge":       int64(1),
	} {
		look(t, all, deployment, path, want)
	}
	look(t, all, "PodDisruptionBudget/stoker-system/stoker-injector", "spec/maxUnavailable", int64(1))
}

// Both replicas, the Service, the budget and the spread mean the same pods.
func TestSelectorsFindTheInjectorsPods(t *testing.T) {
	all := rendered(t, set("networkPolicy.enabled", true))
	labels, ok := at(all[deployment].Object, "spec/template/metadata/labels")
	require.True(t, ok)
	for object, path := range map[string]string{
		deployment:                              "spec/selector/matchLabels",
		"Service/stoker-system/stoker-injector": "spec/selector",
		"PodDisruptionBudget/stoker-system/stoker-injector": "spec/selector/matchLabels",
		"NetworkPolicy/stoker-system/stoker-injector":       "spec/podSelector/matchLabels",
	} {
		selector, ok := at(all[object].Object, path)
		require.True(t, ok, object)
		assert.Subset(t, labels, selector, object)
		assert.NotContains(t, selector, "app.kubernetes.io/instance", "%s: Argo CD may write that label", object)
	}
	spread, ok := at(all[deployment].Object, pod+"/topologySpreadConstraints")
	require.True(t, ok)
	for _, s := range spread.([]any) {
		selector, _ := at(s, "labelSelector/matchLabels")
		assert.Subset(t, labels, selector)
	}
	service, _ := at(all["Service/stoker-system/stoker-injector"].Object, "spec/ports/webhook/targetPort")
	look(t, all, deployment, container+"/ports/"+service.(string)+"/containerPort", int64(9443))
	look(t, all, webhooks, "webhooks/0/clientConfig/service", values{
		"name": "stoker-injector", "namespace": namespace, "path": "/mutate", "port": int64(443),
	})
}
