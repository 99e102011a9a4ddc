package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/lease"
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
	all, pods := inject.Candidates{Readable: []*v1alpha1.GatewaySync{gs}}, podIndex{live: []*corev1.Pod{wrong}}
	_, err := u.repairPods(t.Context(), n, all, pods, map[string]replacement{}, noon)
	require.NoError(t, err)
	events, err := client.EventsV1().Events("plant").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, events.Items, 1)
	mine := pods.of(gs, all)
	mine.whyNoAgent = n.whyNoAgent
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
		_, err := u.repairPods(context.Background(), n, inject.Candidates{Readable: []*v1alpha1.GatewaySync{gs}}, pods, map[string]replacement{"line": t}, now)
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
	all, pods := inject.Candidates{Readable: []*v1alpha1.GatewaySync{one, two}}, podIndex{live: []*corev1.Pod{podNamed("gw-0", false)}}
	for _, gs := range all.Readable {
		t.Run(gs.Name, func(t *testing.T) {
			st := leaderless(gs, pods.of(gs, all), noon)
			assert.Contains(t, readyMessage(t, st), "no agent in pods gw-0: the namespace has several GatewaySyncs (line, two): name one with the annotation stoker.io/cr-name")
		})
	}
	assert.NotContains(t, readyMessage(t, leaderless(one, pods.of(one, inject.Candidates{Readable: all.Readable[:1]}), noon)), "several")
}

// held returns the Lease of the tests as a replica sees it.
func held(client kubernetes.Interface, holder string) lease.Lease {
	return lease.Lease{Client: client, Namespace: "stoker-system", Name: "injector", Holder: holder}
}

func TestEvictionStoreTakeover(t *testing.T) {
	object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector"}}
	object.Spec.HolderIdentity = new("a")
	client := clientset.New(object)
	now := noon
	replica := func(holder string) *evictionStore {
		l := &evictionStore{lease: held(client, holder), now: func() time.Time { return now }}
		l.load(t.Context(), slog.New(slog.DiscardHandler))
		return l
	}
	holds := func(holder string) {
		l, err := client.CoordinationV1().Leases("stoker-system").Get(t.Context(), "injector", metav1.GetOptions{})
		require.NoError(t, err)
		l.Spec.HolderIdentity = &holder
		_, err = client.CoordinationV1().Leases("stoker-system").Update(t.Context(), l, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	a := replica("a")
	e := eviction{Namespace: "plant", GatewaySync: "line", Pod: "site-0", UID: "old", Owner: "owner", By: "StatefulSet site", Newest: metav1.NewTime(noon.Local()), At: metav1.NewTime(noon.Local())}

	conflicts := 2 // the lock is renewed during the update
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts >= 0 {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "injector", errors.New("conflict"))
		}
		return false, nil, nil
	})
	require.NoError(t, a.put(t.Context(), "line", e))
	assert.Negative(t, conflicts)

	holds("b")
	b := replica("b")
	got, ok := b.of("line")
	assert.True(t, ok)
	assert.Equal(t, e, got)
	require.ErrorIs(t, a.put(t.Context(), "oven", e), lease.ErrDeposed, "a deposed replica must not evict pods")
	_, ok = a.of("oven")
	assert.False(t, ok)

	require.NoError(t, b.drop(t.Context(), "line"))
	_, ok = replica("c").of("line")
	assert.False(t, ok)

	require.NoError(t, b.put(t.Context(), "line", e))
	now = noon.Add(recordLifetime)
	_, ok = b.of("line")
	assert.False(t, ok, "the record of a deleted owner must be removed")
}

func TestEvictionStoreIsBounded(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector"}}
	lease.Spec.HolderIdentity = new("a")
	l := &evictionStore{lease: held(clientset.New(lease), "a"), now: func() time.Time { return noon }, evicted: map[types.UID]eviction{}}
	uid := types.UID("01234567-0123-0123-0123-012345678901")
	for i := range maxEvicted {
		l.evicted[types.UID(fmt.Sprintf("%s%03d", uid[3:], i))] = eviction{Namespace: "plant-of-the-north", GatewaySync: "line-of-the-north", Pod: "ignition-gateway-of-the-north-0", UID: uid, Owner: uid,
			By: "StatefulSet ignition-gateway-of-the-north", Newest: metav1.NewTime(noon), At: metav1.NewTime(noon)}
	}
	text, err := json.Marshal(l.evicted)
	require.NoError(t, err)
	assert.Less(t, len(text), 256<<10*4/5) // of the 256 KiB that the annotations of an object may have
	require.ErrorIs(t, l.put(t.Context(), "one more", eviction{}), errFull)
	l.now = func() time.Time { return noon.Add(recordLifetime) }
	require.NoError(t, l.put(t.Context(), "one more", eviction{At: metav1.NewTime(noon.Add(recordLifetime))}))
	assert.Len(t, l.evicted, 1, "expired records must be dropped")
}

