package follow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// patchStatus changes fields of the status of the GatewaySync, as the token of any agent can.
func (w *world) patchStatus(fields map[string]any) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": fields})
	require.NoError(w.t, err)
	_, err = kube.GatewaySyncs(w.clients.Dynamic, w.ns).Patch(w.t.Context(), crName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(w.t, err)
}

// forgeRow deletes the report of a pod, recreates the pod, and makes the status name another commit.
func (p *pod) forgeRow(commit string) {
	p.w.t.Helper()
	p.agent.end()
	require.NoError(p.w.t, kube.SyncReports(p.w.clients.Dynamic, p.w.ns).Delete(p.w.t.Context(), p.name, metav1.DeleteOptions{}))
	p.recreate()
	p.w.patchStatus(map[string]any{"discoveredGateways": []map[string]any{{"name": p.name, "syncedRef": "main", "syncedCommit": commit}}})
}

// C14: the status of a GatewaySync admits no commit that git does not have in the history of the ref.
func TestForgedRow(t *testing.T) {
	t.Run("with a forged target", func(t *testing.T) {
		w := onSharedCluster(t)
		p, _ := w.syncedPod("one")
		strange := w.stranger("stranger")
		p.forgeRow(strange)
		w.lead(targetCommit(strange))
		p.start()
		s := p.await("refused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRefNotAllowed })
		assert.Contains(t, s.Message, "is not in the history of refs/heads/main")
		assert.Equal(t, "one", p.title())
		second := w.commit("two")
		w.lead(targetCommit(second))
		p.awaitSynced(second, "two")
	})
	for name, c := range map[string]struct {
		change func(*v1alpha1.GatewaySync)
		title  string // what the gateway starts with
	}{
		"of a new volume":                     {func(*v1alpha1.GatewaySync) {}, "one"},
		"of a new volume, in a closed window": {neverOpen, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.stopped("line-0")
			first := w.commit("one")
			w.gatewaySync(p, c.change)
			w.lead(targetCommit(first))
			p.start().opens()
			p.await("the first commit", func(s v1alpha1.SyncReportStatus) bool { return s.Commit == first })
			p.agent.end()
			for _, dir := range []string{".stoker", "projects"} {
				require.NoError(t, os.RemoveAll(filepath.Join(p.data, dir)))
			}
			p.forgeRow(w.stranger("stranger"))
			why := p.start().opens()
			assert.Equal(t, c.title, p.title(), why)
			assert.Contains(t, p.agent.log.String(), "reason=RefNotAllowed")
			assert.Less(t, strings.Count(p.agent.log.String(), "msg=sync "), 8)
		})
	}
}
