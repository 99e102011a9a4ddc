package metrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

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
