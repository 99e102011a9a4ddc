package reconcile

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func syncOf(change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line", Generation: 3, ResourceVersion: "7",
		Annotations: map[string]string{v1alpha1.AnnotationRequestedAt: "2026-11-20T11:00:00Z"}}}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {}}
	for _, c := range change {
		c(gs)
	}
	return gs
}

func gateways(names ...string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		for _, n := range names {
			gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, v1alpha1.DiscoveredGateway{Name: n, SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: "aaaaaaa"})
		}
		gs.Status.GatewaysReady = "1/1"
	}
}

func podNamed(name string, agent bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name, Annotations: map[string]string{v1alpha1.AnnotationInject: "true"}}}
	if agent {
		p.Spec.InitContainers = []corev1.Container{{Name: inject.Container}}
	}
	return p
}

// outcome returns the conditions as operators and Argo CD see them.
func outcome(s *v1alpha1.GatewaySyncStatus) map[string]string {
	out := map[string]string{}
	for _, c := range s.Conditions {
		out[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

func TestGatewaySyncWithoutGateways(t *testing.T) {
	s := leaderless(syncOf(), podIndex{}, noon)
	assert.Equal(t, map[string]string{"Ready": "Unknown/NoGateways", "AllGatewaysSynced": "Unknown/NoGateways", "SidecarInjected": "True/SidecarInjected"}, outcome(s))
	assert.EqualValues(t, 3, s.ObservedGeneration)
	assert.Equal(t, "2026-11-20T11:00:00Z", s.LastHandledRequest)
	assert.Equal(t, "0/0", s.GatewaysReady)
	for _, c := range s.Conditions {
		assert.EqualValues(t, 3, c.ObservedGeneration, c.Type)
	}
}

func TestAbsentAgentsDeadline(t *testing.T) {
	pods := podIndex{live: []*corev1.Pod{podNamed("gw-0", true)}}
	gs := syncOf(gateways("gw"), func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = "10m" })
	meta.SetStatusCondition(&gs.Status.Conditions, metav1.Condition{Type: "Ready", Status: "True", Reason: "Synced", LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))})
	meta.SetStatusCondition(&gs.Status.Conditions, metav1.Condition{Type: "RefResolved", Status: "True", Reason: "RefResolved"})

	gs.Status = *leaderless(gs, pods, noon)
	away := map[string]string{"Ready": "Unknown/AgentsAway", "AllGatewaysSynced": "Unknown/AgentsAway", "Reconciling": "True/AgentsAway",
		"SidecarInjected": "True/SidecarInjected", "RefResolved": "True/RefResolved"}
	assert.Equal(t, away, outcome(&gs.Status))
	require.Len(t, gs.Status.DiscoveredGateways, 1)
	row := gs.Status.DiscoveredGateways[0]
	assert.Equal(t, "aaaaaaa", row.SyncedCommit, "what the last lead knew of it stays")
	assert.Equal(t, v1alpha1.GatewayPending, row.SyncStatus, "but no agent says that it runs today's spec")
	assert.Equal(t, v1alpha1.ReasonAgentsAway, row.Reason)
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	large := syncOf(gateways("gw"), func(gs *v1alpha1.GatewaySync) { gs.Status.GatewaysReady = "2999/3000" })
	assert.Equal(t, "0/3000", leaderless(large, pods, noon).GatewaysReady, "not all of a very large fleet have a row")
	assert.Empty(t, gs.Status.LastHandledRequest, "no gateway has dealt with it")

	before := gs.Status
	gs.Status = *leaderless(gs, pods, noon.Add(5*time.Minute))
	assert.Equal(t, before, gs.Status, "time alone changes nothing")

	gs.Status = *leaderless(gs, pods, noon.Add(11*time.Minute))
	over := map[string]string{"Ready": "Unknown/ProgressDeadlineExceeded", "AllGatewaysSynced": "Unknown/AgentsAway", "Stalled": "True/ProgressDeadlineExceeded",
		"SidecarInjected": "True/SidecarInjected", "RefResolved": "True/RefResolved"}
	assert.Equal(t, over, outcome(&gs.Status))
	assert.Equal(t, "2026-11-20T11:00:00Z", gs.Status.LastHandledRequest, "it is given up, and a caller that waits learns it")
	gs.Status = *leaderless(gs, pods, noon.Add(12*time.Minute))
	assert.Equal(t, over, outcome(&gs.Status))

	// A new request restarts the wait.
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "2026-11-20T12:30:00Z"
	gs.Status = *leaderless(gs, pods, noon.Add(30*time.Minute))
	assert.Equal(t, away, outcome(&gs.Status))
	assert.Equal(t, "2026-11-20T11:00:00Z", gs.Status.LastHandledRequest)
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "2026-11-20T12:35:00Z"
	gs.Status = *leaderless(gs, pods, noon.Add(40*time.Minute))
	assert.Equal(t, over, outcome(&gs.Status), "who asks again and again does not keep the deadline away")
	assert.Equal(t, "2026-11-20T12:35:00Z", gs.Status.LastHandledRequest)
}

