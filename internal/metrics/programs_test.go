package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// C8: closed sets of labels bound the number of series.
func TestAgentCardinality(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	a := metrics.NewAgent(reg, "v1", "plant", "line", "gw-1")
	record := func() {
		for _, r := range v1alpha1.Reasons {
			a.Resolved(string(r.Reason), time.Millisecond)
			a.Synced(string(r.Reason), time.Second, true, time.Unix(1700000000, 0))
			a.Scanned("projects", string(r.Reason), time.Second)
			a.Iterated("standalone", string(r.Class), time.Second)
			a.ProposalCreated("github", string(r.Reason))
		}
		a.Fetched("first", time.Second)
		a.RolledBack("snapshot")
		a.Changed("added", 3)
		a.Drift(2)
		a.LostAndFound(1<<20, 1<<28)
		a.Behind(v1alpha1.ReasonMassDeletion)
		a.Profile("area")
		a.ProposalFiles("proposed", 3)
	}
	record()
	before := series(t, reg)
	for range 1000 {
		record()
	}
	assert.Equal(t, before, series(t, reg))

	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// In PromQL, increase() misses the first rollback if there was no sample before.
func TestRollbacksBeginAtZero(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	a := metrics.NewAgent(reg, "v1", "plant", "line", "gw-1")
	before := series(t, reg)
	for _, by := range []string{"request", "rollout", "snapshot", "auto"} { // setup: each kind that the agent counts
		a.RolledBack(by)
	}
	assert.Equal(t, before, series(t, reg))
}

func series(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	var out []string
	for _, f := range families {
		out = append(out, fmt.Sprintf("%s %d", f.GetName(), len(f.GetMetric())))
	}
	return out
}

func TestBehindSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		a := metrics.NewAgent(reg, "v1", "plant", "line", "gw-1")
		is := func() string {
			n, err := testutil.GatherAndCount(reg, "stoker_behind_seconds")
			require.NoError(t, err)
			if n == 0 {
				return ""
			}
			text, err := testutil.CollectAndFormat(reg, expfmt.TypeTextPlain, "stoker_behind_seconds")
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			return lines[len(lines)-1]
		}
		assert.Empty(t, is())
		a.Behind(v1alpha1.ReasonDesignerSessionActive)
		time.Sleep(time.Minute)
		a.Behind(v1alpha1.ReasonDesignerSessionActive)
		assert.Equal(t, `stoker_behind_seconds{reason="DesignerSessionActive"} 60`, is())
		a.Behind(v1alpha1.ReasonMassDeletion)
		assert.Equal(t, `stoker_behind_seconds{reason="MassDeletion"} 60`, is(), "another reason must not begin the time again")
		a.Behind("")
		assert.Empty(t, is())
		a.Behind(v1alpha1.ReasonScanFailed)
		assert.Equal(t, `stoker_behind_seconds{reason="ScanFailed"} 0`, is())
	})
}

// C8: pods add no series.
func TestInjectorCardinality(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := metrics.NewInjector(reg, "v1")
	record := func() {
		pods := map[v1alpha1.Reason]int{}
		for _, r := range v1alpha1.Reasons {
			m.Injection("skipped", r.Reason)
			m.Injection("injected", "")
			pods[r.Reason] = 3
		}
		m.SetPodsWithoutAgent(pods)
		m.Eviction("evicted")
		m.Iterated("namespace", "done", time.Second)
		m.SetCertificateExpiry(time.Unix(1700000000, 0))
	}
	record()
	before := series(t, reg)
	for range 1000 {
		record()
	}
	assert.Equal(t, before, series(t, reg))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)

	m.SetPodsWithoutAgent(map[v1alpha1.Reason]int{v1alpha1.ReasonNoDataVolume: 1})
	n, err := testutil.GatherAndCount(reg, "stoker_pods_without_agent")
	require.NoError(t, err)
	assert.Equal(t, 1, n, "the series of an unused reason must be removed")
}

func TestConfigSyncMetrics(t *testing.T) {
	at := metav1.Unix(1700000000, 0)
	ready := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	synced := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "a", Generation: 2}}
	synced.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: 2, Conditions: ready, LastSyncedTime: &at,
		Targets: []v1alpha1.ConfigTargetStatus{{State: v1alpha1.ConfigDrifted}, {State: v1alpha1.ConfigUnchanged}, {State: v1alpha1.ConfigUnchanged}}}
	changed := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "b", Generation: 2}}
	changed.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: 1, Conditions: ready}
	reg := prometheus.NewPedanticRegistry()
	m := metrics.NewConfigSync(reg, "v", func() []*v1alpha1.ConfigSync { return []*v1alpha1.ConfigSync{synced, changed} })
	m.Ran(v1alpha1.ClassDone, time.Second)
	m.Pruned(2, 0)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP stoker_configsync_last_applied_timestamp_seconds Unix time at which all objects of a commit were applied last.
# TYPE stoker_configsync_last_applied_timestamp_seconds gauge
stoker_configsync_last_applied_timestamp_seconds{configsync="a",namespace="plant"} 1.7e+09
# HELP stoker_configsync_pruned_total Objects that git no longer has, by result: deleted, or failed in a run.
# TYPE stoker_configsync_pruned_total counter
stoker_configsync_pruned_total{result="deleted"} 2
stoker_configsync_pruned_total{result="failed"} 0
# HELP stoker_configsync_ready 1 if the ConfigSync is Ready for its current spec, else 0.
# TYPE stoker_configsync_ready gauge
stoker_configsync_ready{configsync="a",namespace="plant"} 1
stoker_configsync_ready{configsync="b",namespace="plant"} 0
# HELP stoker_configsync_targets Objects of the ConfigSync, at most 500, by what the last run did with them.
# TYPE stoker_configsync_targets gauge
stoker_configsync_targets{configsync="a",namespace="plant",state="Drifted"} 1
stoker_configsync_targets{configsync="a",namespace="plant",state="Unchanged"} 2
# HELP stoker_reconcile_total Iterations of a loop, by outcome class.
# TYPE stoker_reconcile_total counter
stoker_reconcile_total{loop="configsync",result="done"} 1
`), "stoker_configsync_ready", "stoker_configsync_pruned_total", "stoker_configsync_targets", "stoker_configsync_last_applied_timestamp_seconds", "stoker_reconcile_total"))
}
