package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// configScene is a ConfigSync of a real API server and a real git server.
type configScene struct {
	*kubetest.Cluster
	t         *testing.T
	namespace string
	git       *gitserver.Repo
	server    *gitserver.Server
}

func newConfigScene(t *testing.T) *configScene {
	t.Helper()
	root := t.TempDir()
	s := &configScene{Cluster: kubetest.Control(t), t: t, git: gitserver.NewRepo(t, filepath.Join(root, "plant.git"))}
	s.namespace = s.Namespace(t)
	var err error
	s.server, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.server.Close()) })
	s.ApplyYAML(t, s.namespace, "{apiVersion: stoker.io/v1alpha1, kind: ConfigSync, metadata: {name: plant}, spec: {source: {git: {repoURL: '"+s.server.URL("plant.git")+"', branch: main, path: k8s}}}}")
	return s
}

// run runs a command with all rights, and returns its exit code and its output.
func (s *configScene) run(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, talk bytes.Buffer
	code = run(s.t.Context(), append([]string{"stoker", "--kubeconfig", s.Kubeconfig(), "--namespace", s.namespace}, args...), &out, &talk)
	return code, out.String(), talk.String()
}

// clone makes a local clone and returns its directory.
func (s *configScene) clone() string {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "clone")
	s.git.Git("clone", "-q", s.server.URL("plant.git"), dir)
	return dir
}

