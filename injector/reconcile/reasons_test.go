package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
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
	all, pods := inject.Candidates{Read: []*v1alpha1.GatewaySync{gs}}, podIndex{live: []*corev1.Pod{wrong}}
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

// A second verdict about a pod is a second Event, also if the reason is the same. The same verdict is sent once.
func TestEventsFollowVerdict(t *testing.T) {
	gs := newGatewaySync(func(gs *v1alpha1.GatewaySync) { gs.UID = "line" })
	kept := ownedPod("gw-0", "gw", "StatefulSet", false, 0)
	whole := kept.DeepCopy()
	whole.Annotations[v1alpha1.AnnotationProfile] = "none-such"
	whole.Spec.Containers = []corev1.Container{{Name: "gateway", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/usr/local/bin/ignition/data"}}}}
	whole.Spec.Volumes = []corev1.Volume{{Name: "data"}}
	client, now := clientset.New(whole, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plant"}}), noon
	u := &Reconciler{Config: Config{Core: client, Repair: RepairEvict, Metrics: counted{}, Scope: lookup.Scope{Own: "stoker-system"}, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }}, limiter: flowcontrol.NewFakeAlwaysRateLimiter(), namespaces: map[string]*namespace{}}
	n, pods := u.namespace("plant", nil), podIndex{live: []*corev1.Pod{kept}}
	look := func(t replacement) (notes []string) {
		_, err := u.repairPods(context.Background(), n, inject.Candidates{Read: []*v1alpha1.GatewaySync{gs}}, pods, map[string]replacement{"line": t}, now)
		if err != nil {
			return []string{err.Error()}
		}
		events, err := client.EventsV1().Events("plant").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return []string{err.Error()}
		}
		for _, e := range events.Items {
			notes = append(notes, e.Note)
		}
		return notes
	}
	waits := replacement{stuck: true, wait: "the agent of pod gw-1 has not started"}
	require.Len(t, look(waits), 1)
	assert.Contains(t, look(waits)[0], "none-such")

	// A user corrects the annotation of the running pod.
	whole.Annotations[v1alpha1.AnnotationProfile] = "default"
	_, err := client.CoreV1().Pods("plant").Update(t.Context(), whole, metav1.UpdateOptions{})
	require.NoError(t, err)
	kept.ResourceVersion = "2"
	notes := look(waits)
	require.Len(t, notes, 2)
	assert.Contains(t, fmt.Sprint(notes), "does not evict it yet: the agent of pod gw-1 has not started")

	now = noon.Add(maxEvictionAge)
	notes = look(replacement{})
	require.Len(t, notes, 3)
	assert.Contains(t, fmt.Sprint(notes), "too old to be evicted")
	assert.Len(t, look(replacement{}), 3)
}

// With two GatewaySyncs and a pod that names none, both say so, as `stoker check` does.
func TestStatusNamesPodWithoutGatewaySync(t *testing.T) {
	one, two := newGatewaySync(), newGatewaySync(func(gs *v1alpha1.GatewaySync) { gs.Name = "two" })
	all, pods := inject.Candidates{Read: []*v1alpha1.GatewaySync{one, two}}, podIndex{live: []*corev1.Pod{podNamed("gw-0", false)}}
	for _, gs := range all.Read {
		t.Run(gs.Name, func(t *testing.T) {
			st := leaderless(gs, pods.of(gs, all), noon)
			assert.Contains(t, readyMessage(t, st), "no agent in pods gw-0: the namespace has several GatewaySyncs (line, two): name one with the annotation stoker.io/cr-name")
		})
	}
	assert.NotContains(t, readyMessage(t, leaderless(one, pods.of(one, inject.Candidates{Read: all.Read[:1]}), noon)), "several")
}
