package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

// A commit of forty digits is not a name, and a rolled-back fleet does not run what the spec says.
func TestRollbackNamesHeldCommit(t *testing.T) {
	s := newScene(t, 2)
	s.write() // the fleet ran the commit before
	s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: commitA, v1alpha1.AnnotationRequestedUnless: commitB,
		v1alpha1.AnnotationRequestedOver: commitA + "@main"}
	s.Ref.Desired = desiredref.Desired{Ref: commitA, Override: true, ResolveSpec: true, Unless: commitB}
	s.tells(func(t *v1alpha1.SyncTargetSpec) { t.Ref, t.RefName = commitA, "" })
	s.takes(0)
	s.takes(1)
	st := s.write()
	assert.Equal(t, "rolled back: bbbbbbb of main is blocked; all 2 gateways run aaaaaaa", messageOf(st, v1alpha1.ConditionReady))
	assert.Equal(t, "aaaaaaa", st.Target.RefShort)
	assert.Equal(t, commitA, st.Target.Ref)
}

// `kubectl get` shows the same as `stoker status`.
func TestMissingRefIsNotReady(t *testing.T) {
	s := newScene(t, 3)
	assert.Equal(t, "3/3", s.write().GatewaysReady)
	s.Ref = Ref{Polled: true, Desired: desiredref.Desired{Ref: "v9"}, Err: failure.New(v1alpha1.ReasonRefNotFound, "v9 is neither a branch nor a tag")}
	st := s.write()
	assert.Equal(t, "0/3", st.GatewaysReady)
	assert.Zero(t, s.last.Synced, "the metrics must not count the gateways as synced")
	assert.Equal(t, v1alpha1.GatewaySynced, st.DiscoveredGateways[0].SyncStatus, "the row must name the commit that runs")
}

// A requested dry run runs once. No work is pending that could miss a deadline.
func TestDryRunHasNoDeadline(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonDryRun, "dry run, nothing was written: 1 file added")
	s.report(0).Phase = v1alpha1.GatewayPending
	s.write()
	st := s.after(2 * v1alpha1.DefaultProgressDeadline).write()
	assert.Equal(t, "False/DryRun", condition(st, v1alpha1.ConditionReady))
	assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
	assert.Empty(t, s.told())
}

// A wait that the spec plans has no deadline. The work begins when the window does.
func TestMaintenanceWindowHasNoDeadline(t *testing.T) {
	waiting := func(t *testing.T) *scene {
		s := newScene(t, 2)
		s.write()
		s.moves(commitB)
		s.takes(0)
		s.fails(1, v1alpha1.ReasonMaintenanceWindow, "bbbbbbb waits: syncs are allowed at 2026-01-02T22:00:00Z (maintenance window nights)")
		return s
	}
	t.Run("all other gateways synced", func(t *testing.T) {
		s := waiting(t)
		s.write()
		st := s.after(2 * v1alpha1.DefaultProgressDeadline).write()
		assert.Equal(t, "False/MaintenanceWindow", condition(st, v1alpha1.ConditionReady))
		assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "nights")
		assert.Equal(t, "True/MaintenanceWindow", condition(st, v1alpha1.ConditionReconciling))
		assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
		assert.Equal(t, v1alpha1.OutcomeHeld, st.Outcome.Phase)
		assert.True(t, s.last.Again.IsZero() || s.last.Again.After(s.Now.Add(time.Minute)))

		s.report(1).Phase, s.report(1).Reason = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing
		st = s.write()
		assert.Equal(t, "True/Progressing", condition(st, v1alpha1.ConditionReconciling), "the deadline must start when the window opens")
		st = s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
		assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
		st = s.after(2 * time.Second).write()
		assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled))
	})
	t.Run("another gateway is late", func(t *testing.T) {
		s := waiting(t)
		s.fails(0, v1alpha1.ReasonGatewayUnreachable, "refused")
		st := s.write()
		assert.Equal(t, "False/GatewayUnreachable", condition(st, v1alpha1.ConditionReady), "the window must not hide the failure")
		st = s.after(2 * v1alpha1.DefaultProgressDeadline).write()
		assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled))
	})
}

// No retry helps until a user changes the key or the certificate, so callers that wait get their answer at once.
func TestRefusedByGatewayFails(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{"GatewayForbidden", "GatewayUntrusted"} {
		t.Run(string(reason), func(t *testing.T) {
			s := newScene(t, 2)
			s.fails(0, reason, "the gateway rejects the API key")
			st := s.write()
			assert.Equal(t, "True/"+string(reason), condition(st, v1alpha1.ConditionStalled))
			assert.Equal(t, v1alpha1.OutcomeFailed, st.Outcome.Phase)
			assert.Equal(t, reason, st.Outcome.Reason)
			s.takes(0)
			assert.Equal(t, v1alpha1.OutcomeSucceeded, s.write().Outcome.Phase)
		})
	}
}

