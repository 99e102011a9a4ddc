package follow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/loop"
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
		w, p, _ := synced(t)
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

// C19: a rollout that goes back to a commit that never ran on the gateway passes no closed window, whatever the status says.
func TestForgedRollback(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment.Windows = []v1alpha1.MaintenanceWindow{{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}
	})
	second, third := w.commit("two"), w.commit("three")
	w.ran(second)
	target := w.lead(targetCommit(third), rollout(3, 2, second, rollingBack))
	p.await("a closed window", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonMaintenanceWindow && s.Revision == target.Spec.Revision
	})
	assert.Equal(t, "one", p.title())
	w.ran(first)
	w.lead(rollout(3, 2, first, rollingBack))
	p.await("the commit that the gateway has", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonRolledBack && s.Commit == first
	})
}

// C3: a gateway that went back stays RolledBack while the spec is ahead of its SyncTarget, and its agent does not spin.
func TestRolledBackBehindSpec(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	second := w.commit("two")
	w.lead(targetCommit(second), rollout(3, 2, first))
	p.awaitSynced(second, "two")
	p.agent.end()
	var iterations atomic.Int32
	p.start(func(c *Config) { c.OnState = func(loop.State) { iterations.Add(1) } })
	w.lead(rollout(3, 2, first, rollingBack))
	rolledBack := func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonRolledBack && s.Commit == first && s.Target == second
	}
	p.await("a gateway that went back", rolledBack)
	w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref = "release" })
	w.annotate(v1alpha1.AnnotationForceSync, "f1")
	read := p.agent.traffic.count("GET gatewaysyncs")
	w.lead()
	eventually(t, "the agent reads the spec", func() bool { return p.agent.traffic.count("GET gatewaysyncs") > read })
	iterations.Store(0)
	read = p.agent.traffic.count("GET gatewaysyncs")
	time.Sleep(2 * time.Second)
	assert.Less(t, iterations.Load(), int32(5))
	assert.Less(t, p.agent.traffic.count("GET gatewaysyncs")-read, 5)
	assert.Equal(t, v1alpha1.ReasonRolledBack, p.agent.follower.State().Reason)
	assert.True(t, rolledBack(p.report().Status))
}
