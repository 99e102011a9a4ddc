package follow

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestAPIServerOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kubetest.Control(t, kubetest.Private()))
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DriftPolicy = v1alpha1.DriftReport })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")

	w.cluster.Kill(t, kubetest.APIServer)
	require.NoError(t, os.WriteFile(filepath.Join(p.data, "projects", "line", "project.json"), []byte(fmt.Sprintf(project, "by hand")), 0o600))
	eventually(t, "drift is still detected", func() bool {
		s := p.agent.follower.State()
		return s.Drift != nil && s.Drift.Files == 1
	})
	assert.Equal(t, v1alpha1.GatewaySynced, p.agent.follower.State().Phase)
	code, body := p.agent.get("/healthz")
	assert.Equal(t, 200, code, body)
	eventually(t, "the failed write of the report is logged", func() bool { return strings.Contains(p.agent.log.String(), "the report is not written") })
	w.cluster.Start(t, kubetest.APIServer)
	s := p.await("the report is written later", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 })
	assert.Equal(t, first, s.Commit)

	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")

	// While the API server hangs, requests block, but the loop must go on.
	w.cluster.Pause(t, kubetest.APIServer)
	iterations := gathered(t, p.agent, "stoker_reconcile_total")
	eventually(t, "the loop goes on", func() bool { return gathered(t, p.agent, "stoker_reconcile_total") >= iterations+2 })
	w.cluster.Resume(t, kubetest.APIServer)
	third := w.commit("three")
	eventually(t, "the API server answers", func() bool {
		_, err := kube.SyncTargets(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		return err == nil
	})
	w.lead(targetCommit(third))
	p.awaitSynced(third, "three")
}

// The agent can watch the SyncTarget but cannot read the GatewaySync, for example because its permissions were revoked.
func TestUnreadableGatewaySyncIsReported(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	var clock ahead
	a := p.start(clock.set)
	p.awaitSynced(first, "one")

	a.traffic.deny("GET gatewaysyncs")
	gs := w.edit(deadline("1h"))
	second := w.commit("two")
	w.lead(targetCommit(second), generation(gs.Generation))
	const logged = "SyncTarget not followed"
	eventually(t, "the failed read is logged", func() bool { return strings.Contains(a.log.String(), logged) })
	assert.Equal(t, v1alpha1.GatewaySynced, a.follower.State().Phase, "the outage may be short")
	clock.advanceTo(a, unconfirmedGrace)
	s := p.await("the failed read is reported", func(s v1alpha1.SyncReportStatus) bool { return strings.Contains(s.Message, "is forbidden") })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressing, s.Reason)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
	code, body := a.get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code, body)

	a.traffic.deny("")
	clock.advanceTo(a, unconfirmedGrace+2*maxGet)
	p.awaitSynced(second, "two")
	assert.Equal(t, 1, strings.Count(a.log.String(), logged))
}

// permissiveCRD accepts every object of a kind, as if the CRD had lost its validation. Its arguments are the kind and its
// singular.
const permissiveCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]ss.stoker.io}
spec:
  group: stoker.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]ss, singular: %[2]s, listKind: %[1]sList}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// C1, C2: if the CRDs of SyncTarget and SyncReport validate nothing, a malformed object affects only the agents that read it,