// site is a file of a commit, with a ConfigMap and a Secret.
const site = `apiVersion: v1
kind: ConfigMap
metadata: {name: site}
data: {timezone: UTC}
---
apiVersion: v1
kind: Secret
metadata: {name: licence}
stringData: {key: S3CR3T}
`

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	commit := s.git.Commit("first", gitserver.Write("k8s/site.yaml", site))

	code, out, talk := s.run("config", "diff", "plant")
	assert.Equal(t, exit.Done, code, talk)
	assert.Equal(t, "main at "+commit[:7]+": 2 to create\n"+"create     ConfigMap "+s.namespace+"/site\ncreate     Secret "+s.namespace+"/licence\n", out)
	code, out, _ = s.run("config", "status", "plant")
	assert.Equal(t, exit.Done, code)
	assert.Contains(t, out, "no run yet")

	code, out, talk = s.run("config", "apply", "plant", "--dry-run")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, out, "2 to create")
	_, err := s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "site", metav1.GetOptions{})
	require.Error(t, err)

	code, out, talk = s.run("config", "apply", "plant", "-o", "json")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, talk, "2 objects of "+commit[:7]+" are applied and healthy")
	assert.NotContains(t, out+talk, "S3CR3T")
	var planned struct {
		Commit  string
		Objects []display.PlannedObject
	}
	require.NoError(t, json.Unmarshal([]byte(out), &planned))
	assert.Equal(t, commit, planned.Commit)
	assert.Len(t, planned.Objects, 2)

	cs, err := kube.ConfigSyncs(kubeDynamic(t, s), s.namespace).Get(t.Context(), "plant")
	require.NoError(t, err)
	text, err := yaml.Marshal(cs)
	require.NoError(t, err)
	exported := filepath.Join(t.TempDir(), "plant.yaml")
	require.NoError(t, os.WriteFile(exported, text, 0o600))
	code, out, _ = s.run("config", "status", "plant")
	assert.Equal(t, exit.Done, code)
	assert.Regexp(t, `ConfigMap +\S+ +site +Created +yes`, out)
	code, out, _ = s.run("config", "status")
	assert.Equal(t, exit.Done, code)
	assert.Regexp(t, `plant +`+commit[:7]+` +2/2 +True`, out)

	t.Log("a file without the defaults of the API server is the spec of the last run, so a Secret has drifted")
	_, err = kube.ConfigSyncs(kubeDynamic(t, s), s.namespace).Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"apply":{"driftPolicy":"`+string(v1alpha1.ConfigDriftReport)+`"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	code, _, talk = s.run("config", "apply", "plant")
	require.Equal(t, exit.Done, code, talk)
	written := filepath.Join(t.TempDir(), "written.yaml")
	require.NoError(t, os.WriteFile(written, []byte("{apiVersion: stoker.io/v1alpha1, kind: ConfigSync, metadata: {name: plant}, spec: {source: {git: {repoURL: '"+s.server.URL("plant.git")+
		"', branch: main, path: k8s}}, apply: {driftPolicy: "+string(v1alpha1.ConfigDriftReport)+"}}}"), 0o600))
	licence := func(key string) {
		_, err := s.Client(t).CoreV1().Secrets(s.namespace).Patch(t.Context(), "licence", types.MergePatchType, []byte(`{"stringData":{"key":"`+key+`"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	licence("changed")
	_, want, _ := s.run("config", "diff", "plant")
	require.Contains(t, want, "drift")
	_, out, talk = s.run("config", "diff", "-f", written)
	assert.Equal(t, want, out, talk)
	licence("S3CR3T")
	_, err = kube.ConfigSyncs(kubeDynamic(t, s), s.namespace).Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"apply":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	second := s.git.Commit("second", gitserver.Delete("k8s/site.yaml"), gitserver.Write("k8s/other.yaml", strings.ReplaceAll(site, "name: site", "name: other")))
	code, out, talk = s.run("config", "prune", "plant", "-o", "name")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, talk, "1 to prune")
	assert.Contains(t, out, "ConfigMap/site\n")
	_, err = s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "site", metav1.GetOptions{})
	require.Error(t, err)
	_, err = s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "other", metav1.GetOptions{})
	require.Error(t, err, "prune must not apply objects")
	code, _, talk = s.run("config", "apply", "plant")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, talk, second[:7])

	t.Log("the status and the annotations in an exported file are of the past")
	code, _, talk = s.run("rollback", "configsync/plant", "--to", commit)
	require.Equal(t, exit.Done, code, talk)
	var wanted int
	wanted, want, _ = s.run("config", "diff", "plant")
	require.Contains(t, want, "ConfigMap "+s.namespace+"/other\n")
	code, out, talk = s.run("config", "diff", "-f", exported)
	assert.Equal(t, wanted, code, talk)
	assert.Equal(t, want, out)
}

func TestConfigExitCodes(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	s.git.Commit("first", gitserver.Write("k8s/site.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: site}, data: {a: b}}"))
	s.ApplyYAML(t, s.namespace, "{apiVersion: v1, kind: ConfigMap, metadata: {name: site}, data: {a: c}}")
	code, out, talk := s.run("config", "apply", "plant", "--dry-run")
	assert.Equal(t, exit.Held, code, talk)
	assert.Contains(t, out, "1 held")
	syncs := kube.ConfigSyncs(kubeDynamic(t, s), s.namespace)
	cs, err := syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.Equal(t, v1alpha1.ConfigSyncStatus{ObservedGeneration: -1}, cs.Status, "a dry run must not write the status")
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"foreign object", []string{"apply", "plant"}, exit.Held, "NotOwned"},
		{"diff of a foreign object", []string{"diff", "plant"}, exit.Held, "NotOwned"},
		{"no such ConfigSync", []string{"apply", "nothing"}, exit.Failed, "there is no ConfigSync nothing"},
		{"no such ref", []string{"diff", "plant", "--ref", "nothing"}, exit.Failed, "RefNotFound"},
		{"no name", []string{"diff"}, exit.Usage, "missing the name"},
		{"two names", []string{"diff", "plant", "other"}, exit.Usage, "one name"},
		{"no directory", []string{"render", "./nowhere"}, exit.Usage, "not a directory"},
		{"invalid --confirm-deletion", []string{"prune", "plant", "--confirm-deletion", "xyz"}, exit.Usage, "use a commit"},
		{"timeout", []string{"apply", "plant", "--timeout", "0s"}, exit.Usage, "must be positive"},
		{"orphans without a name", []string{"status", "--orphans"}, exit.Usage, "needs the name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, talk := s.run(append([]string{"config"}, c.args...)...)
			assert.Equal(t, c.code, code, talk)
			assert.Contains(t, talk, c.says)
		})
	}
	_, err = syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	code, _, talk = s.run("config", "apply", "plant")
	assert.Equal(t, exit.Held, code)
	assert.Contains(t, talk, "Paused")
	_, err = syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"spec":{"paused":false,"apply":{"dryRun":true,"adoptPolicy":"always"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	code, out, talk = s.run("config", "apply", "plant")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, out, "data.a")
	assert.Contains(t, talk, "nothing was changed: 1 to configure")
	m, err := s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "site", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "c", m.Data["a"])
	cs, err = syncs.Get(t.Context(), "plant")
	require.NoError(t, err)
	assert.Equal(t, string(v1alpha1.ReasonDryRun), cs.Status.Conditions[len(cs.Status.Conditions)-1].Reason)
}

func kubeDynamic(t *testing.T, s *configScene) dynamic.Interface {
	t.Helper()
	clients, err := kube.ConnectTo(s.RESTConfig(), "test")
	require.NoError(t, err)
	return clients.Dynamic
}

// G4 of docs/internals/threats.md: a render hides what may be secret, unless the caller passes --show-secrets.
func TestConfigRender(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	s.git.Commit("first", gitserver.Write("k8s/site.yaml", site), gitserver.Write("k8s/t.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: t}, data: {a: '{{.Vars.password}}'}}"))
	s.ApplyYAML(t, s.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: vars}, stringData: {password: S3CR3T-vars}}")
	file := filepath.Join(t.TempDir(), "configsync.yaml")
	require.NoError(t, os.WriteFile(file, []byte("{apiVersion: stoker.io/v1alpha1, kind: ConfigSync, metadata: {name: plant}, spec: {source: {git: {repoURL: '"+s.server.URL("plant.git")+
		"', path: k8s}}, render: {template: true, varsFrom: [{secretRef: {name: vars}}]}}}"), 0o600))
	clone := s.clone()

	code, out, talk := s.run("config", "render", filepath.Join(clone, "k8s"))
	assert.Equal(t, exit.Done, code, talk)
	assert.Regexp(t, `ConfigMap +- +site +k8s/site.yaml`, out)

	code, out, talk = s.run("config", "render", "-f", file, "-o", "yaml")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, out, "key: REDACTED*")
	assert.Contains(t, talk, "is shown without its values, and cannot be applied")
	assert.NotContains(t, out+talk, "S3CR3T")
	assert.Contains(t, talk, "ConfigMap t is not shown")
	code, out, talk = s.run("config", "render", "-f", file, "-o", "yaml", "--show-secrets")
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, out, "a: S3CR3T-vars")
	list := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(out), &list))
	assert.Len(t, list["items"], 3)

	code, out, talk = s.run("config", "diff", "-f", file, filepath.Join(clone, "k8s"))
	assert.Equal(t, exit.Done, code, talk)
	assert.Contains(t, out, "HEAD at ")
	assert.Contains(t, out, "3 to create")
}

// A restore of the cluster without the status forgets what to prune. Objects that have the mark of the ConfigSync, and are not in its inventory,
// are shown and stay.
func TestConfigOrphans(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	s.git.Commit("first", gitserver.Write("k8s/site.yaml", site))
	code, _, talk := s.run("config", "apply", "plant")
	require.Equal(t, exit.Done, code, talk)
	code, out, talk := s.run("config", "status", "plant", "--orphans", "-o", "name")
	assert.Equal(t, exit.Done, code, talk)
	assert.Empty(t, out)
	syncs := kube.ConfigSyncs(kubeDynamic(t, s), s.namespace)
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(`{"status":{"inventory":null}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s.git.Commit("second", gitserver.Write("k8s/site.yaml", strings.Split(site, "---")[0]))
	code, _, talk = s.run("config", "apply", "plant")
	assert.Equal(t, exit.Done, code, talk)
	code, out, talk = s.run("config", "status", "plant", "--orphans", "-o", "name")
	assert.Equal(t, exit.Done, code, talk)
	assert.Equal(t, "Secret/licence\n", out, "the ConfigMap, which git names, must not be an orphan")
	_, err = s.Client(t).CoreV1().Secrets(s.namespace).Get(t.Context(), "licence", metav1.GetOptions{})
	require.NoError(t, err)
}

// The test runs each command of docs/how-to/config.md, and those of the reference, in a clone of the repository.
func TestConfigPageCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	s := newConfigScene(t)
	s.git.Commit("first", gitserver.Write("kubernetes/site.yaml", site))
	s.git.Commit("second", gitserver.Write("k8s/site.yaml", site))
	kubectl, _ := kubetest.Kubectl(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, writeKubeconfig(s.Kubeconfig(), kubeconfig, s.namespace, s.As(t, s.namespace, "default", "").BearerToken))
	dir := s.clone()
	text, err := os.ReadFile("../docs/how-to/config.md")
	require.NoError(t, err)
	_, manifest, found := strings.Cut(string(text), "```yaml\n")
	require.True(t, found)
	manifest, _, _ = strings.Cut(manifest, "```")
	manifest = strings.ReplaceAll(manifest, "https://git.example.com/plant.git", s.server.URL("plant.git"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "configsync.yaml"), []byte(manifest), 0o600))
	shell := document.NewShell(t, dir, map[string]string{"kubectl": kubectl, "stoker": program.Build(t, "hooks")}, "KUBECONFIG="+kubeconfig)
	for c := range lines.Of("docs/how-to/config.md") {
		said := shell.Type(t, c.Text)
		switch {
		case strings.Contains(c.Text, "apply plant"):
			assert.Contains(t, said, "2 to create")
			assert.Contains(t, said, "are applied and healthy")
		case strings.Contains(c.Text, "render"):
			assert.Contains(t, said, "kubernetes/site.yaml")
		}
	}
	for c := range lines.Of("docs/reference/cli.md") {
		shell.Type(t, c.Text)
	}
}

// An API server accepts the manifests of examples/config, and they fit each other: with the rights of the account, the command line of each job
// applies a commit.
func TestConfigExamples(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	s.git.Commit("first", gitserver.Write("kubernetes/a.yaml",
		"{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: line}, spec: {git: {repo: 'https://git.example.com/plant.git', ref: main}}}"))
	s.ApplyYAML(t, s.namespace, "{apiVersion: v1, kind: Secret, type: kubernetes.io/basic-auth, metadata: {name: git-credentials}, stringData: {username: deploy, password: pass}}")
	s.server.SetAuth(gitserver.Basic("deploy", "pass"))
	for _, name := range []string{"account.yaml", "configsync.yaml", "cronjob.yaml"} {
		text, err := os.ReadFile("../examples/config/" + name)
		require.NoError(t, err)
		s.ApplyYAML(t, s.namespace, strings.ReplaceAll(string(text), "https://git.example.com/plant.git", s.server.URL("plant.git")))
	}
	var cron batchv1.CronJob
	var hook batchv1.Job
	var task struct {
		Spec struct{ Steps []corev1.Container }
	}
	read := func(name string, into any) {
		text, err := os.ReadFile("../examples/config/" + name)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, into))
	}
	read("cronjob.yaml", &cron)
	read("presync.yaml", &hook)
	read("task.yaml", &task)
	require.Len(t, task.Spec.Steps, 1)
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	pods := map[string]corev1.PodSpec{"cronjob": cron.Spec.JobTemplate.Spec.Template.Spec, "presync": hook.Spec.Template.Spec, "task": {Containers: task.Spec.Steps}}
	commands := map[string][]string{}
	for name, pod := range pods {
		commands[name] = strings.Split(strings.ReplaceAll(strings.Join(pod.Containers[0].Args, " "), "$(params.name)", "plant"), " ")
		t.Run(name, func(t *testing.T) {
			for _, result := range evaluator.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &metav1.ObjectMeta{}, &pod) {
				assert.True(t, result.Allowed, result.ForbiddenDetail)
			}
		})
	}
	account := s.As(t, s.namespace, "stoker-config", "")
	authority := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, rest.LoadTLSFiles(account))
	require.NoError(t, os.WriteFile(authority, account.CAData, 0o600))
	in := []string{"stoker", "--kubeconfig", os.DevNull, "--server", account.Host, "--certificate-authority", authority, "--token", account.BearerToken, "--namespace", s.namespace}
	// sequence: each job applies the next commit
	for i, name := range []string{"cronjob", "presync", "task"} {
		value := fmt.Sprintf("by %s", name)
		s.git.Commit(value, gitserver.Write("kubernetes/site.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: site}, data: {a: "+value+"}}"))
		var out, talk bytes.Buffer
		require.Eventually(t, func() bool { // the authorizer learns of the Role a moment later
			out.Reset()
			talk.Reset()
			return run(t.Context(), append(slices.Clone(in), commands[name]...), &out, &talk) == exit.Done
		}, 30*time.Second, 300*time.Millisecond, "%s: %s", name, &talk)
		assert.Contains(t, out.String(), []string{"2 to create", "1 to configure", "1 to configure"}[i])
		m, err := s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "site", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, value, m.Data["a"])
	}
}

