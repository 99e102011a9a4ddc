package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/cluster/pki"
)

func statefulSet(name string, replicas int32) *appsv1.StatefulSet {
	p := gatewayPod("x")
	labels := map[string]string{"app.kubernetes.io/instance": name}
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(replicas), ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement,
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: p.Annotations}, Spec: p.Spec},
	}}
}

// pods returns the UIDs of a namespace's pods by name, and the number of pods with an agent.
func (w *world) pods(namespace string) (uids map[string]types.UID, injected int) {
	w.Helper()
	list, err := w.client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	uids = map[string]types.UID{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		uids[p.Name] = p.UID
		if inject.Has(p) {
			injected++
		}
	}
	return uids, injected
}

func (w *world) stateful(namespace string, set *appsv1.StatefulSet) {
	w.Helper()
	_, err := w.client.AppsV1().StatefulSets(namespace).Create(w.Context(), set, metav1.CreateOptions{})
	require.NoError(w, err)
	w.eventually("the pods exist", func() bool {
		uids, _ := w.pods(namespace)
		for i := range *set.Spec.Replicas {
			if uids[fmt.Sprintf("%s-%d", set.Name, i)] == "" {
				return false
			}
		}
		return true
	})
}

// Helm and Argo CD create StatefulSets first and objects of unknown kinds last.
func TestRepairStatefulSet(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	in := w.start()
	w.install(in)
	plant := w.cluster.Namespace(t)
	w.stateful(plant, statefulSet("site", 3))
	before, injected := w.pods(plant)
	require.Zero(t, injected)
	expected := map[string]int{"NotInjected Pod/site-0": 1, "NotInjected Pod/site-1": 1, "NotInjected Pod/site-2": 1}
	w.eventually("each pod has an Event NotInjected", func() bool { return assert.ObjectsAreEqual(expected, w.events(plant)) })

	w.gatewaySync(plant)
	w.eventually("one pod has an agent", func() bool {
		uids, injected := w.pods(plant)
		return len(uids) == 3 && injected == 1
	})
	w.looksAgain(in, plant)
	_, injected = w.pods(plant)
	require.Equal(t, 1, injected, "the next pod may be evicted only after the agent has started")
	w.eventually("all pods have agents", func() bool {
		w.startAgents(plant)
		uids, injected := w.pods(plant)
		return len(uids) == 3 && injected == 3
	})
	after, _ := w.pods(plant)
	for name := range before {
		assert.NotEqual(t, before[name], after[name])
		expected["PodEvictedForRepair Pod/"+name] = 1
	}
	expected["PodEvictedForRepair GatewaySync/line"] = 3
	w.eventually("one Event for each pod", func() bool { return assert.ObjectsAreEqual(expected, w.events(plant)) })
}

// Before this product was installed, the webhook of another program injected its own container stoker-agent.
func TestRepairPodsWithForeignAgent(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	plant := w.cluster.Namespace(t)
	set := statefulSet("site", 2)
	set.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	clean := set.Spec.Template.Spec.DeepCopy()
	set.Spec.Template.Spec.InitContainers = append(set.Spec.Template.Spec.InitContainers, corev1.Container{
		Name: inject.Container, Image: "other", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Env: []corev1.EnvVar{{Name: "POD_NAME", Value: "x"}}, VolumeMounts: []corev1.VolumeMount{{Name: "stoker-repo", MountPath: "/repo"}},
	})
	set.Spec.Template.Spec.Volumes = append(set.Spec.Template.Spec.Volumes, corev1.Volume{Name: "stoker-repo"})
	w.gatewaySync(plant)
	w.stateful(plant, set)
	foreign, _ := w.pods(plant)
	sets := w.client.AppsV1().StatefulSets(plant)
	w.updates(func() error {
		there, err := sets.Get(t.Context(), set.Name, metav1.GetOptions{})
		require.NoError(t, err)
		there.Spec.Template.Spec = *clean
		_, err = sets.Update(t.Context(), there, metav1.UpdateOptions{})
		return err
	})

	w.install(w.start())
	w.eventually("all pods have this agent", func() bool {
		w.startAgents(plant)
		uids, injected := w.pods(plant)
		return len(uids) == 2 && injected == 2 && uids["site-0"] != foreign["site-0"] && uids["site-1"] != foreign["site-1"]
	})
	assert.Contains(t, w.events(plant), "PodEvictedForRepair Pod/site-0")
}

