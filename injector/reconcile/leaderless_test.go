package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func newGatewaySync(change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "line", Generation: 3, ResourceVersion: "7",
		Annotations: map[string]string{v1alpha1.AnnotationRequestedAt: "2026-11-20T11:00:00Z"}}}
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": {}}
	for _, c := range change {
		c(gs)
	}
	return gs
}

func withGateways(names ...string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) {
		for _, n := range names {
			gs.Status.DiscoveredGateways = append(gs.Status.DiscoveredGateways, v1alpha1.DiscoveredGateway{Name: n, SyncStatus: v1alpha1.GatewaySynced, SyncedCommit: "aaaaaaa"})
		}
		gs.Status.GatewaysReady = fmt.Sprintf("%d/%d", len(names), len(names))
	}
}

func podNamed(name string, agent bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: name, Annotations: map[string]string{v1alpha1.AnnotationInject: "true"}}}
	if agent {
		p.Spec.InitContainers = []corev1.Container{{Name: inject.Container}}
	}
	return p
}

// conditionsOf returns the status and the reason of each condition.
func conditionsOf(s *v1alpha1.GatewaySyncStatus) map[string]string {
	out := map[string]string{}
	for _, c := range s.Conditions {
		out[c.Type] = string(c.Status) + "/" + c.Reason
	}
	return out
}

func TestGatewaySyncWithoutGateways(t *testing.T) {
	s := leaderless(newGatewaySync(), podIndex{}, noon)
	assert.Equal(t, map[string]string{"Ready": "Unknown/NoGateways", "AllGatewaysSynced": "Unknown/NoGateways", "SidecarInjected": "True/SidecarInjected"}, conditionsOf(s))
	assert.EqualValues(t, 3, s.ObservedGeneration)
	assert.Equal(t, "2026-11-20T11:00:00Z", s.LastHandledRequest)
	assert.Equal(t, "0/0", s.GatewaysReady)
	for _, c := range s.Conditions {
		assert.EqualValues(t, 3, c.ObservedGeneration, c.Type)
	}
}

func TestAbsentAgentsDeadline(t *testing.T) {
	pods := podIndex{live: []*corev1.Pod{podNamed("gw-0", true)}}
	gs := newGatewaySync(withGateways("gw"), func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = "10m" })
	meta.SetStatusCondition(&gs.Status.Conditions, metav1.Condition{Type: "Ready", Status: "True", Reason: "Synced", LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))})
	meta.SetStatusCondition(&gs.Status.Conditions, metav1.Condition{Type: "RefResolved", Status: "True", Reason: "RefResolved"})

	gs.Status = *leaderless(gs, pods, noon)
	away := map[string]string{"Ready": "Unknown/AgentsAway", "AllGatewaysSynced": "Unknown/AgentsAway", "Reconciling": "True/AgentsAway",
		"SidecarInjected": "True/SidecarInjected", "RefResolved": "True/RefResolved"}
	assert.Equal(t, away, conditionsOf(&gs.Status))
	require.Len(t, gs.Status.DiscoveredGateways, 1)
	row := gs.Status.DiscoveredGateways[0]
	assert.Equal(t, "aaaaaaa", row.SyncedCommit, "the row of the last lead must be kept")
	assert.Equal(t, v1alpha1.GatewayPending, row.SyncStatus, "without a report of an agent, the row must not be Synced")
	assert.Equal(t, v1alpha1.ReasonAgentsAway, row.Reason)
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	large := newGatewaySync(withGateways("gw"), func(gs *v1alpha1.GatewaySync) { gs.Status.GatewaysReady = "2999/3000" })
	assert.Equal(t, "0/3000", leaderless(large, pods, noon).GatewaysReady, "the total must include gateways without a row")
	assert.Empty(t, gs.Status.LastHandledRequest, "no gateway has handled the request")

	before := gs.Status
	gs.Status = *leaderless(gs, pods, noon.Add(5*time.Minute))
	assert.Equal(t, before, gs.Status, "before the deadline, the status must not change")

	gs.Status = *leaderless(gs, pods, noon.Add(11*time.Minute))
	over := map[string]string{"Ready": "Unknown/ProgressDeadlineExceeded", "AllGatewaysSynced": "Unknown/AgentsAway", "Stalled": "True/ProgressDeadlineExceeded",
		"SidecarInjected": "True/SidecarInjected", "RefResolved": "True/RefResolved"}
	assert.Equal(t, over, conditionsOf(&gs.Status))
	assert.Equal(t, "2026-11-20T11:00:00Z", gs.Status.LastHandledRequest, "the request must count as handled, so that its caller stops waiting")
	gs.Status = *leaderless(gs, pods, noon.Add(12*time.Minute))
	assert.Equal(t, over, conditionsOf(&gs.Status))

	// A new request after the deadline starts a new one.
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "2026-11-20T12:30:00Z"
	gs.Status = *leaderless(gs, pods, noon.Add(30*time.Minute))
	assert.Equal(t, away, conditionsOf(&gs.Status))
	assert.Equal(t, "2026-11-20T11:00:00Z", gs.Status.LastHandledRequest)
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "2026-11-20T12:35:00Z"
	gs.Status = *leaderless(gs, pods, noon.Add(40*time.Minute))
	assert.Equal(t, over, conditionsOf(&gs.Status), "a request before the deadline must not move it")
	assert.Equal(t, "2026-11-20T12:35:00Z", gs.Status.LastHandledRequest)
}