func TestRemovedGateways(t *testing.T) {
	gs := syncOf(gateways("gw"))
	gs.Status = *leaderless(gs, podIndex{}, noon)
	assert.Equal(t, "Unknown/AgentsAway", outcome(&gs.Status)["Ready"])
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(time.Hour))
	assert.Equal(t, map[string]string{"Ready": "Unknown/NoGateways", "AllGatewaysSynced": "Unknown/NoGateways", "SidecarInjected": "True/SidecarInjected"}, outcome(&gs.Status))
	assert.Empty(t, gs.Status.DiscoveredGateways)
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(2*time.Hour))
	assert.Equal(t, "Unknown/NoGateways", outcome(&gs.Status)["Ready"])
}

// A lost node leaves pods that terminate forever. Because of them, the fleet must not count as empty, which would be healthy.
func TestEndingPodsAreWaitedFor(t *testing.T) {
	there := podIndex{ending: []*corev1.Pod{podNamed("gw-0", true)}}
	for name, gs := range map[string]*v1alpha1.GatewaySync{"known gateways": syncOf(gateways("gw")), "unknown gateways": syncOf()} {
		t.Run(name, func(t *testing.T) {
			gs.Status = *leaderless(gs, there, noon)
			assert.Equal(t, "Unknown/AgentsAway", outcome(&gs.Status)["Ready"])
			assert.Contains(t, meta.FindStatusCondition(gs.Status.Conditions, "Ready").Message, "terminating pods: gw-0")
			assert.Empty(t, gs.Status.LastHandledRequest)
			gs.Status = *leaderless(gs, there, noon.Add(time.Hour))
			assert.Equal(t, "Unknown/ProgressDeadlineExceeded", outcome(&gs.Status)["Ready"])
		})
	}
}

// The lead reports AgentsAway while its own pod ends, and the reconciler takes over. Both must use the same deadline.
func TestTheDeadlineOfTheLeadGoesOn(t *testing.T) {
	gs := syncOf(gateways("gw"))
	gs.Status.ObservedGeneration = gs.Generation
	for kind, status := range map[string]metav1.ConditionStatus{"Ready": "Unknown", "Reconciling": "True"} {
		gs.Status.Conditions = append(gs.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: string(v1alpha1.ReasonAgentsAway), LastTransitionTime: metav1.NewTime(noon.Add(-9 * time.Minute))})
	}
	gs.Status = *leaderless(gs, podIndex{}, noon)
	assert.Equal(t, "Unknown/AgentsAway", outcome(&gs.Status)["Ready"])
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(time.Minute))
	assert.Equal(t, "Unknown/NoGateways", outcome(&gs.Status)["Ready"])
}

func TestAPodWithoutItsAgentIsNamed(t *testing.T) {
	s := leaderless(syncOf(), podIndex{live: []*corev1.Pod{podNamed("gw-1", false), podNamed("gw-0", true)}}, noon)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSidecarInjected)
	assert.Equal(t, metav1.ConditionFalse, c.Status)
	assert.Equal(t, string(v1alpha1.ReasonMissingSidecar), c.Reason)
	assert.Contains(t, c.Message, "gw-1")
	assert.NotContains(t, c.Message, "gw-0")
	assert.Equal(t, "Unknown/AgentsAway", outcome(s)["Ready"], "a pod that should have an agent is a gateway")
}

// The status names what keeps an agent from running. The message must not change between retries.
func TestLeaderlessStatusExplainsPods(t *testing.T) {
	waits := func(container, reason string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "secret plant-db not found"}}}}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	long := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, StartedAt: metav1.NewTime(noon.Add(-time.Hour)), FinishedAt: metav1.NewTime(noon)}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"it runs":               {corev1.PodStatus{Phase: corev1.PodRunning}, "pods: gw-0"},
		"it starts":             {corev1.PodStatus{Phase: corev1.PodPending}, "pods: gw-0 (Pending)"},
		"no node":               {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}, "gw-0 (no node takes it: 0/3 nodes are available)"},
		"no image":              {waits("gateway", "ErrImagePull"), "gw-0 (the image of container gateway cannot be pulled)"},
		"no image, and a pause": {waits("gateway", "ImagePullBackOff"), "gw-0 (the image of container gateway cannot be pulled)"},
		"no Secret":             {waits("gateway", "CreateContainerConfigError"), "gw-0 (container gateway cannot be created: secret plant-db not found)"},
		"it crashes":            {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, LastTerminationState: ended}}}, "gw-0 (container " + inject.Container + " ends again and again)"},
		"it crashes, and runs": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: ended}}}, "gw-0 (container " + inject.Container + " ends again and again)"},
		"it crashed once": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: long}}}, "pods: gw-0"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podNamed("gw-0", true)
			pod.Spec.Containers = []corev1.Container{{Name: "gateway"}}
			pod.Status = c.status
			kept, err := slim(pod)
			require.NoError(t, err)
			again, err := slim(kept)
			require.NoError(t, err)
			assert.Equal(t, kept, again)
			s := leaderless(syncOf(gateways("gw")), podIndex{live: []*corev1.Pod{kept.(*corev1.Pod)}}, noon)
			assert.Contains(t, meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady).Message, c.want)
		})
	}
}