// Pods of a Deployment get new names. A pod that requires its agent starts without an eviction once an agent is possible.
func TestRepairDeployment(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	w.install(w.start())
	plant := w.cluster.Namespace(t)
	template := statefulSet("gw", 1).Spec.Template
	_, err := w.client.AppsV1().Deployments(plant).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "gw"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.eventually("two pods without agents", func() bool {
		uids, injected := w.pods(plant)
		return len(uids) == 2 && injected == 0
	})
	set := statefulSet("site", 1)
	set.Spec.Template.Annotations[v1alpha1.AnnotationRequire] = "true"
	_, err = w.client.AppsV1().StatefulSets(plant).Create(t.Context(), set, metav1.CreateOptions{})
	require.NoError(t, err)

	w.gatewaySync(plant)
	w.eventually("three pods with agents", func() bool {
		w.startAgents(plant)
		uids, injected := w.pods(plant)
		return len(uids) == 3 && injected == 3
	})
	evicted := func() (n int) {
		for what, times := range w.events(plant) {
			if strings.HasPrefix(what, "PodEvictedForRepair Pod/") {
				assert.Contains(t, what, "Pod/gw-")
				n += times
			}
		}
		return n
	}
	w.eventually("an Event reports the evictions", func() bool { return evicted() >= 2 })
	assert.Equal(t, 2, evicted())
}

