package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
)

// likeArgoCD makes what an installation of it has.
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

// Every command of the page that needs neither a node nor Argo CD itself runs as it is written, from the project's folder, in
// the order of the page.
func TestTheCommandsOfThePageOnArgoCDRunAsWritten(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t)
	cache, err := build.Open(build.Cache{Say: os.Stderr})
	require.NoError(t, err)
	kubernetes, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	require.NoError(t, err)
	shell := document.NewShell(t, cache.Module, map[string]string{"kubectl": filepath.Join(kubernetes, "kubectl")}, "KUBECONFIG="+cluster.Kubeconfig())

	likeArgoCD(t, cluster)
	for c := range lines.Of("docs/argocd.md") {
		shell.Type(t, c.Text)
	}
	health, err := cluster.Client(t).CoreV1().ConfigMaps("argocd").Get(t.Context(), "argocd-cm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, health.Data, "resource.customizations.health.stoker.io_GatewaySync")
	assert.Contains(t, health.Data, "resource.customizations.ignoreResourceUpdates.stoker.io_GatewaySync")
}
