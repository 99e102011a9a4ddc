package lead

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/limits"
	"stoker.io/stoker/test/program"
)

// C13: the API server rejects times that Go cannot parse or would write back as null. Each time field of our kinds has its own
// pattern; conditions have a rule of their own.
func TestTimePatterns(t *testing.T) {
	for plural, part := range map[string]string{"synctargets": "spec", "syncreports": "status", "gatewaysyncs": "status"} {
		t.Run(plural, func(t *testing.T) {
			for _, name := range limits.Times(t, plural, part) {
				assert.Equal(t, "status.conditions.0.lastTransitionTime", name, plural)
			}
		})
	}
}

// C13: an attacker with the token of one gateway makes a SyncTarget unreadable while the kinds lack their rules. The lead
// replaces it.
func TestUnreadableSyncTargetIsReplaced(t *testing.T) {
	t.Parallel()
	cluster := laxCluster(t)
	for name, spec := range map[string]any{"number instead of string": map[string]any{"ref": 5}, "string instead of object": "x", "invalid time": map[string]any{"resolvedAt": "2020-01-01t00:00:00z"}} {
		t.Run(name, func(t *testing.T) {
			s := newSiteIn(t, cluster, 1)
			s.createRaw(kube.SyncTarget, map[string]any{"metadata": map[string]any{"name": "site", "finalizers": []any{"example.com/x"}}, "spec": spec})
			var said program.Log
			now := noon
			l, err := New(Config{Namespace: s.ns, GatewaySync: "site", Pod: "gw-0", Clients: s.admin, Log: slog.New(slog.NewTextHandler(&said, nil)), Now: func() time.Time { return now }})
			require.NoError(t, err)
			l.Saw(s.targets().Get(t.Context(), "site"))
			assert.Contains(t, said.String(), "SyncTarget unreadable, to be replaced")
			assert.False(t, l.lockWatch.state().free, "the target may be from a newer agent")
			now = now.Add(v1alpha1.MaxLeadDuration)
			require.True(t, l.lockWatch.state().free)
			require.NoError(t, takeOver(t, l, s.sync(), func() error { return nil }))
			is, err := s.targets().Get(t.Context(), "site")
			require.NoError(t, err)
			assert.Equal(t, v1alpha1.TargetFormat, is.Spec.Format)
			assert.Equal(t, s.sync().UID, is.OwnerReferences[0].UID)
			assert.Empty(t, is.Finalizers)
		})
	}
}

// C13: the lead treats an unreadable status as empty and replaces it completely.
func TestUnreadableStatusIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, laxCluster(t), 1)
	s.synced("gw-0")
	all := s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns)
	for name, status := range map[string]string{
		"invalid time":             `{"lastGood":{"at":"2020-01-01t00:00:00z","commit":"` + commitA + `","junk":1},"junk":{"more":"junk"}}`,
		"zero time":                `{"conditions":[{"type":"Ready","status":"True","reason":"Synced","lastTransitionTime":"0001-01-01T00:00:00Z"}],"junk":1}`,
		"string instead of object": `"junk"`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := all.Patch(t.Context(), "site", types.JSONPatchType, []byte(`[{"op":"replace","path":"/status","value":`+status+`}]`), metav1.PatchOptions{}, "status")
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				is, err := all.Get(t.Context(), "site", metav1.GetOptions{})
				require.NoError(t, err)
				raw, err := json.Marshal(is.Object["status"])
				require.NoError(t, err)
				return !strings.Contains(string(raw), "junk") && condition(&s.sync().Status, v1alpha1.ConditionReady) == "True/Synced"
			}, tenfold, 20*time.Millisecond)
		})
	}
}

// C13: the lead restores a target that another writer altered or deleted, without waiting for its next poll. It removes an owner
// that was added with its next renewal of the lock.
func TestAlteredTargetIsRestored(t *testing.T) {
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	is := func() *v1alpha1.SyncTarget {
		is, err := s.targets().Get(t.Context(), "site")
		require.NoError(t, err)
		return is
	}
	before := is()
	forged := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: "site", UID: "forged"}
	owners, err := json.Marshal(append(is().OwnerReferences, forged))
	require.NoError(t, err)
	// sequence: the lead restores each change before the next one
	for _, change := range []string{`{"spec":{"format":1000,"commit":"` + commitB + `","refName":"refs/pull/1/head","paused":true}}`, `{"metadata":{"ownerReferences":` + string(owners) + `}}`} {
		_, err := s.targets().Patch(t.Context(), "site", types.MergePatchType, []byte(change), metav1.PatchOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			is := is()
			return is.Spec.Format == before.Spec.Format && is.Spec.Commit == s.first && is.Spec.RefName == before.Spec.RefName && !is.Spec.Paused &&
				assert.ObjectsAreEqual(before.OwnerReferences, is.OwnerReferences)
		}, tenfold, 20*time.Millisecond, change)
	}
	s.deleteTarget()
	assert.NotEmpty(t, s.untilTarget(s.first).Lead.Holder)
}

// takeOver wins an election, calls do, and releases the lock.
func takeOver(t *testing.T, l *Lead, gs *v1alpha1.GatewaySync, do func() error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logr.Discard()), tenfold)
	defer cancel()
	l.lock.begin(gs, func() {})
	defer l.lock.end()
	err := errors.New("never elected")
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: "site", LeaseDuration: l.Timing.SlowLock, RenewDeadline: l.Timing.Deadline, RetryPeriod: l.Timing.Renew, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { err = do(); cancel() }, OnStoppedLeading: func() {}},
	})
	return err
}

