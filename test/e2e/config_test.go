//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// The namespaces whose ConfigSyncs are applied by the ConfigSync program of the chart (component configsync).
const (
	paired   = "paired"
	vanishes = "configs-deleted"
	stays    = "configs-left"
)

// The script of the paired example, and its folder.
const (
	shiftFolder = "projects/line/ignition/script-python/shift"
	shiftScript = shiftFolder + "/code.py"
)

// team returns a plant with an empty repository and without a GatewaySync.
func (w *world) team(t *testing.T, namespace string) *plant {
	p := &plant{world: w, t: t, namespace: namespace, repoName: namespace + ".git", password: w.password}
	p.repo = gitserver.NewRepo(t, filepath.Join(w.gitRoot, p.repoName))
	_, err := p.client.CoreV1().Secrets(namespace).Create(p.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "git-credentials"},
		StringData: map[string]string{"username": gitUser, "token": w.password, "ca.crt": string(w.git.CA())}}, metav1.CreateOptions{})
	require.NoError(t, err)
	p.secret("gateway-api", "apiKey", w.gatewayToken)
	t.Cleanup(func() {
		if t.Failed() || os.Getenv(envE2E) == "logs" {
			w.dump(t, namespace)
			t.Log(w.kubectl(t, "get", "configsyncs.stoker.io", "--namespace", namespace, "--output", "yaml"))
		}
	})
	return p
}

// apply applies a file of an example after replacing old texts by new ones, which are given in pairs.
func (p *plant) apply(file string, oldNew ...string) {
	p.t.Helper()
	content, err := os.ReadFile(filepath.Join(p.module, "examples", "config", file))
	require.NoError(p.t, err)
	text := string(content)
	for i := 0; i < len(oldNew); i += 2 {
		require.Contains(p.t, text, oldNew[i], file)
		text = strings.ReplaceAll(text, oldNew[i], oldNew[i+1])
	}
	p.ApplyYAML(p.t, p.namespace, text)
}

// configReady waits until a ConfigSync is Ready at a commit.
func (p *plant) configReady(name, commit string) {
	p.t.Helper()
	p.eventually(p.t, fmt.Sprintf("ConfigSync %s applied %.7s", name, commit), func() string {
		cs, err := kube.ConfigSyncs(p.dynamic, p.namespace).Get(p.ctx, name)
		if err != nil {
			return err.Error()
		}
		if ready := meta.FindStatusCondition(cs.Status.Conditions, v1alpha1.ConditionReady); cs.Status.SourceRevision != commit || ready == nil || ready.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%.7s %+v", cs.Status.SourceRevision, ready)
		}
		return ""
	})
}

// pairing is what the gateway of the paired example showed over time, as pairs of the shift hours in its environment and in its
// script, such as 8/12. The pair is "" if no gateway serves.
type pairing struct {
	p       *plant
	scripts map[string]string        // hours by digest of the script
	longest map[string]time.Duration // longest uninterrupted time that each pair was shown
	order   []string                 // each pair that was shown, without repetitions in a row
	since   time.Time                // when the last one was first shown
}

// observe records the current pair and returns it.
func (s *pairing) observe() string {
	now := s.currentPair()
	if n := len(s.order); n == 0 || s.order[n-1] != now {
		s.order, s.since = append(s.order, now), time.Now()
	}
	s.longest[now] = max(s.longest[now], time.Since(s.since))
	return now
}

func (s *pairing) currentPair() string {
	p := s.p
	pod, err := p.client.CoreV1().Pods(p.namespace).Get(p.ctx, "line-0", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp != nil || !isReady(pod) {
		return ""
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "gateway" })
	env, err := p.client.CoreV1().ConfigMaps(p.namespace).Get(p.ctx, pod.Spec.Containers[i].EnvFrom[0].ConfigMapRef.Name, metav1.GetOptions{})
	if err != nil {
		current, podErr := p.client.CoreV1().Pods(p.namespace).Get(p.ctx, "line-0", metav1.GetOptions{})
		if apierrors.IsNotFound(err) && podErr == nil && current.UID == pod.UID && current.DeletionTimestamp == nil {
			return "the environment of a running pod is gone" // the ConfigMap was pruned too early
		}
		return ""
	}
	raw, err := p.admin(p.ctx, "line-0", "/loaded/"+shiftFolder)
	var files map[string]string
	if err != nil || json.Unmarshal(raw, &files) != nil {
		return ""
	}
	return env.Data["SHIFT_HOURS"] + "/" + s.scripts[files["code.py"]]
}

