package follow

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	gosync "sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
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
	p.edits("by hand")
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

	p.follows("two")

	// While the API server hangs, requests block, but the loop must go on.
	w.cluster.Pause(t, kubetest.APIServer)
	p.agent.iterates(2)
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
	second := w.moves("two", generation(gs.Generation))
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
			second := w.moves("two")
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
	w, p, _ := synced(t)
	order := p.agent.follower.State().Of
	require.NotNil(t, order)
	w.lead(targetCommit(w.commit("two")))
	p.await("another target", func(s v1alpha1.SyncReportStatus) bool { return s.Revision > order.Revision })
	assert.NoError(t, order.Stop(t.Context()))
}

func TestFollowTargets(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	gs := w.gatewaySync(p)
	a := p.start()
	s := p.await("WaitingForLead", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)

	w.lead(targetCommit(first))
	assert.Contains(t, a.opens(), "is already running")
	s = p.awaitSynced(first, "one")
	assert.Equal(t, gs.Generation, s.Generation)
	assert.EqualValues(t, 1, s.Term)
	assert.Equal(t, "default", s.Profile)
	assert.Equal(t, "main", s.Ref)
	assert.Equal(t, v1alpha1.FileCounts{Added: 1}, s.Files)
	assert.Equal(t, []string{"line"}, s.Projects)
	assert.NotEmpty(t, s.Scan)
	r := p.report()
	assert.Equal(t, crName, r.Labels[v1alpha1.LabelCRName])
	require.Len(t, r.OwnerReferences, 1)
	assert.Equal(t, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "line-0", UID: types.UID(p.uid)}, r.OwnerReferences[0])

	p.follows("two")
	after, err := w.clients.Dynamic.Resource(kube.SyncReport.Resource()).Namespace(w.ns).Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.LessOrEqual(t, after.GetGeneration()-r.Generation, int64(2), "one write for Syncing, one for Synced")
	status, _ := after.Object["status"].(map[string]any)
	assert.Equal(t, []string{"agentVersion", "commit", "drift", "duration", "files", "format", "gateway", "generation", "message", "phase", "profile", "projects", "reason", "ref",
		"revision", "scan", "started", "syncHistory", "target", "term"}, slices.Sorted(maps.Keys(status)), "without stages, windows and snapshots a report has no fields about them")
	// Lock renewals, drift checks and gateway polls cause no writes.
	before := a.traffic.writes()
	for range 5 {
		w.lead(func(s *v1alpha1.SyncTargetSpec) { now := metav1.NowMicro(); s.Lead.Renewed = &now })
	}
	a.iterates(2)
	assert.Equal(t, before, a.traffic.writes())
	assert.Equal(t, 2, a.traffic.count("GET gatewaysyncs"), "once at the start, and once for each generation")
	assert.LessOrEqual(t, a.traffic.count("PUT syncreports")+a.traffic.count("POST syncreports"), 10)
}

func TestUnreadablePodInfoIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	labels := map[string]string{"line": "1"}
	p := podInfo{dir: t.TempDir(), labels: labels}
	for range 50 {
		p.reload(log)
	}
	assert.Equal(t, 1, strings.Count(out.String(), "level=WARN"), out.String())
	assert.Equal(t, labels, p.labels, "the last values stay in force")

	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "labels"), []byte("line=\"2\"\n"), 0o600))
	p.reload(log)
	assert.Equal(t, map[string]string{"line": "2"}, p.labels, "one file is missing, the other is read")
	assert.Equal(t, 2, strings.Count(out.String(), "level=WARN"), "another error: %s", out.String())
}

// specServer is an API server with a GatewaySync of generation 1.
func specServer() (*fake.FakeDynamicClient, *unstructured.Unstructured) {
	live := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindGatewaySync,
		"metadata": map[string]any{"name": "plant", "namespace": "line", "uid": "u", "generation": int64(1), "annotations": map[string]any{
			v1alpha1.AnnotationForceSync: "now", v1alpha1.AnnotationApproved: "line@" + commit + " ann"}},
		"spec": map[string]any{"git": map[string]any{"repo": "https://git.example.com/plant.git", "ref": "main"}},
	}}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): kube.GatewaySync.Name + "List"}, live), live
}

// An API server that was restored from a backup counts a generation again, for another spec.
func TestGenerationCountedAgain(t *testing.T) {
	client, live := specServer()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := &specReader{objects: kube.GatewaySyncs(client, "line"), name: "plant", log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	read, err := s.objects.Get(t.Context(), s.name)
	require.NoError(t, err)
	target := instruction{hash: annotation.Hash(read)}
	target.Generation, target.Ref = 1, "main"
	fetch := func(after time.Duration) *v1alpha1.GatewaySync {
		t.Helper()
		now = now.Add(after)
		gs, err := s.fetch(t.Context(), target, false)
		require.NoError(t, err)
		return gs
	}
	const later = checkEvery + checkEvery/10
	first := fetch(0)
	assert.Same(t, first, fetch(later), "an unchanged spec keeps its connections")

	require.NoError(t, unstructured.SetNestedField(live.Object, "https://git.example.com/other.git", "spec", "git", "repo"))
	require.NoError(t, client.Tracker().Update(kube.GatewaySync.Resource(), live, "line"))
	assert.Same(t, first, fetch(time.Minute))
	other := fetch(later)
	assert.Equal(t, "https://git.example.com/other.git", other.Spec.Git.Repo)

	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	assert.Same(t, other, fetch(later), "the agent follows the target while it cannot read the spec again")
	client.ReactionChain = client.ReactionChain[1:]

	require.NoError(t, client.Tracker().Delete(kube.GatewaySync.Resource(), "line", "plant")) // without its SyncTarget: --cascade=orphan
	assert.Same(t, other, fetch(0), "it tries again a minute later")
	now = now.Add(2 * maxGet)
	for range 3 {
		_, err = s.fetch(t.Context(), target, false)
		require.ErrorIs(t, err, errGone)
	}
	target.hash = "" // the schema admits it
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	_, err = s.fetch(t.Context(), target, true)
	require.Error(t, err, "nothing confirms a forged target")
}

// A gate that reads the GatewaySync again sees new approvals. A new request waits until the lead has published it with the target.
func TestRequestsWaitForTheirTarget(t *testing.T) {
	client, _ := specServer()
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.UID = "plant", "u"
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := &specReader{objects: kube.GatewaySyncs(client, "line"), name: "plant", log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, gs: gs, asked: gs, newest: gs}
	target, err := plan.ParseID(commit)
	require.NoError(t, err)

	require.True(t, s.refresh(t.Context(), "line@"+commit))
	assert.Equal(t, "line by ann", s.approvedBy(target))
	assert.Equal(t, "line@"+commit+" ann", s.current(gs).Annotations[v1alpha1.AnnotationApproved])
	assert.Zero(t, s.requestsFor("line-0", target))
	assert.False(t, s.refresh(t.Context(), "line@"+commit), "the next try has a pause")
	now = now.Add(time.Minute)
	assert.True(t, s.refresh(t.Context(), "line@"+commit))
}