// and no longer than until it is replaced.
func TestMalformedObjects(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.WithoutKinds())
	cluster.Apply(t, "../../charts/stoker/files/crds/stoker.io_gatewaysyncs.yaml")
	for kind, singular := range map[string]string{"SyncTarget": "synctarget", "SyncReport": "syncreport"} {
		cluster.ApplyYAML(t, "", fmt.Sprintf(permissiveCRD, kind, singular))
	}
	w := newWorld(t, cluster)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	reports := w.clients.Dynamic.Resource(kube.SyncReport.Resource()).Namespace(w.ns)
	_, err := reports.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stoker.io/v1alpha1", "kind": "SyncReport", "metadata": map[string]any{"name": p.name}, "status": "nonsense",
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	assert.Equal(t, p.uid, string(p.report().OwnerReferences[0].UID), "the agent replaces the malformed report")

	targets := w.clients.Dynamic.Resource(kube.SyncTarget.Resource()).Namespace(w.ns)
	target, err := targets.Get(t.Context(), crName, metav1.GetOptions{})
	require.NoError(t, err)
	good := target.Object["spec"].(map[string]any)
	second := w.commit("two")
	problems := func() string { return fmt.Sprint(p.agent.follower.State().Problems) }
	// Each target differs in one field from a good one for the second commit, and has another problem than the target before it.

	// sequence: the agent must have read each target before the next one replaces it
	for _, bad := range []struct {
		field   string
		value   any
		problem string
	}{
		{"commit", int64(7), "spec.commit of type string"},
		{"commit", "'; drop", "spec.commit: "},
		{"ref", strings.Repeat("x", 100_000), "spec.ref: "},
		{"format", "one", "spec.format of type int32"},
		{"ref", "main\n-x", "spec.ref: "},
		{"ref", []any{"main"}, "spec.ref of type string"},
		{"generation", "1", "spec.generation of type int64"},
		{"generation", int64(-1), "[]"}, // the agent waits until target and GatewaySync have the same generation
		{"refName", "--upload-pack=sh", "spec.refName: "},
		{"lead", "me", "spec.lead of type"},
		{"requestedAt", strings.Repeat("9", 1<<16), "spec.requestedAt: longer than"},
		{"requests", strings.Repeat("9", 1<<16), "made from other requests"},
		{"format", int64(1 << 31), "spec.format of type int32"},
		{"format", int64(v1alpha1.TargetFormat + 1), "needs an agent of format"},
	} {
		spec := maps.Clone(good)
		spec["commit"] = second
		spec[bad.field] = bad.value
		target.Object["spec"] = spec
		target, err = targets.Update(t.Context(), target, metav1.UpdateOptions{})
		require.NoError(t, err)
		eventually(t, bad.problem, func() bool { return strings.Contains(problems(), bad.problem) }, problems)
		assert.Equal(t, "one", p.title(), bad.problem)
	}
	p.await("the last problem is reported", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	assert.Equal(t, "one", p.title())
	require.NoError(t, targets.Delete(t.Context(), crName, metav1.DeleteOptions{}))
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
}

// A sync can take an hour until it changes files. What an operator does meanwhile counts.
func TestPauseDuringSync(t *testing.T) {
	reports := func(reason v1alpha1.Reason) func(v1alpha1.SyncReportStatus) bool {
		return func(s v1alpha1.SyncReportStatus) bool {
			return s.Reason == reason && s.Phase != v1alpha1.GatewaySyncing
		}
	}
	for name, c := range map[string]struct {
		do, undo func(w *world)
		reason   v1alpha1.Reason
	}{
		"paused": {
			func(w *world) { w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = true }) },
			func(w *world) { w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = false }) },
			v1alpha1.ReasonPaused,
		},
		"profile paused": {
			func(w *world) {
				w.lead(generation(w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, true) }).Generation))
			},
			func(w *world) {
				w.lead(generation(w.edit(func(gs *v1alpha1.GatewaySync) { pauseProfile(gs, false) }).Generation))
			},
			v1alpha1.ReasonPaused,
		},
		"target deleted": {
			func(w *world) {
				require.NoError(w.t, kube.SyncTargets(w.clients.Dynamic, w.ns).Delete(w.t.Context(), crName, metav1.DeleteOptions{}))
			},
			func(*world) {},
			v1alpha1.ReasonWaitingForLead,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.gatewaySync(p)
			w.lead(targetCommit(first))
			var hold atomic.Bool
			staging, release := make(chan struct{}), make(chan struct{})
			goOn := gosync.OnceFunc(func() { close(release) })
			a := p.start(func(c *Config) {
				c.Engine.Progress = func(step string, _, _ int) {
					if step == "stage" && hold.CompareAndSwap(true, false) {
						close(staging)
						<-release
					}
				}
			})
			t.Cleanup(goOn)
			p.awaitSynced(first, "one")

			hold.Store(true)
			second := w.commit("two")
			w.lead(targetCommit(second))
			select {
			case <-staging:
			case <-time.After(liveness):
				t.Fatal("the sync does not begin")
			}
			before, _ := a.follower.targets.get()
			c.do(w)
			eventually(t, "the agent has seen the change", func() bool {
				now, err := a.follower.targets.get()
				return err != nil || now.Spec.Revision != before.Spec.Revision
			})
			goOn()
			s := p.await(string(c.reason), reports(c.reason))
			assert.Equal(t, first, s.Commit)
			assert.Equal(t, "one", p.title(), "the sync must not change a file")
			c.undo(w)
			w.lead(targetCommit(second))
			p.awaitSynced(second, "two")
		})
	}
}

// Commits may come faster than a sync ends, so a running sync ends before the next commit.
func TestCommitDuringSync(t *testing.T) {
	w := onSharedCluster(t)
	p, _ := w.syncedPod("one")
	order := p.agent.follower.State().Of
	require.NotNil(t, order)
	w.lead(targetCommit(w.commit("two")))
	p.await("another target", func(s v1alpha1.SyncReportStatus) bool { return s.Revision > order.Revision })
	assert.NoError(t, order.Stop(t.Context()))
}