// The commands of a GatewaySync take a ConfigSync, too. The requests themselves are tested in internal/configsync.
func TestConfigSyncRequests(t *testing.T) {
	t.Parallel()
	s := newConfigScene(t)
	first := s.git.Commit("first", gitserver.Write("k8s/site.yaml", site))
	s.git.Tag("v1", first)
	s.git.Commit("second", gitserver.Write("k8s/site.yaml", site), gitserver.Write("k8s/more.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: more}}"))
	// sequence: each step starts with the state that the last one left
	for _, step := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"wait", "configsync/plant", "--timeout=1ms"}, exit.Timeout, "", "no run has handled the spec and the request yet"},
		{[]string{"config", "apply", "plant"}, exit.Done, "3 to create", ""},
		{[]string{"wait", "configsync/plant"}, exit.Done, "3 objects of", ""},
		{[]string{"set-ref", "csync/plant", "v1"}, exit.Done, "configsync.stoker.io/plant desired ref set to v1\n", ""},
		{[]string{"wait", "csync/plant", "--timeout=1ms"}, exit.Timeout, "", "no run has handled"},
		{[]string{"config", "apply", "plant"}, exit.Done, "1 to prune", ""},
		{[]string{"wait", "configsync/plant", "--ref=v1"}, exit.Done, "2 objects of " + first[:7], ""},
		{[]string{"wait", "configsync/plant", "--ref=main"}, exit.Superseded, "", "the desired ref is v1 (requested by admin) and no longer main"},
		{[]string{"rollback", "configsync/plant"}, exit.Done, "unchanged", ""},
		{[]string{"rollback", "configsync/plant", "--if-needed"}, exit.Usage, "", "spec.rollbackOnFailure"},
		{[]string{"pause", "configsync/plant"}, exit.Done, "configsync.stoker.io/plant is paused", ""},
		{[]string{"config", "apply", "plant"}, exit.Held, "", "is paused"},
		{[]string{"resume", "configsync/plant", "-o", "name"}, exit.Done, "configsync.stoker.io/plant\n", ""},
		{[]string{"sync", "configsync/plant"}, exit.Done, "configsync.stoker.io/plant sync requested", ""},
		{[]string{"retry", "configsync/plant"}, exit.Usage, "", "is not a GatewaySync"},
		{[]string{"pause", "pod/plant"}, exit.Usage, "", "is not the name of an object"},
		{[]string{"set-ref", "configsync/nothing", "v1"}, exit.Failed, "", "there is no ConfigSync nothing in namespace"},
	} {
		code, out, talk := s.run(step.args...)
		assert.Equal(t, step.code, code, "%v: %s%s", step.args, out, talk)
		assert.Contains(t, out, step.stdout, step.args)
		assert.Contains(t, talk, step.stderr, step.args)
	}
	_, err := s.Client(t).CoreV1().ConfigMaps(s.namespace).Get(t.Context(), "more", metav1.GetOptions{})
	assert.Error(t, err)
}