// laxCluster starts a cluster whose CRDs have no schema, as if an operator had edited them.
func laxCluster(t *testing.T) *kubetest.Cluster {
	t.Helper()
	cluster := kubetest.Control(t, kubetest.WithoutKinds())
	files, err := filepath.Glob("../../charts/stoker/files/crds/stoker.io_*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	dir := t.TempDir()
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var crd map[string]any
		require.NoError(t, yaml.Unmarshal(data, &crd))
		versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
		require.NoError(t, err)
		version := versions[0].(map[string]any)
		version["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
		require.NoError(t, unstructured.SetNestedSlice(crd, versions, "spec", "versions"))
		data, err = yaml.Marshal(crd)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), data, 0o600))
	}
	cluster.Apply(t, dir)
	return cluster
}

// createRaw creates an object that the typed client could not express.
func (s *site) createRaw(kind kube.Kind, object map[string]any) {
	s.t.Helper()
	u := &unstructured.Unstructured{Object: object}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetKind(kind.Name)
	u.SetNamespace(s.ns)
	_, err := s.admin.Dynamic.Resource(kind.Resource()).Namespace(s.ns).Create(s.t.Context(), u, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// C2: a malformed object affects only itself, and the lead reports it.
func TestMalformedObjectsAreIsolated(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, laxCluster(t), 2)
	s.synced("gw-0", "gw-1")

	malformed := map[string]string{
		"banana":   `{git: {repo: "https://h/r", ref: main}, polling: {interval: banana}, sync: {profiles: {default: {mappings: [{source: a, destination: b}]}}}}`,
		"number":   `{git: {repo: "https://h/r", ref: main}, polling: {interval: 60}}`,
		"overflow": `{git: {repo: "https://h/r", ref: main}, gateway: {port: 99999999999999999999}, sync: {defaults: {syncPeriod: 5000000000}}}`,
		"list":     `[1, 2]`,
		"nothing":  `{}`,
	}
	// setup: agents that stay until the end of the test
	for name, spec := range malformed {
		var value any
		require.NoError(t, yaml.Unmarshal([]byte(spec), &value))
		s.createRaw(kube.GatewaySync, map[string]any{"metadata": map[string]any{"name": name}, "spec": value, "status": map[string]any{"conditions": "none"}})
		s.candidate("gw-0", func(c *Config) { c.GatewaySync = name })
	}
	for name := range malformed {
		t.Run(name, func(t *testing.T) {
			require.Eventually(t, func() bool {
				u, err := s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return false
				}
				got := metadataAndStatus(u)
				return condition(&got.Status, v1alpha1.ConditionStalled) == "True/ProfilesInvalid" && condition(&got.Status, v1alpha1.ConditionReady) == "False/ProfilesInvalid"
			}, tenfold, tenfold/1000, name)
		})
	}

	t.Run("being deleted", func(t *testing.T) {
		all := s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns)
		s.createRaw(kube.GatewaySync, map[string]any{"metadata": map[string]any{"name": "ending", "finalizers": []any{"example.com/keep"}}, "spec": "none"})
		require.NoError(t, all.Delete(t.Context(), "ending", metav1.DeleteOptions{}))
		c := s.candidate("gw-0", func(c *Config) { c.GatewaySync = "ending" })
		require.Eventually(t, func() bool { return c.wire.count("WATCH gatewaysyncs") > 0 }, tenfold, 10*time.Millisecond)
		time.Sleep(2 * time.Second)
		assert.Zero(t, c.wire.count("GET synctargets")+c.wire.count("GET gatewaysyncs"), "the agent does not campaign")
		_, err := all.Patch(t.Context(), "ending", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	})

	s.createRaw(kube.SyncReport, map[string]any{"metadata": map[string]any{"name": "stranger", "labels": map[string]any{v1alpha1.LabelCRName: "site"}},
		"status": map[string]any{"phase": 5}})
	s.gateway("gw-2")
	s.createRaw(kube.SyncReport, map[string]any{"metadata": map[string]any{"name": "gw-2", "labels": map[string]any{v1alpha1.LabelCRName: "site"}},
		"status": map[string]any{"phase": []any{}, "generation": "x"}})
	second := s.Commit("second")
	s.takesAll(second, "gw-0", "gw-1")
	gs := s.until("the other gateways run the second commit", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Target != nil && gs.Status.Target.Commit == second && gs.Status.GatewaysReady == "2/3"
	})
	require.Len(t, gs.Status.DiscoveredGateways, 3, "the report of a gateway without a pod does not count")
	row := gs.Status.DiscoveredGateways[2]
	assert.Equal(t, "gw-2", row.Name)
	assert.Equal(t, v1alpha1.GatewayPending, row.SyncStatus)
	assert.Contains(t, row.Message, "cannot be read")

	// The spec of the valid GatewaySync becomes malformed while its lead runs, and then valid again.
	s.patch(map[string]any{"spec": map[string]any{"polling": map[string]any{"interval": 7}}})
	gs = nil
	require.Eventually(t, func() bool {
		u, err := s.admin.Dynamic.Resource(kube.GatewaySync.Resource()).Namespace(s.ns).Get(t.Context(), "site", metav1.GetOptions{})
		if err != nil {
			return false
		}
		gs = metadataAndStatus(u)
		return condition(&gs.Status, v1alpha1.ConditionStalled) == "True/ProfilesInvalid"
	}, tenfold, tenfold/1000)
	assert.Equal(t, second, s.target().Commit)
	s.patch(map[string]any{"spec": map[string]any{"polling": map[string]any{"interval": "1s"}}})
	s.takesAll(second, "gw-0", "gw-1")
	s.until("the GatewaySync is valid again", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionStalled) == "" && gs.Status.GatewaysReady == "2/3"
	})
}