// waitFor waits until the gateway shows a pair.
func (s *pairing) waitFor(want string) {
	s.p.t.Helper()
	s.p.eventually(s.p.t, "environment and script are "+want, func() string {
		if now := s.observe(); now != want {
			return now
		}
		return ""
	})
}

// The example in examples/config/paired: the environment of a gateway and the script that needs it come from one commit. The
// ConfigSync program of the chart applies the first, the agent the second.
func environmentAndScriptFromOneCommit(t *testing.T, w *world) {
	p := w.team(t, paired)
	files := example(t, filepath.Join(w.module, "examples", "config", "paired", "repository"))
	manifest := files["kubernetes/line.yaml"]
	manifest = strings.ReplaceAll(manifest, "image: inductiveautomation/ignition:8.3.8", "image: "+gatewayImageRef+"\n          imagePullPolicy: Never")
	manifest = strings.Replace(manifest, "accessModes:", "storageClassName: "+p.volumes(1)+"\n        accessModes:", 1)
	files["kubernetes/line.yaml"] = strings.Replace(manifest, "periodSeconds: 5", "periodSeconds: 1", 1)
	eight := p.repo.Commit("eight hours", gitserver.Files(files))
	script := files[shiftScript] + "\n# for shifts of twelve hours\n"
	s := &pairing{p: p, scripts: map[string]string{digestOf(files[shiftScript]): "8", digestOf(script): "12"}, longest: map[string]time.Duration{}}

	p.apply("paired/account.yaml")
	p.apply("paired/gatewaysync.yaml", "https://git.example.com/plant.git", w.git.URL(p.repoName), "    ref: main\n", "    ref: main\n    caSecretRef: {name: git-credentials, key: ca.crt}\n",
		"  sync:\n", "  polling: {interval: 1s}\n  sync:\n",
		"managed: true", "secretName: gateway-api") // this gateway issued a key itself
	p.apply("paired/configsync.yaml")
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	stoker := func(args ...string) string {
		return p.run(t, p.module, p.stokerPath, append(args, "--namespace", p.namespace, "--kubeconfig", p.Kubeconfig())...)
	}
	require.NoError(t, os.WriteFile(objects, []byte(stoker("config", "render", "line", "--ref", "main", "--output", "yaml")), 0o600))
	p.kubectl(t, "apply", "--namespace", p.namespace, "--filename", objects)
	s.waitFor("8/8")
	p.configReady("line", eight)
	p.eventually(t, "the rollback below finds the first commit", func() string {
		if gs := p.get(); !gs.Status.RanEverywhere(eight) {
			return describe(gs)
		}
		return ""
	})

	twelve := p.repo.Commit("twelve hours", gitserver.Write("kubernetes/line.env", strings.Replace(files["kubernetes/line.env"], "=8", "=12", 1)), gitserver.Write(shiftScript, script))
	s.waitFor("12/12")
	p.configReady("line", twelve)
	assert.Equal(t, "12/12", s.observe(), "the pair must stay after the ConfigSync is Ready")
	for _, pair := range s.order {
		assert.Contains(t, []string{"", "8/8", "8/12", "12/12"}, pair, "12/8 must never be shown: a pod with the new environment must start with the new script; pairs in order: %q", s.order)
	}
	w.say("%s: the new script ran with the old environment for %s", short(t), s.longest["8/12"].Round(time.Millisecond))
	assert.Less(t, s.longest["8/12"], time.Minute)
	stoker("wait", "gatewaysync/line", "--timeout", liveness.String())
	stoker("wait", "configsync/line", "--timeout", liveness.String())

	stoker("rollback", "line", "--to", eight)
	s.waitFor("8/8")
	p.configReady("line", eight)
	p.eventually(t, "only one environment is left", func() string {
		names := p.kubectl(t, "get", "configmaps", "--namespace", p.namespace, "--output", "name")
		if strings.Count(names, "configmap/line-env-") != 1 {
			return names
		}
		return ""
	})
	logs := p.kubectl(t, "logs", "--namespace", release, "--selector", "app.kubernetes.io/component=configsync", "--tail=-1")
	assert.Contains(t, logs, "ConfigSync applied", "the program of the chart must apply the ConfigSync")
	w.checkSaid(t, logs)
}