func TestRemovedGateways(t *testing.T) {
	gs := newGatewaySync(withGateways("gw"))
	gs.Status = *leaderless(gs, podIndex{}, noon)
	assert.Equal(t, "Unknown/AgentsAway", conditionsOf(&gs.Status)["Ready"])
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(time.Hour))
	assert.Equal(t, map[string]string{"Ready": "Unknown/NoGateways", "AllGatewaysSynced": "Unknown/NoGateways", "SidecarInjected": "True/SidecarInjected"}, conditionsOf(&gs.Status))
	assert.Empty(t, gs.Status.DiscoveredGateways)
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(2*time.Hour))
	assert.Equal(t, "Unknown/NoGateways", conditionsOf(&gs.Status)["Ready"])
}

// A lost node leaves pods that terminate forever. Because of them, the fleet must not count as empty, which would be healthy.
func TestTerminatingPodsCountAsGateways(t *testing.T) {
	terminating := podIndex{ending: []*corev1.Pod{podNamed("gw-0", true)}}
	for name, gs := range map[string]*v1alpha1.GatewaySync{"known gateways": newGatewaySync(withGateways("gw")), "unknown gateways": newGatewaySync()} {
		t.Run(name, func(t *testing.T) {
			gs.Status = *leaderless(gs, terminating, noon)
			assert.Equal(t, "Unknown/AgentsAway", conditionsOf(&gs.Status)["Ready"])
			assert.Contains(t, meta.FindStatusCondition(gs.Status.Conditions, "Ready").Message, "terminating pods: gw-0")
			assert.Empty(t, gs.Status.LastHandledRequest)
			gs.Status = *leaderless(gs, terminating, noon.Add(time.Hour))
			assert.Equal(t, "Unknown/ProgressDeadlineExceeded", conditionsOf(&gs.Status)["Ready"])
		})
	}
}

// The lead reports AgentsAway while its own pod ends, and the reconciler takes over. Both must use the same deadline, which is
// by default ten minutes after the lead's first report.
func TestTakeoverKeepsDeadline(t *testing.T) {
	gs := newGatewaySync(withGateways("gw"))
	gs.Status.ObservedGeneration = gs.Generation
	for kind, status := range map[string]metav1.ConditionStatus{"Ready": "Unknown", "Reconciling": "True"} {
		gs.Status.Conditions = append(gs.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: string(v1alpha1.ReasonAgentsAway), LastTransitionTime: metav1.NewTime(noon.Add(-9 * time.Minute))})
	}
	gs.Status = *leaderless(gs, podIndex{}, noon)
	assert.Equal(t, "Unknown/AgentsAway", conditionsOf(&gs.Status)["Ready"])
	gs.Status = *leaderless(gs, podIndex{}, noon.Add(time.Minute))
	assert.Equal(t, "Unknown/NoGateways", conditionsOf(&gs.Status)["Ready"])
}

