package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/cluster/kubetest"
)

// I13: the agent of a gateway that has to start once more to accept the agent's key ends with a code of its own. Its pod is evicted once, if its volume
// outlives it and its GatewaySync asks for such a key.
func TestRestartForKey(t *testing.T) {
	w := newWorld(t, kubetest.Controllers())
	in := w.start()
	w.install(in)
	plant, other := w.cluster.Namespace(t), w.cluster.Namespace(t)
	keeps := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	managed := func(gs *v1alpha1.GatewaySync) { gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{Managed: true} }
	w.gatewaySync(plant, managed)
	w.gatewaySync(other)
	w.seen(plant)
	w.seen(other)
	stays := statefulSet("stays", 1)
	stays.Spec.Template.Spec.Volumes = []corev1.Volume{keeps}
	w.stateful(plant, stays)
	w.stateful(plant, statefulSet("forgets", 1))
	own := statefulSet("own", 1)
	own.Spec.Template.Spec.Volumes = []corev1.Volume{keeps}
	w.stateful(other, own)

	ends := func(namespace, name string) types.UID {
		p, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, inject.Has(p))
		patch := fmt.Sprintf(`{"status":{"initContainerStatuses":[{"name":%q,"image":"i","imageID":"i","ready":true,"restartCount":1,"started":true,"state":{"running":{}},`+
			`"lastState":{"terminated":{"exitCode":%d}}}]}}`, inject.Container, gatewaypod.ExitRestartGateway)
		_, err = w.client.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		return p.UID
	}
	first := ends(plant, "stays-0")
	ends(plant, "forgets-0")
	kept := ends(other, "own-0")
	w.eventually("the pod is replaced", func() bool {
		uids, injected := w.pods(plant)
		return uids["stays-0"] != "" && uids["stays-0"] != first && injected == 2
	})
	w.eventually("Events say it", func() bool {
		events := w.events(plant)
		return events["PodEvictedForRepair Pod/stays-0"] == 1 && events["RepairStopped Pod/forgets-0"] == 1
	})
	w.startAgents(plant)
	again := ends(plant, "stays-0")
	w.looksAgain(in, plant)
	uids, _ := w.pods(plant)
	assert.Equal(t, again, uids["stays-0"], "a pod is evicted once")
	uids, _ = w.pods(other)
	assert.Equal(t, kept, uids["own-0"], "the GatewaySync asks for no such key")
	assert.Empty(t, w.events(other))
}

func TestSteady(t *testing.T) {
	now, ready := time.Unix(0, 0), false
	is := readyFor(func() bool { return ready }, 10*time.Second, func() time.Time { return now })
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the replica must stay ready for a time before it leads")
	now = now.Add(9 * time.Second)
	assert.False(t, is())
	now = now.Add(time.Second)
	assert.True(t, is())
	ready = false
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the time must start again")
}

// I2: the shipped webhook configuration without a Service behind it.
func TestMissingService(t *testing.T) {
	w := newWorld(t)
	w.cluster.ApplyYAML(t, "", shipped(t, "MutatingWebhookConfiguration/*"))
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	required := gatewayPod("required")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	w.eventually("the webhook configuration is in force", func() bool {
		_, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "require.pods.stoker.io")
	})
	begun, called := time.Now(), w.webhookCalls()
	assert.Positive(t, called)
	plain := gatewayPod("plain")
	plain.Annotations = nil
	w.pod(plant, plain)
	ours := gatewayPod("stoker-injector-x")
	ours.Annotations[v1alpha1.AnnotationRequire] = "true" // the strictest request that a pod can make
	made, err := w.client.CoreV1().Pods(system).Create(t.Context(), ours, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	assert.False(t, inject.Has(made))
	assert.Equal(t, called, w.webhookCalls(), "the API server must not call the webhook for these pods")
	assert.False(t, inject.Has(w.pod(plant, gatewayPod("gw"))), "the pod must start without an agent")
	assert.Greater(t, w.webhookCalls(), called)
	assert.Less(t, time.Since(begun), time.Minute, "the pod must start within the timeout of a request")
}

// webhookCalls returns how often the API server has called a webhook of the injector, including failed calls.
func (w *world) webhookCalls() (n int) {
	w.Helper()
	text, err := w.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	require.NoError(w, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `pods.stoker.io"`) {
			_, value, _ := strings.Cut(line, "} ")
			times, err := strconv.Atoi(strings.TrimSpace(value))
			require.NoError(w, err)
			n += times
		}
	}
	return n
}

func TestInjectorSurvivesAPIServerOutage(t *testing.T) {
	w := newWorld(t, kubetest.Private())
	in := w.start()
	w.install(in)
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("before"))))
	in.restarted = true
	w.cluster.Kill(t, kubetest.APIServer)
	w.cluster.Start(t, kubetest.APIServer)
	w.eventually("pods get agents again", func() bool {
		made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), gatewayPod("after"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && inject.Has(made)
	})
	other := w.cluster.Namespace(t)
	w.gatewaySync(other)
	w.eventually("the reconciler continues", func() bool { return w.status(other)["Ready"] == "Unknown/NoGateways" })
}
