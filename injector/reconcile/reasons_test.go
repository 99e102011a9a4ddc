package reconcile

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/test/clientset"
)

func readyMessage(t *testing.T, s *v1alpha1.GatewaySyncStatus) string {
	t.Helper()
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	require.NotNil(t, c)
	return c.Message
}

// The status of the fleet has the reason that the Event of the pod has.
func TestStatusNamesReasonOfPodWithoutAgent(t *testing.T) {
	gs := newGatewaySync(func(gs *v1alpha1.GatewaySync) { gs.UID = "line" })
	wrong := podNamed("gw-0", false)
	wrong.UID = "gw-0"
	whole := wrong.DeepCopy()
	whole.Annotations[v1alpha1.AnnotationProfile] = "none-such"
	whole.Spec.Containers = []corev1.Container{{Name: "gateway", Image: "gateway"}}
	client := clientset.New(whole, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plant"}})
	u := &Reconciler{Config: Config{Core: client, Repair: RepairReport, Metrics: counted{}, Scope: lookup.Scope{Own: "stoker-system"}, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return noon }}, limiter: flowcontrol.NewFakeAlwaysRateLimiter(), namespaces: map[string]*namespace{}}
	n := u.namespace("plant", nil)
	all, pods := []*v1alpha1.GatewaySync{gs}, podIndex{live: []*corev1.Pod{wrong}}
	_, err := u.repairPods(t.Context(), n, all, pods, map[string]replacement{}, noon)
	require.NoError(t, err)
	events, err := client.EventsV1().Events("plant").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, events.Items, 1)
	mine := pods.of(gs, all)
	mine.without = n.without
	st := leaderless(gs, mine, noon)
	assert.Contains(t, readyMessage(t, st), "none-such")
	assert.Equal(t, "gw-0: MissingSidecar", st.Summary)
	assert.Contains(t, readyMessage(t, st), "gw-0 ("+events.Items[0].Note+")")
	assert.Contains(t, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionSidecarInjected).Message, events.Items[0].Note)
}

// With two GatewaySyncs and a pod that names none, both say so, as `stoker check` does.
func TestStatusNamesPodWithoutGatewaySync(t *testing.T) {
	one, two := newGatewaySync(), newGatewaySync(func(gs *v1alpha1.GatewaySync) { gs.Name = "two" })
	all, pods := []*v1alpha1.GatewaySync{one, two}, podIndex{live: []*corev1.Pod{podNamed("gw-0", false)}}
	for _, gs := range all {
		t.Run(gs.Name, func(t *testing.T) {
			st := leaderless(gs, pods.of(gs, all), noon)
			assert.Contains(t, readyMessage(t, st), "no agent in pods gw-0: the namespace has several GatewaySyncs (line, two): name one with the annotation stoker.io/cr-name")
		})
	}
	assert.NotContains(t, readyMessage(t, leaderless(one, pods.of(one, all[:1]), noon)), "several")
}

// Pod Security, a quota or a LimitRange refuses the pod, which only an Event of its workload says.
func TestStatusNamesRefusedPod(t *testing.T) {
	refused := func(name, note string, at time.Time) *eventsv1.Event {
		return &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name, CreationTimestamp: metav1.NewTime(at)}, Reason: "FailedCreate", Note: note,
			Regarding: corev1.ObjectReference{Kind: "StatefulSet", Namespace: "plant", Name: "gw"}}
	}
	client := clientset.New(refused("old", "exceeded quota", noon.Add(-10*time.Minute)), refused("new", "violates PodSecurity restricted", noon.Add(-time.Minute)))
	u := &Reconciler{Config: Config{Core: client, Now: func() time.Time { return noon }}, namespaces: map[string]*namespace{}}
	for name, gs := range map[string]*v1alpha1.GatewaySync{"NoGateways": newGatewaySync(), "AgentsAway": newGatewaySync(withGateways("gw"))} {
		t.Run(name, func(t *testing.T) {
			why, err := u.refused(context.Background(), u.namespace("plant", map[types.UID]bool{}), noon)
			require.NoError(t, err)
			st := leaderless(gs, podIndex{refusal: why}, noon)
			assert.Contains(t, readyMessage(t, st), "StatefulSet gw has no pods: violates PodSecurity restricted")
			assert.Equal(t, "Unknown/"+name, conditionsOf(st)["Ready"])
		})
	}
	assert.Empty(t, latestRefusal([]eventsv1.Event{*refused("old", "exceeded quota", noon.Add(-time.Hour))}, noon), "the workload was scaled down since")
}