func TestPodWithoutAgent(t *testing.T) {
	s := leaderless(newGatewaySync(), podIndex{live: []*corev1.Pod{podNamed("gw-1", false), podNamed("gw-0", true)}}, noon)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSidecarInjected)
	assert.Equal(t, metav1.ConditionFalse, c.Status)
	assert.Equal(t, string(v1alpha1.ReasonMissingSidecar), c.Reason)
	assert.Contains(t, c.Message, "gw-1")
	assert.NotContains(t, c.Message, "gw-0")
	assert.Equal(t, "Unknown/AgentsAway", conditionsOf(s)["Ready"], "a pod that requests an agent must count as a gateway")
}

// The status names what keeps an agent from running. ErrImagePull and ImagePullBackOff, between which the kubelet alternates,
// give the same message.
func TestLeaderlessStatusExplainsPods(t *testing.T) {
	waits := func(container, reason string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: container,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "secret plant-db not found"}}}}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	endedAfterAnHour := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, StartedAt: metav1.NewTime(noon.Add(-time.Hour)), FinishedAt: metav1.NewTime(noon)}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"running":                        {corev1.PodStatus{Phase: corev1.PodRunning}, "pods: gw-0"},
		"starting":                       {corev1.PodStatus{Phase: corev1.PodPending}, "pods: gw-0 (Pending)"},
		"no node":                        {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}, "gw-0 (it cannot be scheduled: 0/3 nodes are available)"},
		"no image":                       {waits("gateway", "ErrImagePull"), "gw-0 (the image of container gateway cannot be pulled)"},
		"no image, between two attempts": {waits("gateway", "ImagePullBackOff"), "gw-0 (the image of container gateway cannot be pulled)"},
		"no Secret":                      {waits("gateway", "CreateContainerConfigError"), "gw-0 (container gateway cannot be created: secret plant-db not found)"},
		"crashing":                       {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, LastTerminationState: ended}}}, "gw-0 (container " + inject.Container + " keeps crashing: 1 restart, the last exit was 1)"},
		"crashing, and running now": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, Ready: true, RestartCount: 2,
			State: running, LastTerminationState: ended}}}, "gw-0 (container " + inject.Container + " keeps crashing: 2 restarts, the last exit was 1)"},
		"crashing, and starting now": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, RestartCount: 2,
			State: running, LastTerminationState: endedAfterAnHour}}}, "gw-0 (container " + inject.Container + " keeps crashing: 2 restarts, the last exit was 1)"},
		"crashed after an hour": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, Ready: true, RestartCount: 2,
			State: running, LastTerminationState: endedAfterAnHour}}}, "pods: gw-0"},
		"crashed once": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, Ready: true, RestartCount: 1,
			State: running, LastTerminationState: ended}}}, "pods: gw-0"},
		"crashed once, and starting": {corev1.PodStatus{Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: inject.Container, RestartCount: 1,
			State: running, LastTerminationState: ended}}}, "pods: gw-0"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podNamed("gw-0", true)
			pod.Spec.Containers = []corev1.Container{{Name: "gateway"}}
			pod.Status = c.status
			kept, err := slim(pod)
			require.NoError(t, err)
			again, err := slim(kept) // client-go may call it twice
			require.NoError(t, err)
			assert.Equal(t, kept, again)
			s := leaderless(newGatewaySync(withGateways("gw")), podIndex{live: []*corev1.Pod{kept.(*corev1.Pod)}}, noon)
			message := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady).Message
			assert.True(t, strings.HasSuffix(message, c.want), message)
		})
	}
}

