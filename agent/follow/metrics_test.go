package follow

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// gathered returns the sum of a metric's series.
func gathered(t *testing.T, a *agent, name string) float64 {
	t.Helper()
	families, err := a.reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// C8: synced content does not create series.
func TestMetricsCardinality(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	w.gatewaySync(p)
	a := p.start()
	series := func() int {
		t.Helper()
		n, err := testutil.GatherAndCount(a.reg)
		require.NoError(t, err)
		return n
	}
	var before int
	for i := range 6 {
		good := w.commit(fmt.Sprintf("good %d", i))
		branch := fmt.Sprintf("branch-%d", i)
		w.repo.Git("branch", branch, good)
		w.annotate(v1alpha1.AnnotationRequestedRef, branch)
		w.lead(targetCommit(good), func(s *v1alpha1.SyncTargetSpec) { s.Ref = branch })
		p.awaitSynced(good, fmt.Sprintf("good %d", i))
		bad := w.repo.Commit("bad", gitserver.Write(fmt.Sprintf("gw/projects/p%d/project.json", i), "{"))
		w.repo.Git("branch", "--force", branch, bad)
		w.lead(targetCommit(bad))
		p.await("the invalid commit", func(s v1alpha1.SyncReportStatus) bool {
			return s.Target == bad && s.Reason == v1alpha1.ReasonConfigSyntaxError
		})
		w.repo.Commit("fixed", gitserver.Delete(fmt.Sprintf("gw/projects/p%d/project.json", i)))
		if i == 2 {
			before = series()
		}
	}
	assert.LessOrEqual(t, series(), before+3, "six more commits and three more refs; a hiccup may bring a reason that was not there before")
	problems, err := testutil.GatherAndLint(a.reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Positive(t, gathered(t, a, "stoker_last_sync_timestamp_seconds"))
}

func request(t *testing.T, a *agent, method, path, credential string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.http.URL+path, http.NoBody)
	require.NoError(t, err)
	if credential != "" {
		r.Header.Set("Authorization", credential)
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	return res.StatusCode
}