func TestStatusPatchPrecondition(t *testing.T) {
	gs := syncOf(gateways("gw"))
	change, err := kube.StatusDifference(&gs.Status, leaderless(gs, podIndex{live: []*corev1.Pod{podNamed("gw", true)}}, noon))
	require.NoError(t, err)
	raw, err := kube.StatusPatch(gs, change)
	require.NoError(t, err)
	var patch struct {
		Metadata map[string]any
		Status   map[string]any
	}
	require.NoError(t, json.Unmarshal(raw, &patch))
	assert.Equal(t, "7", patch.Metadata["resourceVersion"])
	assert.Equal(t, "0/1", patch.Status["gatewaysReady"])
	assert.NotContains(t, patch.Status, "target")
}

// The clock of the lead may be wrong. Only the time without a change counts, measured by our clock.
func TestLeaseIsFree(t *testing.T) {
	target := func(holder string, renewed time.Time, seconds int32) *v1alpha1.SyncTarget {
		t := &v1alpha1.SyncTarget{}
		t.Spec.Lead = v1alpha1.LeadRecord{Holder: holder, Renewed: &metav1.MicroTime{Time: renewed}, DurationSeconds: seconds}
		return t
	}
	var l lock
	assert.True(t, l.free(nil, noon))
	assert.False(t, l.free(target("", noon, 15), noon), "it may just have been let go")
	assert.Equal(t, noon.Add(16*time.Second), l.nextRead)
	assert.False(t, l.free(target("", noon, 15), noon.Add(15*time.Second)))
	assert.True(t, l.free(target("", noon, 15), noon.Add(16*time.Second)))
	assert.True(t, l.free(target("", noon, 15), noon.Add(17*time.Second)))

	l = lock{}
	long := noon.Add(-24 * time.Hour) // the lead's clock is a day behind
	assert.False(t, l.free(target("a", long, 15), noon), "it may just have been renewed")
	assert.Equal(t, noon.Add(20*time.Second), l.nextRead)
	assert.False(t, l.free(target("a", long.Add(5*time.Second), 15), noon.Add(20*time.Second)), "it was")
	assert.Equal(t, noon.Add(80*time.Second), l.nextRead)
	assert.True(t, l.free(target("a", long.Add(5*time.Second), 15), noon.Add(80*time.Second)))
	assert.False(t, l.free(target("b", noon, 15), noon.Add(81*time.Second)), "another one took it")

	// During a handover, the lock has no holder for a second.
	assert.False(t, l.free(target("", noon, 15), noon.Add(82*time.Second)))
	assert.False(t, l.free(target("c", noon, 15), noon.Add(83*time.Second)))
	assert.False(t, l.free(target("", noon, 15), noon.Add(90*time.Second)))
	assert.False(t, l.free(target("", noon, 15), noon.Add(105*time.Second)))
	assert.True(t, l.free(target("", noon, 15), noon.Add(106*time.Second)))

	l = lock{}
	assert.False(t, l.free(target("a", noon, 0), noon))
	assert.False(t, l.free(target("a", noon, 0), noon.Add(10*time.Second)))
	assert.True(t, l.free(target("a", noon, 0), noon.Add(16*time.Second)))

	l = lock{}
	assert.False(t, l.free(target("gone", noon, 3600), noon))
	assert.False(t, l.free(target("gone", noon, 3600), noon.Add(time.Minute)))
	assert.True(t, l.free(target("gone", noon, 3600), noon.Add(61*time.Second)), "a lock does not hold for as long as anybody writes into it")
}

func TestReportedEventsAreBounded(t *testing.T) {
	var s sentEvents
	for i := range 3 * maxSent {
		s.add(time.Duration(i).String())
	}
	assert.LessOrEqual(t, len(s.current)+len(s.previous), maxSent)
	assert.True(t, s.has(time.Duration(3*maxSent-1).String()))
	assert.False(t, s.has("0s"))
}

func TestForeignPodsAreTrimmed(t *testing.T) {
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

func TestEventNamesAreNames(t *testing.T) {
	long := ""
	for range 253 {
		long += "-"
	}
	assert.Len(t, eventName("a"+long, "k"), 1+1+16)
	assert.NotEqual(t, eventName("gw-0", "a"), eventName("gw-0", "b"))
	assert.Equal(t, eventName("gw-0", "a"), eventName("gw-0", "a"))
}