func TestStatusPatchPrecondition(t *testing.T) {
	gs := newGatewaySync(withGateways("gw"))
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

const (
	older = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	newer = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// lone is a fleet of one gateway. Its agent writes the status while it is present, and the reconciler while it is away.
type lone struct {
	testing.TB
	gs   *v1alpha1.GatewaySync
	seen status.Seen
	now  time.Time
}

// newLone returns a fleet whose agent delivers a commit but never finishes. The deadline is ten minutes.
func newLone(t testing.TB) *lone {
	gs := newGatewaySync(func(gs *v1alpha1.GatewaySync) {
		gs.Generation, gs.Annotations[v1alpha1.AnnotationRequestedAt] = 1, "t1"
		gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/a.git", "main"
		gs.Spec.Sync.Profiles["default"] = v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}}
	})
	report := &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "gw-0", OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: "gw-0", UID: "p"}}}}
	report.Status = v1alpha1.SyncReportStatus{Format: 1, Gateway: "gw", Profile: "default", Phase: v1alpha1.GatewaySyncing, Reason: v1alpha1.ReasonProgressing,
		Ref: "main", Target: newer, Revision: 2, Generation: 1}
	return &lone{TB: t, gs: gs, now: noon, seen: status.Seen{
		Ref:     status.Ref{Polled: true, Answered: "t1"},
		Target:  v1alpha1.SyncTargetSpec{Format: 1, Revision: 2, Generation: 1, Ref: "main", RefName: "refs/heads/main", Commit: newer, RequestedAt: "t1", Requests: annotation.Hash(gs)},
		Reports: []*v1alpha1.SyncReport{report},
		Pods: []status.Pod{{Namespace: "plant", Name: "gw-0", UID: "p", Agent: true, Labels: map[string]string{v1alpha1.LabelCRName: "line"},
			Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationGatewayName: "gw"}}},
	}}
}

// look returns the phase that Argo CD and waiting callers see.
func (l *lone) look() request.Phase { return request.Read(l.gs, "", nil, l.now).Phase }

// passes advances the time by d, calls write every ten seconds, and counts the phases.
func (l *lone) passes(d time.Duration, write func()) map[request.Phase]int {
	phases := map[request.Phase]int{}
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(10 * time.Second) {
		write()
		phases[l.look()]++
	}
	return phases
}

// leads advances the time by d while the agent leads.
func (l *lone) leads(d time.Duration) map[request.Phase]int {
	return l.passes(d, func() {
		desired, err := desiredref.Of(l.gs, "")
		assert.NoError(l, err)
		l.seen.GatewaySync, l.seen.Now, l.seen.Ref.Desired = l.gs.DeepCopy(), l.now, desired
		l.gs.Status = status.Summarize(l.seen).Status
	})
}

// away advances the time by d while only the reconciler writes the status.
func (l *lone) away(d time.Duration, pods podIndex) map[request.Phase]int {
	return l.passes(d, func() { l.gs.Status = *leaderless(l.gs, pods, l.now) })
}

// present returns the pods of the fleet while its pod exists.
func present() podIndex { return podIndex{live: []*corev1.Pod{podNamed("gw-0", true)}} }

// An agent may be OOM-killed repeatedly, or the link of a plant may drop every few minutes. The deadline does not start again each time.
func TestFlappingAgentKeepsDeadline(t *testing.T) {
	for name, c := range map[string]struct{ there, away time.Duration }{
		"mostly present": {4 * time.Minute, time.Minute},
		"mostly away":    {time.Minute, 4 * time.Minute},
		"rarely present": {20 * time.Second, 9 * time.Minute},
		"rarely away":    {9 * time.Minute, 20 * time.Second},
		"equal times":    {5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLone(t)
			for l.now.Before(noon.Add(2 * time.Hour)) {
				began := l.now.Sub(noon)
				phases := l.leads(c.there)
				for phase, n := range l.away(c.away, present()) {
					phases[phase] += n
				}
				switch over := v1alpha1.DefaultProgressDeadline; {
				case l.now.Sub(noon) <= over:
					assert.Zero(t, phases[request.Failed], began)
				case began >= over:
					assert.Zero(t, phases[request.Progressing], "%s: the failure must be final", began)
				}
			}
		})
	}
}

func TestRepeatedLongAbsence(t *testing.T) {
	l := newLone(t)
	for range 5 {
		assert.Zero(t, l.leads(time.Minute)[request.Failed], "after a long absence, the deadline must start again")
		phases := l.away(30*time.Minute, present())
		assert.NotZero(t, phases[request.Failed])
		assert.LessOrEqual(t, phases[request.Progressing], 60, "the deadline must be at most ten minutes")
	}
}

