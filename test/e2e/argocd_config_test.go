//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// A ConfigSync is in a wave before the GatewaySync. While its account may not create the objects, Argo CD waits and applies nothing else.
func aWaveWaitsForAConfigSync(t *testing.T, w *world) {
	p := w.plant(t)
	p.appliesConfigSyncs()
	p.commit("the environment", gitserver.Write("kubernetes/site.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: site}, data: {area: north}}"))
	p.account("configmaps", "get")
	_, err := p.client.CoreV1().Secrets(p.namespace).Create(p.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "config-git"},
		StringData: map[string]string{"username": gitUser, "password": w.password, "ca.crt": string(w.git.CA())}}, metav1.CreateOptions{})
	require.NoError(t, err)
	name := p.namespace + "-deployment.git"
	repo := gitserver.NewRepo(t, filepath.Join(w.gitRoot, name))
	repo.Commit("the ConfigSync", gitserver.Write("plain/configsync.yaml", fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata:
  name: site
  annotations:
    argocd.argoproj.io/sync-wave: "-1"
spec:
  source:
    git: {repoURL: %q, branch: main, path: kubernetes, authMethod: https, authSecretRef: {name: config-git}}
`, w.git.URL(p.repoName))))
	d := p.deploy("plain", repo, name, "plain")
	d.waitUntilHangs(d.repo.Head(), "waiting for healthy state of stoker.io/ConfigSync/site")
	_, err = p.syncs().Get(p.ctx, "line")
	require.True(t, apierrors.IsNotFound(err), "the next wave must not start: %v", err)

	_, err = p.client.RbacV1().Roles(p.namespace).Update(p.ctx, roleOfAccount("configmaps", "get", "create", "patch"), metav1.UpdateOptions{})
	require.NoError(t, err)
	d.waitForFirstSync(d.repo.Head())
	d.checkRuns(p.head())
	m, err := p.client.CoreV1().ConfigMaps(p.namespace).Get(p.ctx, "site", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"area": "north"}, m.Data)
	cs, err := kube.ConfigSyncs(p.dynamic, p.namespace).Get(p.ctx, "site")
	require.NoError(t, err)
	assert.Equal(t, p.head(), cs.Status.SourceRevision)
}

// appliesConfigSyncs runs stoker config run for the namespace until the test ends.
func (p *plant) appliesConfigSyncs() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.ctx)
	cmd := exec.CommandContext(ctx, p.stokerPath, "config", "run", "--kubeconfig", p.Kubeconfig(), "--namespace", p.namespace,
		"--watch-namespace", p.namespace, "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, 5*time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	require.NoError(p.t, cmd.Start())
	p.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was interrupted
		if p.t.Failed() {
			p.t.Logf("stoker config run:\n%s", said.String())
		}
	})
}

// account creates the account of ConfigSyncs, with a right besides the one to read its credentials.
func (p *plant) account(resource string, verbs ...string) {
	p.t.Helper()
	_, err := p.client.RbacV1().Roles(p.namespace).Create(p.ctx, roleOfAccount(resource, verbs...), metav1.CreateOptions{})
	require.NoError(p.t, err)
	const name = "stoker-config"
	_, err = p.client.CoreV1().ServiceAccounts(p.namespace).Create(p.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = p.client.RbacV1().RoleBindings(p.namespace).Create(p.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

func roleOfAccount(resource string, verbs ...string) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "stoker-config"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"config-git"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs},
	}}
}
