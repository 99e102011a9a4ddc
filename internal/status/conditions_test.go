package status

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

func TestReadyDuringGitOutage(t *testing.T) {
	s := newScene(t, 2)
	s.asks("t1", commitA)
	s.takes(0, 1)
	s.write()
	s.Ref.Err = failure.New(v1alpha1.ReasonGitUnreachable, "refused")
	shows(t, s.after(time.Hour).write(), "Ready=True/Synced", "a handled request must not make a fleet unready")
	s.Ref.Desired.RequestedAt = "t2"
	shows(t, s.write(), "Ready=True/Synced", "a new request must not make a fleet unready before git was polled")
}

// A wave of Argo CD, a Job or an operator waits for the answer to a request, and none of them should wait forever.
func TestRequestDeadlineDuringGitOutage(t *testing.T) {
	s := synced(t, 2)
	s.Ref.Err = failure.New(v1alpha1.ReasonGitUnreachable, "refused")
	s.after(time.Hour).write()

	asked := func(at string) { s.Ref.Desired.RequestedAt, s.Ref.Answered = at, at }
	// sequence: the second request meets a fleet that missed the deadline of the first
	for _, at := range []string{"t1", "t2"} {
		asked(at)
		st := s.after(time.Minute).write()
		assert.Equal(t, "False/GitUnreachable", condition(st, v1alpha1.ConditionReady), at)
		assert.Equal(t, "True/GitUnreachable", condition(st, v1alpha1.ConditionReconciling), at)
		shows(t, st, "AllGatewaysSynced=True/Synced", "the gateways still run the target")
		assert.Equal(t, "2/2", st.GatewaysReady)
		assert.Empty(t, st.LastHandledRequest)
		assert.Empty(t, s.sent(), at)
		assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0, "each request must have its own deadline")
		s.Ref.Polled = false // a new lead starts
		st = s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
		assert.Equal(t, "True/GitUnreachable", condition(st, v1alpha1.ConditionReconciling), at)

		st = s.after(time.Second).write()
		assert.Equal(t, "False/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady), at)
		assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled), at)
		assert.Contains(t, messageOf(st, v1alpha1.ConditionStalled), "GitUnreachable: refused")
		assert.Equal(t, []string{"SyncFailed"}, s.sent(), at)
		before := *st
		assert.Equal(t, before, *s.after(time.Hour).write(), at)
		s.Ref.Polled = true
	}

	s.Ref.Err = nil
	s.asks("t2", commitB)
	shows(t, s.write(), "Ready=False/Progressing Stalled=")
	s.takes(0, 1)
	st := s.write()
	shows(t, st, "Ready=True/Synced")
	assert.Equal(t, "t2", st.LastHandledRequest)
}

// Retried Jobs and pushes may send requests at shorter intervals than the deadline.
func TestLaterRequestsKeepDeadline(t *testing.T) {
	s := synced(t, 2)
	s.Ref.Err = failure.New(v1alpha1.ReasonGitTimeout, "slow")
	var began, asked time.Time
	stalled := 0
	for i := range 30 {
		at := fmt.Sprint("t", i)
		s.Ref.Desired.RequestedAt = at
		st := s.write()
		if i > 0 {
			assert.NotEqual(t, "True/Synced", condition(st, v1alpha1.ConditionReady), "%d: Ready although the earlier request is not answered", i)
		}
		asked = s.Now
		s.Ref.Answered = at
		st = s.after(30 * time.Second).write()
		if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling); c != nil {
			began = c.LastTransitionTime.Time
			assert.Less(t, s.Now.Sub(began), v1alpha1.DefaultProgressDeadline)
		}
		for range 4 { // with the half minute before, about four minutes between two requests
			st = s.after(time.Minute - 7*time.Second).write()
			if condition(st, v1alpha1.ConditionStalled) != "" {
				stalled++
			}
		}
		if s.Now.Sub(began) >= v1alpha1.DefaultProgressDeadline {
			assert.Equal(t, "True/ProgressDeadlineExceeded", condition(&s.GatewaySync.Status, v1alpha1.ConditionStalled), "since %s, asked %s", began, asked)
		}
	}
	assert.Greater(t, stalled, 8, "every missed deadline must be reported")

	s.Ref.Err = nil
	s.asks("t29", commitA)
	s.takes(0, 1)
	shows(t, s.write(), "Ready=True/Synced")
}

// A request is answered although git never resolved a ref, so that callers learn why.
func TestRequestBeforeFirstCommit(t *testing.T) {
	s := newScene(t, 1)
	s.Target = v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}
	s.Ref = Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}, Err: v1alpha1.NewError(v1alpha1.ReasonGitUnreachable, "no route to host")}
	s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "t1", v1alpha1.AnnotationForceSync: "now"}
	st := s.write()
	assert.Equal(t, desiredref.Key(s.GatewaySync), st.ObservedRequest)
	require.NotNil(t, st.Outcome)
	assert.Contains(t, st.Outcome.Message, "no route to host")
}

var update = flag.Bool("update", false, "write the table of conditions in docs/reference/status.md")

func TestDocumentedConditions(t *testing.T) {
	const page, begin, end = "../../docs/reference/status.md", "<!-- conditions: begin -->\n", "<!-- conditions: end -->\n"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(raw), begin)
	require.True(t, found)
	is, after, found := strings.Cut(rest, end)
	require.True(t, found)
	table := "| condition | True | False | Unknown |\n|---|---|---|---|\n"
	for _, c := range Conditions {
		table += "| `" + c.Type + "` | " + c.True + " | " + c.False + " | " + c.Unknown + " |\n"
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
		return
	}
	assert.Equal(t, table, is, "go test ./internal/status -update")
}

func TestEventsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("../../api/v1alpha1/event.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/reference/status.md")
	require.NoError(t, err)
	names := regexp.MustCompile(`\bEvent\w+ += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(names), 15)
	for _, name := range names {
		assert.Contains(t, string(page), "`"+name[1]+"`")
	}
}

// C13: conditions of another writer must leave room for the lead's.
func TestForeignConditionsLeaveRoom(t *testing.T) {
	s := newScene(t, 1)
	full := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Forged", LastTransitionTime: metav1.NewTime(noon)}}
	for i := range 15 {
		full = append(full, metav1.Condition{Type: fmt.Sprint("Foreign", i), Status: metav1.ConditionTrue, Reason: "ByBob", LastTransitionTime: metav1.NewTime(noon)})
	}
	s.GatewaySync.Status.Conditions = full
	s.fails(0, v1alpha1.ReasonScanFailed, "timed out")
	sum := Summarize(s.Seen)
	for name, st := range map[string]*v1alpha1.GatewaySyncStatus{
		"lead": &sum.Status, "injector": WithoutLead(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now})} {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, len(st.Conditions), 16)
			assert.NotContains(t, condition(st, v1alpha1.ConditionReady), "Forged")
			assert.Equal(t, "True/ByBob", condition(st, "Foreign0"))
			assert.WithinDuration(t, noon, meta.FindStatusCondition(st.Conditions, "Foreign0").LastTransitionTime.Time, 0)
		})
	}
}

// C13: a condition admits fewer reasons than a report, and than the rows and the outcome of the last status.
func TestReasonsOfConditions(t *testing.T) {
	valid := func(t *testing.T, st *v1alpha1.GatewaySyncStatus) {
		t.Helper()
		require.NotEmpty(t, st.Conditions)
		for _, c := range st.Conditions {
			assert.Regexp(t, `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`, c.Reason, c.Type)
		}
		assert.LessOrEqual(t, len(st.Outcome.Reason), maxReason)
	}
	for _, reason := range []v1alpha1.Reason{"x y", "9", "Odd.", "\x00", "…", v1alpha1.Reason(strings.Repeat("A", 65))} {
		t.Run(fmt.Sprintf("%q", reason), func(t *testing.T) {
			s := synced(t, 2)
			s.fails(0, reason, "odd")
			st := s.write()
			valid(t, st)
			shows(t, st, "Ready=False/Progressing")
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "gw-0 (pod gw-0-0): odd")

			s.report(0).Phase, s.report(0).Reason = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing
			st.DiscoveredGateways[0].SyncStatus, st.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, reason
			valid(t, s.write())

			s.GatewaySync.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Reason: reason}
			valid(t, WithoutLead(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now}))
		})
	}
	for _, kind := range []string{v1alpha1.ConditionProfilesValid, v1alpha1.ConditionRefResolved} {
		t.Run("a condition "+kind+" with a longer reason than an outcome", func(t *testing.T) {
			s := synced(t, 2)
			s.Ref.Polled, s.Target.Commit, s.GatewaySync = false, "", s.GatewaySync.DeepCopy()
			c := meta.FindStatusCondition(s.GatewaySync.Status.Conditions, kind)
			c.Status, c.Reason = metav1.ConditionFalse, strings.Repeat("A", 65)
			sum := Summarize(s.Seen)
			valid(t, &sum.Status)
			valid(t, WithoutLead(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now}))
		})
	}
}

// C13: status.approval takes only a commit, and only the name of a stage.
func TestForgedTargetAndRollout(t *testing.T) {
	for name, c := range map[string]struct {
		commit, stage string
		want          *v1alpha1.Approval
	}{
		"commit and stage":  {commitA, "prod", &v1alpha1.Approval{Commit: commitA, Stage: "prod"}},
		"not a stage":       {commitA, "Prod!", nil},
		"not a commit":      {"main", "prod", nil},
		"upper-case commit": {strings.ToUpper(commitA), "prod", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := synced(t, 1)
			s.GatewaySync = s.GatewaySync.DeepCopy()
			s.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "prod", RequireApproval: true}}}
			s.GatewaySync.Status.Target.Commit = c.commit
			s.GatewaySync.Status.Rollout = &v1alpha1.RolloutStatus{Commit: c.commit, Stage: c.stage, Phase: v1alpha1.RolloutWaiting}
			st := WithoutLead(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now})
			assert.Equal(t, c.want, st.Approval)
		})
	}
}

// The time behind does not begin again when no agent leads for a while.
func TestTimeBehind(t *testing.T) {
	st := &v1alpha1.GatewaySyncStatus{}
	at := func(minute int) metav1.Time { return metav1.NewTime(noon.Add(time.Duration(minute) * time.Minute)) }
	// sequence: each status follows the one before
	for i, c := range []struct {
		status metav1.ConditionStatus
		since  int
	}{{metav1.ConditionTrue, 0}, {metav1.ConditionFalse, 1}, {metav1.ConditionUnknown, 1}, {metav1.ConditionFalse, 1}, {metav1.ConditionTrue, 4}, {metav1.ConditionUnknown, 5}, {metav1.ConditionFalse, 5}} {
		for _, kind := range []string{v1alpha1.ConditionAllGatewaysSynced, v1alpha1.ConditionReady} { // sequence: both are in one status
			putCondition(st, kind, &metav1.Condition{Status: c.status, Reason: "X", LastTransitionTime: at(i)})
		}
		assert.Equal(t, at(c.since), meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAllGatewaysSynced).LastTransitionTime, "status %d", i)
		assert.Equal(t, at(i), meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady).LastTransitionTime, "status %d", i)
	}
}
