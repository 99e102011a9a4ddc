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
		a.ProposalFiles(string(v1alpha1.ProposalOpen), 3)
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

// increase() misses the first rollback if there was no sample before.
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
