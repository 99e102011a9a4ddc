package follow

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
)

func TestFollowTargets(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	gs := w.gatewaySync(p)
	a := p.start()
	s := p.await("WaitingForLead", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)

	w.lead(targetCommit(first))
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

	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	// Lock renewals, drift checks and gateway polls cause no writes.
	before := a.traffic.writes()
	for range 5 {
		w.lead(func(s *v1alpha1.SyncTargetSpec) { now := metav1.NowMicro(); s.Lead.Renewed = &now })
	}
	iterations := gathered(t, a, "stoker_reconcile_total")
	eventually(t, "two more iterations", func() bool { return gathered(t, a, "stoker_reconcile_total") >= iterations+2 })
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

// Without stages, windows, snapshots and the like, a report has none of their fields, and a sync costs two writes of it.
func TestPlainReportHasNoNewFields(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	reports := w.clients.Dynamic.Resource(kube.SyncReport.Resource()).Namespace(w.ns)
	before, err := reports.Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	after, err := reports.Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.LessOrEqual(t, after.GetGeneration()-before.GetGeneration(), int64(2), "one write for Syncing, one for Synced")
	status, _ := after.Object["status"].(map[string]any)
	assert.Equal(t, []string{"agentVersion", "commit", "drift", "duration", "files", "format", "gateway", "generation", "message", "phase", "profile", "projects", "reason", "ref",
		"revision", "scan", "started", "syncHistory", "target", "term"}, slices.Sorted(maps.Keys(status)))
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
