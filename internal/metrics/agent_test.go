package metrics_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// C8: closed sets of labels bound the number of series.
func TestSeriesDoNotGrowWithWhatIsSynced(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	a := metrics.NewAgent(reg, "v1", "plant", "line", "gw-1")
	record := func() {
		for _, r := range v1alpha1.Reasons {
			a.Resolved(string(r.Reason), time.Millisecond)
			a.Synced(string(r.Reason), time.Second, true, time.Unix(1700000000, 0))
			a.Scanned("projects", string(r.Reason), time.Second)
			a.Turn("standalone", string(r.Class), time.Second)
			a.ProposalCreated("github", string(r.Reason))
		}
		a.Fetched("first", time.Second)
		a.RolledBack("snapshot")
		a.Changed("added", 3)
		a.Drift(2)
		a.LostAndFound(1 << 20)
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