// createConfigSync creates a ConfigSync with the deletionPolicy Delete. It applies one file of the repository, with a ConfigMap
// of its name.
func (p *plant) createConfigSync(name string) {
	p.t.Helper()
	p.repo.Commit(name, gitserver.Write(name+"/a.yaml", fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {a: b}}", name)))
	p.apply("configsync.yaml", "https://git.example.com/plant.git", p.git.URL(p.repoName), "name: plant", "name: "+name, "path: kubernetes", "path: "+name, "spec:\n", "spec:\n  deletionPolicy: Delete\n")
	p.configReady(name, p.repo.Head())
}

func (p *plant) hasConfigMap(name string) bool {
	p.t.Helper()
	_, err := p.client.CoreV1().ConfigMaps(p.namespace).Get(p.ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(p.t, err)
	}
	return err == nil
}

// gone waits until an object is gone.
func (p *plant) gone(what, name string) {
	p.t.Helper()
	p.eventually(p.t, what+" "+name+" is gone", func() string {
		return p.kubectl(p.t, "get", what, name, "--namespace", p.namespace, "--ignore-not-found", "--output", "name")
	})
}

// A namespace goes away with a ConfigSync that deletes its objects, although the rights of its account go first.
func aNamespaceGoesWithItsConfigSync(t *testing.T, w *world) {
	p := w.team(t, vanishes)
	p.apply("account.yaml")
	p.createConfigSync("site")
	p.kubectl(t, "delete", "namespace", p.namespace, "--wait=false")
	p.gone("namespace", p.namespace)
}

// Before an uninstall, a ConfigSync that is deleted deletes its objects. After it, objects stay, and a finalizer is removed as
// the documents say.
func anUninstallLeavesWhatIsNotDeleted(t *testing.T, w *world) {
	p := w.team(t, stays)
	p.apply("account.yaml")
	p.createConfigSync("before")
	p.createConfigSync("plant")
	p.kubectl(t, "delete", "configsync.stoker.io", "before", "--namespace", p.namespace)
	assert.False(t, p.hasConfigMap("before"))
	require.True(t, p.hasConfigMap("plant"))

	w.checkInstall(t)
	w.uninstalled = true
	w.helm(t, "uninstall", "stoker", "--namespace", release, "--wait", "--timeout", liveness.String())
	w.eventually(t, "the programs are removed", func() string {
		return w.kubectl(t, "get", "deployments,jobs,cronjobs,pods,roles,rolebindings,serviceaccounts,services", "--namespace", release, "--selector", "app.kubernetes.io/managed-by=Helm", "--output", "name")
	})
	p.kubectl(t, "delete", "configsync.stoker.io", "plant", "--namespace", p.namespace, "--wait=false")
	time.Sleep(5 * time.Second) // nothing may delete the ConfigMap now that no program runs
	assert.True(t, p.hasConfigMap("plant"))
	shell := p.reader()
	commands := 0
	for c := range w.lines.Of("docs/how-to/config-run.md") {
		shell.Type(t, c.Text)
		commands++
	}
	assert.Equal(t, 1, commands)
	p.gone("configsync.stoker.io", "plant")
	assert.True(t, p.hasConfigMap("plant"))
}

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
