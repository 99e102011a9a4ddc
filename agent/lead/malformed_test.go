package lead

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

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
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.takes("gw-0", "gw-1")
	s.untilReady("True/Synced")

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

	s.createRaw(kube.SyncReport, map[string]any{"metadata": map[string]any{"name": "stranger", "labels": map[string]any{v1alpha1.LabelCRName: "site"}},
		"status": map[string]any{"phase": 5}})
	s.gateway("gw-2")
	s.createRaw(kube.SyncReport, map[string]any{"metadata": map[string]any{"name": "gw-2", "labels": map[string]any{v1alpha1.LabelCRName: "site"}},
		"status": map[string]any{"phase": []any{}, "generation": "x"}})
	second := s.Commit("second")
	s.untilTarget(second)
	s.takes("gw-0", "gw-1")
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
