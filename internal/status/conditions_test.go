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
)

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

func TestConditionsAreListed(t *testing.T) {
	s := newScene(t, 1)
	s.GatewaySync.Spec.Git.Repo = "git@git.example.com:site.git"
	listed := map[string]bool{}
	for _, c := range Conditions {
		listed[c.Type] = true
	}
	s.moves(commitB)
	for _, c := range s.write().Conditions {
		assert.True(t, listed[c.Type], c.Type)
	}
}

// C13: one write of a status must not keep it as it is.
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
		"lead": &sum.Status, "injector": Without(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now})} {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, len(st.Conditions), 16)
			assert.NotContains(t, condition(st, v1alpha1.ConditionReady), "Forged")
			assert.NotEmpty(t, condition(st, "Foreign0"))
		})
	}
}

// C13: a condition takes fewer reasons than a report, the rows of the last status and its outcome.
func TestReasonsOfConditions(t *testing.T) {
	valid := func(t *testing.T, st *v1alpha1.GatewaySyncStatus) {
		t.Helper()
		require.NotEmpty(t, st.Conditions)
		for _, c := range st.Conditions {
			assert.Regexp(t, `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`, c.Reason, c.Type)
		}
	}
	for _, reason := range []v1alpha1.Reason{"x y", "9", "Odd.", "\x00", "…"} {
		t.Run(fmt.Sprintf("%q", reason), func(t *testing.T) {
			s := newScene(t, 2)
			s.write()
			s.fails(0, reason, "odd")
			st := s.write()
			valid(t, st)
			assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "gw-0 (pod gw-0-0): odd")

			s.report(0).Phase, s.report(0).Reason = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing
			st.DiscoveredGateways[0].SyncStatus, st.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, reason
			valid(t, s.write())

			s.GatewaySync.Status.Outcome = &v1alpha1.Outcome{Phase: v1alpha1.OutcomeFailed, Reason: reason}
			valid(t, Without(Leaderless{GatewaySync: s.GatewaySync, Pods: s.Pods, Now: s.Now}))
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
