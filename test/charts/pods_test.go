package charts

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// renewal is the CronJob that renews the webhook's certificate, and firstRenewal the Job, whose name has a hash.
const renewal, firstRenewal = "CronJob/stoker-system/stoker-certificate", "Job/stoker-system/stoker-certificate"

// pods returns the pod templates of an installation.
func pods(t *testing.T, v values) map[string]corev1.PodTemplateSpec {
	t.Helper()
	all, r := rendered(t, v), once(t, v)
	found := map[string]corev1.PodTemplateSpec{}
	for name, o := range all {
		switch o.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			found[name] = d.Spec.Template
		case "Job":
			var j batchv1.Job
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &j))
			found[firstRenewal] = j.Spec.Template
			assert.NotNil(t, j.Spec.ActiveDeadlineSeconds, "%s: a pod that cannot start must not hold up Argo CD", name)
		case "CronJob":
			var j batchv1.CronJob
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &j))
			found[name] = j.Spec.JobTemplate.Spec.Template
			assert.NotNil(t, j.Spec.JobTemplate.Spec.ActiveDeadlineSeconds, "%s: a pod that cannot start must not block later runs", name)
		}
		assert.NotContains(t, []string{"StatefulSet", "DaemonSet", "Pod"}, o.GetKind(), "this test does not cover the kind yet")
	}
	for _, hook := range r.Hooks {
		for name, o := range parse(t, []byte(hook.Manifest)) {
			var p corev1.Pod
			if o.GetKind() != "Pod" {
				assert.Contains(t, o.GetAnnotations()["helm.sh/hook-delete-policy"], "hook-failed", "%s: a right of the test must not outlive it", name)
				continue
			}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
			found[name] = corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
		}
	}
	want := []string{deployment, injectorCheck}
	if all[renewal] != nil {
		want = append(want, renewal, firstRenewal)
		assert.Equal(t, found[renewal], found[firstRenewal])
	}
	if all[receiver] != nil {
		want = append(want, receiver, receiverCheck)
	}
	if all[notifier] != nil {
		want = append(want, notifier)
	}
	if all[configSync] != nil {
		want = append(want, configSync)
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(found)), "unexpected set of pods")
	return found
}

// I6: All pods run in a namespace that enforces the Pod Security Standard restricted.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	for _, c := range valueCases {
		if c.path == "webhook.hostNetwork" {
			continue // values.yaml says that the standard refuses it
		}
		for name, p := range pods(t, c.values()) {
			for _, result := range evaluator.EvaluatePod(level, &p.ObjectMeta, &p.Spec) {
				assert.True(t, result.Allowed, "%s with %s: %s %s", name, c.path, result.ForbiddenReason, result.ForbiddenDetail)
			}
			for _, c := range p.Spec.Containers {
				assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
				assert.False(t, c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero(), name)
			}
			assert.Empty(t, p.Spec.SecurityContext.RunAsUser, "%s: the image sets the user, and some clusters assign one", name)
		}
	}
}

// A terminating replica keeps serving until its callers have noticed. A rollout never reduces the number
// of available replicas.
func TestGracefulTermination(t *testing.T) {
	t.Parallel()
	all, found := rendered(t, on), pods(t, on)
	for name, part := range map[string]string{deployment: "stoker-injector", receiver: "stoker-receiver"} {
		t.Run(part, func(t *testing.T) {
			spec := found[name].Spec
			c := spec.Containers[0]
			require.NotNil(t, c.Lifecycle.PreStop.Sleep)
			assert.Positive(t, c.Lifecycle.PreStop.Sleep.Seconds)
			assert.Less(t, c.Lifecycle.PreStop.Sleep.Seconds+20, *spec.TerminationGracePeriodSeconds, "the pod needs time for requests in progress")
			for path, want := range map[string]any{
				"spec/strategy/rollingUpdate/maxUnavailable": int64(0),
				"spec/strategy/rollingUpdate/maxSurge":       int64(1),
			} {
				look(t, all, name, path, want)
			}
			look(t, all, "PodDisruptionBudget/stoker-system/"+part, "spec/maxUnavailable", int64(1))
			look(t, all, "PodDisruptionBudget/stoker-system/"+part, "spec/unhealthyPodEvictionPolicy", "AlwaysAllow")
		})
	}
}

