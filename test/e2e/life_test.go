//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// Pods that start before their GatewaySync exists get no agent. When it exists, the injector evicts them, and their replacements get one.
func gatewaysOlderThanGatewaySync(t *testing.T, w *world) {
	p := w.plant(t)
	p.gateways(replicas(2))
	p.ready(2)
	for _, pod := range p.pods() {
		assert.False(t, inject.Has(&pod), "%s has an agent without a GatewaySync", pod.Name)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	p.checkRepaired(2)
}

// checkRepaired checks that all pods have an agent now, and waits until Events report the evictions.
func (p *plant) checkRepaired(evicted int) {
	p.t.Helper()
	for _, pod := range p.pods() {
		assert.True(p.t, inject.Has(&pod), "%s has no agent", pod.Name)
	}
	p.eventually(p.t, "Events report the evictions", func() string {
		events := p.kubectl(p.t, "get", "events.events.k8s.io", "--namespace", p.namespace, "--field-selector", "reason="+v1alpha1.EventPodEvictedForRepair, "-o", "name")
		if n := strings.Count(events, "event"); n < evicted {
			return events
		}
		return ""
	})
}

// After a GatewaySync is deleted, its gateways keep running the last commit and follow no push. A new GatewaySync takes them over.
func deletedGatewaySyncLeavesGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways(replicas(2))
	first := p.head()
	p.synced(first, 2)
	require.NoError(t, p.syncs().Delete(p.ctx, "line", metav1.DeleteOptions{}))
	targets := kube.SyncTargets(p.dynamic, p.namespace)
	p.eventually(t, "the SyncTarget is garbage collected", func() string {
		if _, err := targets.Get(p.ctx, "line"); !apierrors.IsNotFound(err) {
			return "the SyncTarget still exists"
		}
		return ""
	})
	p.push("pushed without a GatewaySync")
	time.Sleep(10 * time.Second) // two sync periods of the agents, in which nothing may happen
	_, err := targets.Get(p.ctx, "line")
	assert.True(t, apierrors.IsNotFound(err), "an agent created a SyncTarget for the deleted GatewaySync: %v", err)
	p.ready(2)
	for _, pod := range p.pods() {
		p.runs(pod.Name, first)
	}
	p.gatewaySync()
	p.synced(p.head(), 2)
	assert.Zero(t, p.restarts())

	p.keepLogs(p.pods()...)
	require.NoError(t, p.client.AppsV1().StatefulSets(p.namespace).Delete(p.ctx, "line", metav1.DeleteOptions{}))
	p.eventually(t, "reports are garbage collected with their pods", func() string {
		reports, _, err := kube.SyncReports(p.dynamic, p.namespace).List(p.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(reports) > 0 {
			return "report " + reports[0].Name
		}
		return ""
	})
}

// The official chart labels its pods app.kubernetes.io/name: ignition and sets the instance label to the
// name of the release.
func twoReleasesAreTwoGateways(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	for _, name := range []string{"a", "b"} {
		p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
			labels := map[string]string{"app.kubernetes.io/name": "ignition", "app.kubernetes.io/instance": name}
			set.Name, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels = name+"-gateway", labels, labels
			delete(set.Spec.Template.Annotations, v1alpha1.AnnotationCRName) // optional, because the namespace has only one GatewaySync
		})
	}
	gs := p.synced(p.head(), 2)
	for _, g := range gs.Status.DiscoveredGateways {
		assert.Equal(t, g.Name+"-gateway-0", g.PodName)
	}
	p.synced(p.push("second"), 2)
}

// A pod with the annotation stoker.io/require is not created before its GatewaySync exists. A wrong git password does not keep the gateway
// from starting, and the kubelet delivers the right one to the agent.
func podThatRequiresAgent(t *testing.T, w *world) {
	p := w.plant(t)
	p.password = "wrong-" + randomSecret()
	p.replaceSecret("git-credentials", "token", p.password)
	p.gateways(replicas(1), func(set *appsv1.StatefulSet) {
		set.Spec.Template.Annotations[v1alpha1.AnnotationRequire] = "true"
	})
	p.eventually(t, "the pod is refused", func() string {
		described := p.kubectl(t, "describe", "statefulset", "line", "--namespace", p.namespace)
		return missingFrom(described, "FailedCreate", string(v1alpha1.ReasonGatewaySyncNotFound))
	})
	assert.Empty(t, p.pods())
	p.gatewaySync()
	p.waitForCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	p.ready(1)
	p.replaceSecret("git-credentials", "token", w.password)
	p.synced(p.head(), 1)
}

// The gateways run on while the API server is unavailable. When it is back, they follow a push that they missed.
func apiServerRestarts(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	p.gateways()
	p.synced(p.head(), 3)
	before := p.uids()
	w.Kill(t, kubetest.APIServer)
	p.push("pushed while the API server is unavailable")
	time.Sleep(20 * time.Second) // long enough for the lead's lock to expire
	began := time.Now()
	w.Start(t, kubetest.APIServer)
	// The API server refuses requests until it has read its roles and bindings. The agents may log a refusal a
	// moment later. The check of the logs skips this period.
	w.starting = append(w.starting, spell{began, time.Now().Add(2 * time.Second)})
	w.say("the API server is back")
	p.synced(p.head(), 3)
	assert.Equal(t, before, p.uids(), "no pod may be replaced")
	assert.Zero(t, p.restarts(), "no container of a gateway's pod may restart")
}

// uids returns the UIDs of the pods, which differ after a pod was replaced.
func (p *plant) uids() (all []types.UID) {
	p.t.Helper()
	for _, pod := range p.pods() {
		all = append(all, pod.UID)
	}
	return all
}

// Pods that start while no injector runs get no agent. When it runs again, it evicts them, and their replacements get one.
func podsStartedWithoutInjector(t *testing.T, w *world) {
	p := w.plant(t)
	p.gatewaySync()
	w.scaleInjector(t, 0)
	p.gateways(replicas(2))
	p.ready(2)
	for _, pod := range p.pods() {
		assert.False(t, inject.Has(&pod), pod.Name)
	}
	w.scaleInjector(t, 2)
	p.synced(p.head(), 2)
	p.checkRepaired(2)
}

// scaleInjector scales the injector and waits until n of its pods are ready and no others exist.
func (w *world) scaleInjector(t *testing.T, n int32) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	_, err := w.client.AppsV1().Deployments(release).Patch(w.ctx, "stoker-injector", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	require.NoError(t, err)
	w.eventually(t, fmt.Sprintf("the injector has %d ready pods", n), func() string {
		pods, err := w.client.CoreV1().Pods(release).List(w.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=injector"})
		if err != nil {
			return err.Error()
		}
		ready := 0
		for i := range pods.Items {
			if isReady(&pods.Items[i]) {
				ready++
			}
		}
		if len(pods.Items) != int(n) || ready != int(n) {
			return fmt.Sprintf("%d pods, %d ready", len(pods.Items), ready)
		}
		return ""
	})
}