func TestNewCommitNewDeadline(t *testing.T) {
	l := newLone(t)
	l.seen.Target.Commit = older
	for range 3 {
		l.leads(time.Minute)
		l.away(4*time.Minute, present())
	}
	assert.Equal(t, request.Failed, l.look())
	l.seen.Target.Commit, l.seen.Target.Revision = newer, 3
	assert.Zero(t, l.leads(time.Minute)[request.Failed])
	assert.Zero(t, l.away(4*time.Minute, present())[request.Failed])
	l.leads(time.Minute)
	l.away(5*time.Minute, present())
	assert.Equal(t, request.Failed, l.look())
}

func TestRepeatedRequestWaitsOnce(t *testing.T) {
	for name, answers := range map[string]bool{"git answers": true, "agent ends before git answers": false} {
		t.Run(name, func(t *testing.T) {
			l := newLone(t)
			for range 3 {
				l.leads(time.Minute)
				l.away(4*time.Minute, present())
			}
			assert.Equal(t, request.Failed, l.look())
			l.gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2"
			if answers {
				l.seen.Ref.Answered, l.seen.Target.RequestedAt = "t2", "t2"
			}
			asked := l.now
			for l.now.Before(asked.Add(2 * time.Hour)) {
				began := l.now.Sub(asked)
				phases := l.leads(time.Minute)
				for phase, n := range l.away(4*time.Minute, present()) {
					phases[phase] += n
				}
				switch {
				case began < 5*time.Minute:
					assert.Zero(t, phases[request.Failed], began)
				case began >= 15*time.Minute:
					assert.Zero(t, phases[request.Progressing], began)
				}
			}
		})
	}
}

// A rollout starts just before the deadline. The status must report the unfinished work. For a while, the reconciler cannot know that the
// fleet was not scaled to zero.
func TestFleetRestartAtDeadline(t *testing.T) {
	l := newLone(t)
	l.leads(9*time.Minute + 50*time.Second)
	l.away(9*time.Minute, podIndex{})
	assert.Equal(t, "Unknown/ProgressDeadlineExceeded", conditionsOf(&l.gs.Status)["Ready"])
	assert.Equal(t, "True/ProgressDeadlineExceeded", conditionsOf(&l.gs.Status)["Stalled"])
	assert.Equal(t, "not done within 10m0s: AgentsAway: no agent leads; the pods of its gateways are gone", meta.FindStatusCondition(l.gs.Status.Conditions, "Ready").Message)
	assert.Equal(t, request.Failed, l.look())
	assert.Len(t, l.gs.Status.DiscoveredGateways, 1)
	l.leads(10 * time.Second)
	assert.Equal(t, "False/ProgressDeadlineExceeded", conditionsOf(&l.gs.Status)["Ready"], "a restart must not count as progress")

	l.away(11*time.Minute, podIndex{})
	assert.Equal(t, "Unknown/NoGateways", conditionsOf(&l.gs.Status)["Ready"])
}

func TestSpecChangeWithoutAgents(t *testing.T) {
	l := newLone(t)
	l.leads(time.Minute)
	l.away(time.Minute, present())
	l.gs.Spec.Git.Ref, l.gs.Generation = "v2", 2
	assert.Zero(t, l.away(9*time.Minute, present())[request.Failed])
	l.away(2*time.Minute, present())
	assert.Equal(t, request.Failed, l.look())

	t.Run("the commit of the new spec is not known", func(t *testing.T) {
		l := newLone(t)
		l.gs.Status.LastGood = &v1alpha1.CommitRecord{Ref: "main", Commit: older, At: metav1.NewTime(noon)}
		l.leads(time.Minute)
		l.away(time.Minute, present())
		require.Equal(t, newer, l.gs.Status.Outcome.Commit)
		require.NotNil(t, l.gs.Status.Rollback)
		l.gs.Spec.Git.Repo, l.gs.Generation = "https://git.example.com/b.git", 2
		for range 2 { // sequence: the second pass reads the status of the first
			l.gs.Status = *leaderless(l.gs, present(), l.now)
			assert.Empty(t, l.gs.Status.Outcome.Commit)
			assert.Nil(t, l.gs.Status.Rollback)
		}
	})
}
