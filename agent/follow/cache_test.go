package follow

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// A gateway with a complete volume starts, even if the agent's own cache or its metrics port is unusable.
func TestCompleteVolumeStartsWithoutCache(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := p.run(w.cluster.Kubeconfig())
	p.awaitSynced(first, "one")
	assert.Less(t, a.stop(), grace)

	// The next pod cannot use its cache volume, and another program has taken the port.
	p.recreate()
	place := filepath.Join(p.dir, "repo")
	require.NoError(t, os.RemoveAll(place))
	require.NoError(t, os.WriteFile(place, nil, 0o600))
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	second := w.commit("two")
	a = p.run(w.cluster.Kubeconfig(), "--metrics-addr", taken.Addr().String())
	assert.Contains(t, a.opens(), "holds "+first[:7])
	code, _ := a.get("/healthz")
	assert.Equal(t, http.StatusOK, code)

	s := p.await("the agent reports the error", func(s v1alpha1.SyncReportStatus) bool {
		return s.Target == second && s.Reason == v1alpha1.ReasonWriteFailed
	})
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, first, s.Commit)
	assert.Contains(t, s.Message, "cache of git objects")
	assert.Equal(t, "one", p.title())
	code, body := a.get("/state")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, first)

	require.NoError(t, os.Remove(place)) // an operator fixes the volume, and the agent retries
	p.awaitSynced(second, "two")
	assert.Less(t, a.stop(), grace)
}

// Without a commit on the volume, the gateway waits for the first sync, which cannot run, until the deadline.
func TestEmptyVolumeWaitsForCache(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	place := filepath.Join(p.dir, "repo")
	require.NoError(t, os.RemoveAll(place))
	require.NoError(t, os.WriteFile(place, nil, 0o600))
	w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := p.run(w.cluster.Kubeconfig())
	p.await("the agent reports the error", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWriteFailed })
	code, why := a.get("/startupz")
	assert.Equal(t, http.StatusServiceUnavailable, code, why)
	require.NoError(t, os.Remove(place))
	assert.Contains(t, a.opens(), "Applied")
	assert.Equal(t, "one", p.title())
}
