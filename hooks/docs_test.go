package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

// likeArgoCD creates the objects of Argo CD that the page uses.
func likeArgoCD(t *testing.T, cluster *kubetest.Cluster) {
	t.Helper()
	client := cluster.Client(t).CoreV1()
	cluster.Apply(t, "testdata/applications.yaml")
	_, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "argocd"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"argocd-cm", "argocd-notifications-cm"} {
		_, err := client.ConfigMaps("argocd").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err = client.Secrets("argocd").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "argocd-notifications-secret"}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// The test runs each command of the page that needs neither a node nor Argo CD. Commands run unchanged, in page order, from the
// root of the repository.
func TestArgoCDPageCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t)
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	shell := document.NewShell(t, cache.SourceDir, map[string]string{"kubectl": filepath.Join(kubernetes, "kubectl")}, "KUBECONFIG="+cluster.Kubeconfig())

	likeArgoCD(t, cluster)
	for c := range lines.Of("docs/how-to/argocd.md") {
		shell.Type(t, c.Text)
	}
	health, err := cluster.Client(t).CoreV1().ConfigMaps("argocd").Get(t.Context(), "argocd-cm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, health.Data, "resource.customizations.health.stoker.io_GatewaySync")
	assert.Contains(t, health.Data, "resource.customizations.ignoreResourceUpdates.stoker.io_GatewaySync")
}

// The rollout waits for an approval, as its lead would say it.
func TestStagesPageCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t, kubetest.Private()) // another page creates the namespace plant, too
	const namespace = "plant"
	cluster.ApplyYAML(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec:
  git: {repo: "https://git.example.com/plant.git", ref: main}
  deployment: {stages: [{name: dev, gateways: [dev-gateway]}, {name: prod, gateways: ["area-*"], requireApproval: true}], windows: [{name: nights, schedule: "0 22 * * *", duration: 8h}]}
`)
	commit := "1f0c2d3" + strings.Repeat("a", 33) // as in the examples
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", `
observedGeneration: ${GENERATION}
target: {ref: main, commit: `+commit+`}
rollout: {commit: `+commit+`, stage: prod, step: 1, steps: 2, phase: Waiting, since: "2026-01-02T12:00:00Z", message: stage prod waits}
`))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, writeKubeconfig(cluster.Kubeconfig(), kubeconfig, namespace, ""))
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	shell := document.NewShell(t, cache.SourceDir, map[string]string{"kubectl": filepath.Join(kubernetes, "kubectl"), "stoker": program.Build(t, "hooks")},
		"KUBECONFIG="+kubeconfig)
	says := map[string]string{
		"stoker status line":  "Waiting, step 1 of 2, stage prod",
		"stoker approve line": "approved (stage prod for commit " + commit + ")",
	}
	for c := range lines.Of("docs/how-to/stages.md") {
		said := shell.Type(t, c.Text)
		if want, ok := says[c.Text]; ok {
			assert.Contains(t, said, want)
			delete(says, c.Text)
		}
	}
	assert.Empty(t, says)
	assert.Contains(t, shell.Type(t, "kubectl get gatewaysync line --output yaml"), "stoker.io/approved: prod@"+commit)
	for c := range lines.Of("docs/how-to/windows.md") {
		assert.Contains(t, shell.Type(t, c.Text), "approved (no maintenance window delays commit "+commit+")")
	}
	for c := range lines.Of("docs/reference/cli.md") {
		shell.Type(t, c.Text)
	}
}

// leftovers holds objects of an earlier product that used the same API group.
const leftovers = `
apiVersion: v1
kind: Namespace
metadata: {name: stoker-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: stoker-system}
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: controller, image: other}]}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line, finalizers: [stoker.io/finalizer]}
spec: {git: {repo: "https://git.example.com/plant.git", ref: main}}
`

func TestMigrationPageCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t, kubetest.Private())
	namespace := cluster.Namespace(t)
	cluster.ApplyYAML(t, namespace, leftovers)
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	shell := document.NewShell(t, t.TempDir(), map[string]string{"kubectl": filepath.Join(kubernetes, "kubectl"), "stoker": program.Build(t, "hooks")},
		"KUBECONFIG="+cluster.Kubeconfig())
	for c := range lines.Of("docs/how-to/migration.md") {
		said := shell.Type(t, c.Text)
		switch c.Text {
		case "stoker migrate -A":
			assert.Contains(t, said, "remove finalizer", "a dry run")
			assert.NotEmpty(t, shell.Type(t, "kubectl --namespace "+namespace+" get gatewaysync line --output 'jsonpath={.metadata.finalizers}'"), "a dry run must not remove the finalizer")
		case "stoker migrate -A --yes":
			assert.Empty(t, shell.Type(t, "kubectl --namespace "+namespace+" get gatewaysync line --output 'jsonpath={.metadata.finalizers}'"))
		}
	}
	for c := range lines.Of("docs/reference/cli.md") {
		assert.NotContains(t, shell.Type(t, c.Text), "finalizer")
	}
	assert.Contains(t, shell.Type(t, "stoker migrate -A --output json"), "[]\n")
}
