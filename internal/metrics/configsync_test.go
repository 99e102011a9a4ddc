package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestConfigSyncMetrics(t *testing.T) {
	at := metav1.Unix(1700000000, 0)
	ready := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	synced := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "a", Generation: 2}}
	synced.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: 2, Conditions: ready, LastSyncedTime: &at,
		Targets: []v1alpha1.ConfigTargetStatus{{State: v1alpha1.ConfigDrifted}, {State: v1alpha1.ConfigUnchanged}, {State: v1alpha1.ConfigUnchanged}}}
	changed := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Namespace: "plant", Name: "b", Generation: 2}}
	changed.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: 1, Conditions: ready}
	reg := prometheus.NewPedanticRegistry()
	m := NewConfigSync(reg, "v", func() []*v1alpha1.ConfigSync { return []*v1alpha1.ConfigSync{synced, changed} })
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
	assert.Equal(t, 1, testutil.CollectAndCount(m.reconcile))
}