// startAgents sets the status of started agents, as kubelets do.
func (w *world) startAgents(namespace string) {
	w.Helper()
	list, err := w.client.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{})
	require.NoError(w, err)
	for i := range list.Items {
		if p := &list.Items[i]; inject.Has(p) && len(p.Status.InitContainerStatuses) == 0 {
			patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"initContainerStatuses":[{"name":%q,"image":"i","imageID":"i","ready":true,"restartCount":0,"started":true,"state":{"running":{}}}]}}`, p.UID, inject.Container)
			_, err := w.client.CoreV1().Pods(namespace).Patch(w.Context(), p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				require.NoError(w, err)
			}
		}
	}
}

// A LimitRange, which any namespace may have, refuses the agent. Repair must lose only one gateway, whichever replica runs the reconciler.
// The fleet must not count as empty. Once the agent is possible, repair continues.
func TestRepairStopsAfterRejectedSuccessor(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	runs, answers := w.start(), w.start()
	reconciles := func(in *injector) bool { return strings.Contains(in.log.String(), "reconciler started") }
	w.eventually("one replica runs the reconciler", func() bool { return reconciles(runs) || reconciles(answers) })
	if reconciles(answers) {
		runs, answers = answers, runs
	}
	w.install(answers)
	plant := w.cluster.Namespace(t)
	limits := w.client.CoreV1().LimitRanges(plant)
	_, err := limits.Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "least"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{"memory": resource.MustParse("128Mi")}}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	// a and b are a redundant pair.
	for _, name := range []string{"a", "b", "c"} {
		set := statefulSet(name, 1)
		set.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("4Gi")}
		w.stateful(plant, set)
	}
	before, _ := w.pods(plant)
	w.gatewaySync(plant)
	left := func() int {
		after, injected := w.pods(plant)
		assert.Zero(t, injected)
		for name, uid := range after {
			assert.Equal(t, before[name], uid)
		}
		return len(after)
	}
	w.eventually("one pod is evicted", func() bool { return left() == 2 })
	w.looksAgain(runs, plant)
	assert.Equal(t, 2, left())
	w.eventually("the GatewaySync reports MissingSidecar", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })

	runs.stop()
	w.eventually("the other replica runs the reconciler", func() bool { return reconciles(answers) })
	w.looksAgain(answers, plant)
	assert.Equal(t, 2, left(), "the new replica must know the eviction of the old one")

	require.NoError(t, limits.Delete(t.Context(), "least", metav1.DeleteOptions{}))
	w.eventually("all pods have agents", func() bool {
		w.startAgents(plant)
		_, injected := w.pods(plant)
		return injected == 3
	})
	for name := range before {
		w.eventually("an Event reports the evictions", func() bool { return w.events(plant)["PodEvictedForRepair Pod/"+name] > 0 })
		assert.Equal(t, 1, w.events(plant)["PodEvictedForRepair Pod/"+name])
	}
}

// If the API server cannot reach the injector, every successor lacks an agent. No pod may be evicted twice for that.
func TestSuccessorWithoutAgentIsNotEvicted(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	in := w.start()
	w.install(in)
	// From now on, the API server calls an address without a server.
	w.redirect("https://localhost:1/mutate")
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	w.seen(plant)
	w.stateful(plant, statefulSet("site", 1))
	w.eventually("the pod is evicted, and an Event explains why its successor has no agent", func() bool {
		e := w.events(plant)
		return e["PodEvictedForRepair Pod/site-0"] == 1 && e["NotInjected Pod/site-0"] == 1
	})
	uids, injected := w.pods(plant)
	assert.Zero(t, injected)
	in.stop()
	next := w.start()
	w.eventually("another replica runs the reconciler and considers its webhook ready", func() bool { return strings.Contains(next.log.String(), "reconciler started") && next.ready() })
	w.looksAgain(next, plant)
	again, _ := w.pods(plant)
	assert.Equal(t, uids, again)
	w.eventually("the GatewaySync reports MissingSidecar", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })
	assert.Equal(t, 1, w.events(plant)["RepairStopped GatewaySync/line"])
	assert.Regexp(t, `stoker_repairs_stopped [1-9]`, w.metrics(next))
}

// cert-manager has put a new authority into the webhook configuration, but the kubelet has not yet delivered the new certificate.
func TestNoEvictionWithUntrustedCertificate(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	old, err := pki.NewAuthority("old")
	require.NoError(t, err)
	next, err := pki.NewAuthority("next")
	require.NoError(t, err)
	dir := t.TempDir()
	brings := func(a *pki.Authority) {
		pair, err := a.Server(pki.Subject{Name: "stoker-injector"}, "localhost")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, corev1.TLSCertKey), pair.Cert, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, corev1.TLSPrivateKeyKey), pair.Key, 0o600))
	}
	brings(old)
	in := w.start("--certificate-dir=" + dir)
	bundle, err := next.Pair()
	require.NoError(t, err)
	w.configure(in, func(hook *admissionregv1.MutatingWebhook) { hook.ClientConfig.CABundle = bundle.Cert })
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	w.stateful(plant, statefulSet("site", 1))
	before, injected := w.pods(plant)
	require.Zero(t, injected, "the API server must not trust the injector")
	w.eventually("the reconciler has processed the pods", func() bool { return w.status(plant)["SidecarInjected"] == "False/MissingSidecar" })
	w.looksAgain(in, plant)
	require.False(t, in.ready())
	after, _ := w.pods(plant)
	require.Equal(t, before, after, "a pod whose successor would have no agent must not be evicted")

	brings(next)
	w.eventually("the pods get agents once the API server trusts the injector", func() bool {
		_, injected := w.pods(plant)
		return injected == 1
	})
	assert.True(t, in.ready())
	assert.Zero(t, w.events(plant)["RepairStopped GatewaySync/line"])
}

// redirect changes the URL that the API server calls.
func (w *world) redirect(url string) {
	w.Helper()
	configurations := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	w.updates(func() error {
		c, err := configurations.Get(w.Context(), "stoker-injector", metav1.GetOptions{})
		require.NoError(w, err)
		for i := range c.Webhooks {
			c.Webhooks[i].ClientConfig.URL = &url
		}
		_, err = configurations.Update(w.Context(), c, metav1.UpdateOptions{})
		return err
	})
	probe := w.cluster.Namespace(w)
	w.eventually("the API server calls another address", func() bool {
		p := gatewayPod("probe")
		p.Annotations[v1alpha1.AnnotationRequire] = "true"
		_, err := w.client.CoreV1().Pods(probe).Create(w.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "failed calling webhook")
	})
}

func TestRepairSkipsDisabledNamespaces(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	in := w.start("--require-namespace-label")
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	w.stateful(plant, statefulSet("site", 1))
	off := gatewayPod("off")
	off.Labels = map[string]string{"stoker.io/injection": "disabled"}
	w.pod(plant, off)
	w.eventually("an Event explains why the pod has no agent", func() bool { return w.events(plant)["NotInjected Pod/site-0"] == 1 })
	list, err := w.client.EventsV1().Events(plant).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, e := range list.Items {
		if e.Reason == v1alpha1.EventNotInjected {
			assert.Equal(t, "site-0", e.Regarding.Name, "a pod that opts out must not be reported")
			assert.Contains(t, e.Note, string(v1alpha1.ReasonNamespaceExcluded))
			assert.Contains(t, e.Note, "stoker.io/injection=enabled")
		}
	}
	w.eventually("the metrics count the pod", func() bool {
		return strings.Contains(w.metrics(in), `stoker_pods_without_agent{reason="NamespaceExcluded"} 1`)
	})
	bindings, err := w.client.RbacV1().RoleBindings(plant).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, bindings.Items, "a pod without an agent needs no permissions")
}
