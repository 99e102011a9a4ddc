package follow

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
	w.lead(at(first))
	p.start()
	p.synced(first, "one")

	w.cluster.Kill(t, kubetest.APIServer)
	require.NoError(t, os.WriteFile(filepath.Join(p.data, "projects", "line", "project.json"), []byte(fmt.Sprintf(project, "by hand")), 0o600))
	eventually(t, "the look at drift goes on", func() bool {
		s := p.agent.follower.State()
		return s.Drift != nil && s.Drift.Files == 1
	})
	assert.Equal(t, v1alpha1.GatewaySynced, p.agent.follower.State().Phase)
	code, body := p.agent.get("/healthz")
	assert.Equal(t, 200, code, body)
	eventually(t, "a report that is not written", func() bool { return strings.Contains(p.agent.log.String(), "the report is not written") })
	w.cluster.Start(t, kubetest.APIServer)
	s := p.await("it is written later", func(s v1alpha1.SyncReportStatus) bool { return s.Drift.Files == 1 })
	assert.Equal(t, first, s.Commit)

	second := w.commit("two")
	w.lead(at(second))
	p.synced(second, "two")

	// An API server that hangs is worse than none: only requests may block.
	w.cluster.Pause(t, kubetest.APIServer)
	turns := gathered(t, p.agent, "stoker_reconcile_total")
	eventually(t, "the loop turns", func() bool { return gathered(t, p.agent, "stoker_reconcile_total") >= turns+2 })
	w.cluster.Resume(t, kubetest.APIServer)
	third := w.commit("three")
	eventually(t, "the API server answers", func() bool {
		_, err := kube.SyncTargets(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		return err == nil
	})
	w.lead(at(third))
	p.synced(third, "three")
}

// An agent may watch the target, but not read the GatewaySync, for example with revoked or handwritten permissions.
func TestUnreadableGatewaySyncIsReported(t *testing.T) {
	w := shared(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(at(first))
	var clock ahead
	a := p.start(clock.set)
	p.synced(first, "one")

	a.traffic.deny("GET gatewaysyncs")
	gs := w.edit(deadline("1h"))
	second := w.commit("two")
	w.lead(at(second), generation(gs.Generation))
	const logged = "SyncTarget not followed"
	eventually(t, "it is logged", func() bool { return strings.Contains(a.log.String(), logged) })
	assert.Equal(t, v1alpha1.GatewaySynced, a.follower.State().Phase, "the outage may be short")
	clock.put(a, unconfirmedGrace)
	s := p.await("it is reported", func(s v1alpha1.SyncReportStatus) bool { return strings.Contains(s.Message, "is forbidden") })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressing, s.Reason)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
	code, said := a.get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code, said)

	a.traffic.deny("")
	clock.put(a, unconfirmedGrace+2*maxGet)
	p.synced(second, "two")
	assert.Equal(t, 1, strings.Count(a.log.String(), logged))
}

const anything = `
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

// C1, C2: if the API lacks its rules, invalid content affects only the objects that contain it.
func TestMalformedObjects(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t, kubetest.WithoutKinds())
	cluster.Apply(t, "../../charts/stoker/files/crds/stoker.io_gatewaysyncs.yaml")
	for kind, plural := range map[string]string{"SyncTarget": "synctarget", "SyncReport": "syncreport"} {
		cluster.ApplyYAML(t, "", fmt.Sprintf(anything, kind, plural))
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
	w.lead(at(first))
	p.start()
	p.synced(first, "one")
	assert.Equal(t, p.uid, string(p.report().OwnerReferences[0].UID))

	targets := w.clients.Dynamic.Resource(kube.SyncTarget.Resource()).Namespace(w.ns)
	good, err := targets.Get(t.Context(), crName, metav1.GetOptions{})
	require.NoError(t, err)
	second := w.commit("two")
	// sequence: the agent reads one target after the other, and its report below shows the effect of all
	for _, bad := range []map[string]any{
		{"commit": int64(7)},
		{"commit": "'; drop"},
		{"commit": second, "ref": strings.Repeat("x", 100_000)},
		{"commit": second, "ref": "main\n-x", "format": "one"},
		{"commit": second, "ref": []any{"main"}, "generation": "1"},
		{"commit": second, "refName": "--upload-pack=sh"},
		{"commit": second, "lead": "me"},
		{"commit": second, "requestedAt": strings.Repeat("9", 1<<16)},
		{"commit": second, "forceSync": strings.Repeat("9", 1<<16)},
		{"commit": second, "generation": int64(-1)},
		{"commit": second, "minFormat": int64(1 << 31)},
	} {
		hostile := good.DeepCopy()
		spec := hostile.Object["spec"].(map[string]any)
		for k, v := range bad {
			spec[k] = v
		}
		hostile.SetResourceVersion("")
		raw, err := hostile.MarshalJSON()
		require.NoError(t, err)
		_, err = targets.Patch(t.Context(), crName, "application/merge-patch+json", raw, metav1.PatchOptions{})
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond) // no wait: the report below shows that the objects had no effect
	}
	p.await("it says so", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonWaitingForLead || s.Reason == v1alpha1.ReasonPodRestartNeeded
	})
	assert.Equal(t, "one", p.title())
	require.NoError(t, targets.Delete(t.Context(), crName, metav1.DeleteOptions{}))
	w.lead(at(second))
	p.synced(second, "two")
}