func TestEvictionStoreDropsInvalidRecords(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "stoker-system", Name: "injector", Annotations: map[string]string{annotationEvicted: "{"}}}
	lease.Spec.HolderIdentity = new("a")
	l := &evictionStore{lease: held(clientset.New(lease), "a"), now: func() time.Time { return noon }}
	l.load(t.Context(), slog.New(slog.DiscardHandler))
	require.NoError(t, l.put(t.Context(), "line", eviction{At: metav1.NewTime(noon)}))
}

// The clock of the lead may be wrong. Only the time without a change counts, measured by our clock.
func TestLockIsFree(t *testing.T) {
	const held = 15 // seconds, which is also LeadDuration
	target := func(holder string, renewed time.Time, seconds int32) *v1alpha1.SyncTarget {
		st := &v1alpha1.SyncTarget{}
		st.Spec.Lead = v1alpha1.LeadRecord{Holder: holder, Renewed: &metav1.MicroTime{Time: renewed}, DurationSeconds: seconds}
		return st
	}
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	expired := v1alpha1.LeadDuration + time.Second // when a lock without a change is read again, and found to be free
	t.Run("no SyncTarget", func(t *testing.T) {
		var l lock
		assert.True(t, l.free(nil, noon))
	})
	t.Run("released", func(t *testing.T) {
		var l lock
		released := target("", noon, held)
		assert.False(t, l.free(released, noon), "a lock released now is not free")
		assert.Equal(t, after(expired), l.nextRead)
		assert.False(t, l.free(released, after(v1alpha1.LeadDuration)))
		assert.True(t, l.free(released, after(expired)))
		assert.True(t, l.free(released, after(expired+time.Second)))
	})
	t.Run("renewed", func(t *testing.T) {
		var l lock
		yesterday := noon.Add(-24 * time.Hour) // the lead's clock is a day behind
		assert.False(t, l.free(target("a", yesterday, held), noon), "a lock is not free when it is first seen")
		second := v1alpha1.LeadDuration * 4 / 3 // a lock that was never seen before is read again after 4/3 of its duration
		assert.Equal(t, after(second), l.nextRead)
		renewed := target("a", yesterday.Add(5*time.Second), held)
		assert.False(t, l.free(renewed, after(second)), "a renewed lock is not free")
		third := second + lockReadInterval // one that is being renewed is read once in this interval
		assert.Equal(t, after(third), l.nextRead)
		assert.True(t, l.free(renewed, after(third)))
		assert.False(t, l.free(target("b", noon, held), after(third+time.Second)), "a lock with a new holder is not free")
	})
	t.Run("handover", func(t *testing.T) { // the lock has no holder for a second
		l := lock{holder: "b", renewed: "before", since: noon}
		assert.False(t, l.free(target("", noon, held), noon))
		assert.False(t, l.free(target("c", noon, held), after(time.Second)))
		released := 8 * time.Second
		assert.False(t, l.free(target("", noon, held), after(released)))
		assert.False(t, l.free(target("", noon, held), after(released+v1alpha1.LeadDuration)))
		assert.True(t, l.free(target("", noon, held), after(released+expired)))
	})
	t.Run("lock without duration", func(t *testing.T) { // LeadDuration counts
		var l lock
		assert.False(t, l.free(target("a", noon, 0), noon))
		assert.False(t, l.free(target("a", noon, 0), after(10*time.Second)))
		assert.True(t, l.free(target("a", noon, 0), after(expired)))
	})
	t.Run("lock with a long duration", func(t *testing.T) {
		var l lock
		assert.False(t, l.free(target("gone", noon, 3600), noon))
		assert.False(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration)))
		assert.True(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration+time.Second)), "the duration must be limited to MaxLeadDuration")
	})
}

func TestReportedEventsAreBounded(t *testing.T) {
	var s sentEvents
	for i := range 3 * maxSent {
		s.add(strconv.Itoa(i))
	}
	assert.LessOrEqual(t, len(s.current)+len(s.previous), maxSent)
	assert.True(t, s.has(strconv.Itoa(3*maxSent-1)))
	assert.False(t, s.has("0"))
}

func TestEventName(t *testing.T) {
	long := "a" + strings.Repeat("-", 253)
	assert.Len(t, eventName(long, "k"), len("a")+len(".")+16, "a name without trailing dashes, and 16 hex digits")
	assert.NotEqual(t, eventName("gw-0", "a"), eventName("gw-0", "b"))
	assert.Equal(t, eventName("gw-0", "a"), eventName("gw-0", "a"))
}

func TestOtherPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"x": "y"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}, ServiceAccountName: "web"},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}

// I7: large annotations and many labels of a gateway pod take no memory. A name that is too long is not taken for another one.
func TestGatewayPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant", Annotations: map[string]string{
			"ignition-sync.io/inject": "true", v1alpha1.AnnotationCRName: strings.Repeat("x", 200_000), v1alpha1.AnnotationExcludePatterns: "a",
		}, Labels: map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line", "stoker.io/other": "x"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway"}}},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant",
		Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: strings.Repeat("x", maxValue)},
		Labels:      map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line"}}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}