// The tag of a request moves after all gateways took the requested commit. They run it, so the fleet stays ready, with a warning.
func TestTagMovedAfterSync(t *testing.T) {
	s := newScene(t, 2)
	s.write()
	s.Ref.Err = failure.New(v1alpha1.ReasonRefMoved, "v2 is at bbbbbbb, but was requested at aaaaaaa")
	st := s.write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "False/RefMoved", condition(st, v1alpha1.ConditionRefResolved))
	assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
	assert.Equal(t, "Synced; git: RefMoved", st.Summary)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, st.Outcome.Phase)

	s.fails(1, v1alpha1.ReasonWaitingForGateway, "starts")
	st = s.write()
	assert.Equal(t, "False/RefMoved", condition(st, v1alpha1.ConditionReady), "a gateway does not have the requested commit")
	assert.Equal(t, v1alpha1.OutcomeFailed, st.Outcome.Phase)
}

// A gateway that crashes again and again must not read like one that starts slowly.
func TestCrashingGatewayInMessage(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonWaitingForGateway, "port 8088 is closed")
	s.report(0).Phase = v1alpha1.GatewayApplied
	s.Pods[0].Stuck = "container gateway keeps crashing: 5 restarts, the last exit was 137 (OOMKilled)"
	st := s.write()
	assert.Equal(t, "port 8088 is closed; container gateway keeps crashing: 5 restarts, the last exit was 137 (OOMKilled)", st.DiscoveredGateways[0].Message)
	s.takes(0)
	assert.NotContains(t, s.write().DiscoveredGateways[0].Message, "crashing")
}

// An earlier pod of the same name may have used another volume. Its report says nothing about the current pod.
func TestReportBelongsToPod(t *testing.T) {
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		ready  string
	}{
		"own pod":         {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"two owners":      {[]metav1.OwnerReference{{Kind: "Fleet", UID: "f"}, {Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"an earlier pod":  {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-earlier"}}, "False/Progressing"},
		"no owner":        {nil, "False/Progressing"},
		"another kind":    {[]metav1.OwnerReference{{Kind: "Fleet", UID: "uid-gw-0"}}, "False/Progressing"},
		"pod without UID": {[]metav1.OwnerReference{{Kind: "Pod"}}, "False/Progressing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1)
			s.Reports[0].OwnerReferences = c.owners
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			if c.ready != "True/Synced" {
				assert.Equal(t, "its agent has not reported yet", st.DiscoveredGateways[0].Message)
				assert.Empty(t, st.DiscoveredGateways[0].SyncedCommit)
			}
		})
	}
}

// The agent has its gateway name from its environment, and delivered files contain that name.
func TestRenamedPodKeepsGateway(t *testing.T) {
	s := newScene(t, 2)
	s.write()
	s.Pods[0].Annotations[v1alpha1.AnnotationGatewayName] = "gw-1"
	st := s.write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	require.Len(t, st.DiscoveredGateways, 2)
	assert.Equal(t, "gw-0", st.DiscoveredGateways[0].Name)
	assert.Equal(t, "gw-0-0", st.DiscoveredGateways[0].PodName)
	assert.Equal(t, "its pod asks for the name gw-1, which takes effect when it is recreated", st.DiscoveredGateways[0].Message)
	assert.Empty(t, st.DiscoveredGateways[1].Message)
	assert.Empty(t, s.told())

	s.report(0).Gateway = "gw-1" // the pod was recreated
	assert.Equal(t, "False/DuplicateGateway", condition(s.write(), v1alpha1.ConditionReady))
}

func TestHandWrittenAgentIdentity(t *testing.T) {
	s := newScene(t, 1)
	s.Pods[0].Labels, s.report(0).Gateway = nil, "press"
	st := s.write()
	require.Len(t, st.DiscoveredGateways, 1)
	assert.Equal(t, "press", st.DiscoveredGateways[0].Name)
	assert.Empty(t, st.DiscoveredGateways[0].Message)
}

// The ref moves to B and back to A, while the agent's report of B is delayed: the disk still holds B.
func TestStaleReportOfSameCommit(t *testing.T) {
	s := newScene(t, 1)
	assert.Equal(t, "True/Synced", condition(s.write(), v1alpha1.ConditionReady))
	s.moves(commitB)
	assert.Equal(t, "False/Progressing", condition(s.write(), v1alpha1.ConditionReady))
	s.moves(commitA)
	st := s.write()
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "0/1", st.GatewaysReady)
	assert.Equal(t, v1alpha1.GatewayPending, st.DiscoveredGateways[0].SyncStatus)
	s.takes(0)
	assert.Equal(t, "True/Synced", condition(s.write(), v1alpha1.ConditionReady))
}
