package main

import (
	"fmt"
	"testing"

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