// The replicas of a component, its Services, its PodDisruptionBudget and its topology spread select the
// same pods, and none of the other component.
func TestSelectorsMatchPods(t *testing.T) {
	t.Parallel()
	all := rendered(t, with(on, set("metrics.serviceMonitor.enabled", true)))
	labels := map[string]any{}
	for _, name := range []string{deployment, receiver} {
		found, ok := at(all[name].Object, "spec/template/metadata/labels")
		require.True(t, ok)
		labels[name] = found
	}
	looked := 0
	for name, o := range all {
		path, selects := map[string]string{
			"Deployment": "spec/selector/matchLabels", "Service": "spec/selector", "PodDisruptionBudget": "spec/selector/matchLabels",
			"NetworkPolicy": "spec/podSelector/matchLabels", "ServiceMonitor": "spec/selector/matchLabels",
		}[o.GetKind()]
		if !selects {
			continue
		}
		mine, others := deployment, receiver
		if strings.Contains(name, "receiver") {
			mine, others = receiver, deployment
		}
		selector, ok := at(o.Object, path)
		require.True(t, ok, name)
		assert.Subset(t, labels[mine], selector, name)
		assert.NotSubset(t, labels[others], selector, name)
		assert.NotContains(t, selector, "app.kubernetes.io/instance", "%s: Argo CD may change that label", name)
		looked++
	}
	assert.Equal(t, 11, looked)
	for _, name := range []string{deployment, receiver} {
		t.Run(name, func(t *testing.T) {
			spread, ok := at(all[name].Object, pod+"/topologySpreadConstraints")
			require.True(t, ok)
			for _, s := range spread.([]any) {
				selector, _ := at(s, "labelSelector/matchLabels")
				assert.Subset(t, labels[name], selector)
			}
		})
	}
	for _, port := range []struct {
		service, name, deployment, container string
		number                               int64
	}{
		{"stoker-injector", "webhook", deployment, container, 9443},
		{"stoker-injector", "metrics", deployment, container, 8083},
		{"stoker-receiver", "webhook", receiver, receiverContainer, 9444},
		{"stoker-receiver-metrics", "metrics", receiver, receiverContainer, 8083},
	} {
		t.Run(port.service+" "+port.name, func(t *testing.T) {
			target, ok := at(all["Service/stoker-system/"+port.service].Object, "spec/ports/"+port.name+"/targetPort")
			require.True(t, ok)
			look(t, all, port.deployment, port.container+"/ports/"+target.(string)+"/containerPort", port.number)
		})
	}
	look(t, all, webhooks, "webhooks/0/clientConfig/service", values{
		"name": "stoker-injector", "namespace": namespace, "path": "/mutate", "port": int64(443),
	})
}

// Gateways of the examples start in a namespace that enforces the Pod Security Standard restricted.
func TestExamplesAreRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	seen := 0
	require.NoError(t, filepath.WalkDir("../../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "{{") || !strings.Contains(string(text), "kind: StatefulSet") {
			return err
		}
		for name, o := range parse(t, text) {
			if o.GetKind() != "StatefulSet" {
				continue
			}
			var s appsv1.StatefulSet
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s))
			for _, result := range evaluator.EvaluatePod(level, &s.Spec.Template.ObjectMeta, &s.Spec.Template.Spec) {
				assert.True(t, result.Allowed, "%s %s: %s %s", path, name, result.ForbiddenReason, result.ForbiddenDetail)
			}
			seen++
		}
		return nil
	}))
	assert.Greater(t, seen, 8)
}
