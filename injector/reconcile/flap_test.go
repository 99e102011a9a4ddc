package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

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
	told := map[request.Phase]int{}
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(10 * time.Second) {
		write()
		told[l.look()]++
	}
	return told
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

func pod() podIndex { return podIndex{live: []*corev1.Pod{podNamed("gw-0", true)}} }

// An agent may be OOM-killed repeatedly, or the link of a plant may drop every few minutes.
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
				told := l.leads(c.there)
				for phase, n := range l.away(c.away, pod()) {
					told[phase] += n
				}
				switch over := v1alpha1.DefaultProgressDeadline; {
				case l.now.Sub(noon) <= over:
					assert.Zero(t, told[request.Failed], began)
				case began >= over:
					assert.Zero(t, told[request.Progressing], "%s: the failure must be final", began)
				}
			}
		})
	}
}

func TestRepeatedLongAbsence(t *testing.T) {
	l := newLone(t)
	for range 5 {
		assert.Zero(t, l.leads(time.Minute)[request.Failed], "after a long absence, the deadline must start again")
		told := l.away(30*time.Minute, pod())
		assert.NotZero(t, told[request.Failed])
		assert.LessOrEqual(t, told[request.Progressing], 60, "the deadline must be at most ten minutes")
	}
}

func TestNewCommitNewDeadline(t *testing.T) {
	l := newLone(t)
	l.seen.Target.Commit = older
	for range 3 {
		l.leads(time.Minute)
		l.away(4*time.Minute, pod())
	}
	assert.Equal(t, request.Failed, l.look())
	l.seen.Target.Commit, l.seen.Target.Revision = newer, 3
	assert.Zero(t, l.leads(time.Minute)[request.Failed])
	assert.Zero(t, l.away(4*time.Minute, pod())[request.Failed])
	l.leads(time.Minute)
	l.away(5*time.Minute, pod())
	assert.Equal(t, request.Failed, l.look())
}

func TestRepeatedRequestWaitsOnce(t *testing.T) {
	for name, answers := range map[string]bool{"git answers": true, "agent ends before git answers": false} {
		t.Run(name, func(t *testing.T) {
			l := newLone(t)
			for range 3 {
				l.leads(time.Minute)
				l.away(4*time.Minute, pod())
			}
			assert.Equal(t, request.Failed, l.look())
			l.gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2"
			if answers {
				l.seen.Ref.Answered, l.seen.Target.RequestedAt = "t2", "t2"
			}
			asked := l.now
			for l.now.Before(asked.Add(2 * time.Hour)) {
				began := l.now.Sub(asked)
				told := l.leads(time.Minute)
				for phase, n := range l.away(4*time.Minute, pod()) {
					told[phase] += n
				}
				switch {
				case began < 5*time.Minute:
					assert.Zero(t, told[request.Failed], began)
				case began >= 15*time.Minute:
					assert.Zero(t, told[request.Progressing], began)
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
	l.away(time.Minute, pod())
	l.gs.Spec.Git.Ref, l.gs.Generation = "v2", 2
	assert.Zero(t, l.away(9*time.Minute, pod())[request.Failed])
	l.away(2*time.Minute, pod())
	assert.Equal(t, request.Failed, l.look())
}
