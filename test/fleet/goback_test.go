package fleet

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gateway/simulator"
)

// F14: One gateway cannot load a commit, goes back by itself and stays there until a user retries. The others run the commit.
func TestAutomaticRollback(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	p := plant.NewAt(t, kubetest.Control(t), "goback", "line", 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true}
		gs.Spec.AutoRollback = &v1alpha1.AutoRollbackSpec{Enabled: true}
	})
	p.Start()
	p.Converges("first", p.First)
	broken, healthy := p.Gateways()[0], p.Gateways()[1]
	require.NoError(t, broken.Simulator.LoadFaults.Set(simulator.LoadFault{Path: "projects/line", While: `"bad"`, Hide: true}))
	bad := p.Push("bad")
	row := func() v1alpha1.DiscoveredGateway { return p.Status().DiscoveredGateways[0] }
	p.Eventually("the gateway rolls back", func() bool { return row().Reason == v1alpha1.ReasonRolledBack })
	assert.Equal(t, bad, row().AutoRollback)
	assert.Equal(t, p.First, row().SyncedCommit)
	assert.Contains(t, row().Message, "rolled back automatically (projectLoadError")
	assert.Equal(t, "first", broken.Title())
	p.Eventually("the other gateway runs the commit", func() bool { return healthy.Title() == "bad" })
	assert.Equal(t, bad, p.Status().Retry)
	assert.Equal(t, v1alpha1.OutcomeFailed, p.Status().Outcome.Phase)
	p.Eventually("the Events", func() bool { return events(t, p, v1alpha1.EventAutoRollbackPerformed, bad[:7]) == 2 })
	resp, err := http.Get("http://" + broken.Agent.Log.Address("metrics") + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	assert.Contains(t, string(body), `stoker_rollback_triggered_total{by="auto"} 1`)

	require.Error(t, broken.Agent.End(t, syscall.SIGKILL))
	broken.Start()
	p.Eventually("the restarted agent holds the commit off", func() bool { return strings.Contains(broken.Agent.Log.String(), "RolledBack") })
	assert.Equal(t, "first", broken.Title())

	require.NoError(t, broken.Simulator.LoadFaults.Set())
	person := terminal(t, p, t.TempDir())
	for c := range lines.Of("docs/how-to/auto-rollback.md") {
		assert.Contains(t, person.Type(t, c.Text), "retry requested")
		p.Converges("bad", bad)
	}
	for c := range lines.Of("docs/reference/cli.md") {
		said, _ := person.Try(t, c.Text)
		assert.Contains(t, said, "there is nothing to retry")
	}
	assert.Empty(t, row().AutoRollback)
	assert.Empty(t, p.Status().Retry)
	assert.Equal(t, 2, events(t, p, v1alpha1.EventAutoRollbackPerformed, bad[:7]), "once")
}
