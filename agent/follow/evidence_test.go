package follow

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

func neverOpen(gs *v1alpha1.GatewaySync) {
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
		{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
}

// F30: a gateway whose report names a commit is not new, whatever its volume says.
func TestClosedWindowWithoutManifest(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, neverOpen)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	p.agent.end()

	second := w.commit("two")
	w.lead(targetCommit(second))
	require.NoError(t, os.RemoveAll(filepath.Join(p.data, ".stoker")))
	p.start()
	s := p.await("a closed window", held(v1alpha1.ReasonMaintenanceWindow))
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
}

// A gateway whose volume was lost gets its commit again before it starts, although no window allows another one.
func TestNewVolumeInClosedWindow(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, neverOpen)
	w.lead(targetCommit(first))
	assert.Contains(t, p.start().opens(), "Applied")
	p.await("the first commit", func(s v1alpha1.SyncReportStatus) bool { return s.Commit == first })
	p.agent.end()

	second := w.commit("two")
	w.lead(targetCommit(second))
	for _, dir := range []string{".stoker", "projects"} {
		require.NoError(t, os.RemoveAll(filepath.Join(p.data, dir)))
	}
	p.recreate()
	p.start().opens()
	assert.Equal(t, "one", p.title())
	p.await("the target waits", func(s v1alpha1.SyncReportStatus) bool {
		return s.Commit == first && s.Target == second && !s.Phase.Synced()
	})
	assert.Equal(t, "one", p.title())
}
