package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/specfile"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

// likeArgoCD creates the objects of Argo CD that docs/how-to/argocd.md uses.
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

// The test runs each command of docs/how-to/argocd.md that needs neither a node nor Argo CD. Commands run unchanged, in page order, from the
// root of the repository.
func TestArgoCDPageCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Control(t)
	kubectl, root := kubetest.Kubectl(t)
	shell := document.NewShell(t, root, map[string]string{"kubectl": kubectl}, "KUBECONFIG="+cluster.Kubeconfig())

	likeArgoCD(t, cluster)
	for c := range lines.Of("docs/how-to/argocd.md") {
		shell.Type(t, c.Text)
	}
	health, err := cluster.Client(t).CoreV1().ConfigMaps("argocd").Get(t.Context(), "argocd-cm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, health.Data, "resource.customizations.health.stoker.io_GatewaySync")
	assert.Contains(t, health.Data, "resource.customizations.ignoreResourceUpdates.stoker.io_GatewaySync")
}

// The test runs the commands of docs/how-to/stages.md, and of other pages that show one of them, while a rollout waits for an approval.
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
	kubectl, root := kubetest.Kubectl(t)
	shell := document.NewShell(t, root, map[string]string{"kubectl": kubectl, "stoker": program.Build(t, "hooks")},
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
	kubectl, _ := kubetest.Kubectl(t)
	shell := document.NewShell(t, t.TempDir(), map[string]string{"kubectl": kubectl, "stoker": program.Build(t, "hooks")},
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

const waves = "../examples/argocd"

// ofHelm matches a value in a chart template. conditional matches a line that renders to nothing. The tests do not depend on the
// actual values.
var (
	ofHelm      = regexp.MustCompile(`\{\{ \.[^}]*\}\}`)
	conditional = regexp.MustCompile(`(?m)^ *\{\{- (with|end)\b.*\n`)
)

// documents returns the objects of a file, each as YAML.
func documents(t *testing.T, file string) [][]byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(waves, file))
	require.NoError(t, err)
	raw = ofHelm.ReplaceAllFunc(conditional.ReplaceAll(raw, nil), func(value []byte) []byte {
		if bytes.Contains(value, []byte("| quote ")) {
			return []byte(`"2"`)
		}
		return []byte("2")
	})
	split := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(raw)))
	defer split.Close()
	var list [][]byte
	for {
		document := make([]byte, 64<<10)
		n, err := split.Read(document)
		if err == io.EOF {
			return list
		}
		require.NoError(t, err)
		list = append(list, document[:n])
	}
}

const (
	hookOf     = "argocd.argoproj.io/hook"
	deletionOf = "argocd.argoproj.io/hook-delete-policy"
	waveOf     = "argocd.argoproj.io/sync-wave"
)

// hookFiles lists the files with hook Jobs: one for each of the three examples, and set-ref.yaml, which a user can add to one.
var hookFiles = []string{"plain/hooks.yaml", "helm/templates/hooks.yaml", "kustomize/hooks.yaml", "set-ref.yaml"}

// Each hook must have a deadline, leave at most one Job behind, run in a restricted namespace, and call an existing command.
func TestExampleHookJobs(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	restricted := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	for _, file := range hookFiles {
		t.Run(file, func(t *testing.T) {
			phases := map[string]string{}
			for _, document := range documents(t, file) {
				var job batchv1.Job
				require.NoError(t, yaml.Unmarshal(document, &job))
				if job.Kind != "Job" {
					continue
				}
				name := job.Name + job.GenerateName
				pod := job.Spec.Template.Spec
				require.Len(t, pod.Containers, 1, name)
				c := pod.Containers[0]
				phases[job.Annotations[hookOf]] = c.Args[0]

				assert.Positive(t, *job.Spec.ActiveDeadlineSeconds, name)
				assert.GreaterOrEqual(t, *job.Spec.BackoffLimit, int32(2), name)
				assert.Nil(t, job.Spec.TTLSecondsAfterFinished, "%s: a sync hangs if the Job is deleted before Argo CD reads it", name)
				if job.GenerateName != "" {
					assert.Equal(t, "HookSucceeded,HookFailed", job.Annotations[deletionOf], "%s: Jobs with generated names must be deleted", name)
					assert.True(t, strings.HasSuffix(job.GenerateName, "-"), name)
					// Kubernetes appends five characters to the name of the Job and a hyphen, and cuts the rest to 58.
					assert.LessOrEqual(t, len(job.GenerateName), 58-len("d71ae04-postsync-1795150392-"), "%s: the name must fit into the names of its pods", name)
				} else {
					assert.Equal(t, "BeforeHookCreation", job.Annotations[deletionOf], name)
				}
				rules := job.Spec.PodFailurePolicy.Rules
				require.Len(t, rules, 2, name)
				assert.Equal(t, batchv1.PodFailurePolicyActionIgnore, rules[0].Action, "%s: an eviction must not count as a failure", name)
				assert.Equal(t, corev1.DisruptionTarget, rules[0].OnPodConditions[0].Type, name)
				assert.Equal(t, batchv1.PodFailurePolicyActionFailJob, rules[1].Action, name)
				assert.Equal(t, c.Name, *rules[1].OnExitCodes.ContainerName, name)
				assert.NotContains(t, rules[1].OnExitCodes.Values, int32(exit.Retry), "%s: exit codes that a retry may fix must not fail the Job", name)
				assert.Contains(t, rules[1].OnExitCodes.Values, int32(exit.Failed), name)
				assert.Equal(t, corev1.RestartPolicyNever, pod.RestartPolicy, name)
				assert.Equal(t, "stoker-hooks", pod.ServiceAccountName, name)
				assert.Equal(t, corev1.TerminationMessageFallbackToLogsOnError, c.TerminationMessagePolicy, name)
				assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
				assert.False(t, c.Resources.Limits.Memory().IsZero(), name)
				for _, result := range evaluator.EvaluatePod(restricted, &job.Spec.Template.ObjectMeta, &pod) {
					assert.True(t, result.Allowed, "%s: %s %s", name, result.ForbiddenReason, result.ForbiddenDetail)
				}

				root := newCLI(io.Discard, io.Discard).root("stoker")
				found, left, err := root.Find(c.Args)
				require.NoError(t, err, name)
				require.NotSame(t, root, found, name)
				require.NoError(t, found.ParseFlags(left), name)
				require.NoError(t, found.ValidateArgs(found.Flags().Args()), name)
				if timeout := found.Flags().Lookup("timeout"); timeout != nil && found.Name() == "sync" {
					assert.Equal(t, "15m0s", timeout.DefValue, "%s: the deadline of the Job must be longer than the wait", name)
					assert.Greater(t, *job.Spec.ActiveDeadlineSeconds, int64(15*60), name)
				}
			}
			want := map[string]string{"PreSync": "preflight", "PostSync": "sync", "SyncFail": "rollback"}
			if file == "set-ref.yaml" {
				want = map[string]string{"Sync": "set-ref"}
			}
			assert.Equal(t, want, phases)
		})
	}
}

// The objects come in three waves: the permissions of the Jobs, the GatewaySync, then its gateways.
func TestExampleSyncWaves(t *testing.T) {
	for _, dir := range []string{"plain", "helm/templates", "kustomize"} {
		t.Run(dir, func(t *testing.T) {
			for _, document := range documents(t, dir+"/gateways.yaml") {
				var set appsv1.StatefulSet
				require.NoError(t, yaml.Unmarshal(document, &set))
				assert.Equal(t, "1", set.Annotations[waveOf])
				if set.Kind == "StatefulSet" {
					assert.Equal(t, "line", set.Spec.Template.Annotations[v1alpha1.AnnotationCRName])
					assert.Equal(t, appsv1.ParallelPodManagement, set.Spec.PodManagementPolicy, "with OrderedReady, Kubernetes keeps a pod that cannot start")
				}
			}
			for _, document := range documents(t, dir+"/rights.yaml") {
				var account corev1.ServiceAccount
				require.NoError(t, yaml.Unmarshal(document, &account))
				assert.Equal(t, []string{"PreSync", "BeforeHookCreation", "-1"}, []string{account.Annotations[hookOf], account.Annotations[deletionOf], account.Annotations[waveOf]})
			}
		})
	}
	for _, file := range []string{"plain.yaml", "helm.yaml", "kustomize.yaml"} {
		t.Run(file, func(t *testing.T) {
			var app struct {
				Spec struct {
					SyncPolicy struct {
						SyncOptions []string
						Retry       struct{ Limit *int }
					}
				}
			}
			require.NoError(t, yaml.Unmarshal(documents(t, file)[0], &app))
			assert.Contains(t, app.Spec.SyncPolicy.SyncOptions, "ApplyOutOfSyncOnly=true")
			require.NotNil(t, app.Spec.SyncPolicy.Retry.Limit, "Argo CD retries five times by default")
			assert.Zero(t, *app.Spec.SyncPolicy.Retry.Limit, "a retry leaves out wave 0, which is in sync, and applies wave 1")
		})
	}
	gs, err := specfile.GatewaySync(filepath.Join(waves, "plain/gatewaysync.yaml"), nil)
	require.NoError(t, err)
	assert.Equal(t, "0", gs.Annotations[waveOf])
	assert.Empty(t, validation.GatewaySync(gs))
	var before corev1.ConfigMap
	require.NoError(t, yaml.Unmarshal(documents(t, "plain/preflight.yaml")[0], &before))
	again, err := decode.GatewaySync([]byte(before.Data["gatewaysync.yaml"]))
	require.NoError(t, err)
	assert.Equal(t, gs, again, "the checked GatewaySync must be the applied one")
	assert.Equal(t, "-1", before.Annotations[waveOf])
}

// A real API server must accept the plain example. The test only replaces the namespace and generated names.
func TestPlainExampleIsAccepted(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	for _, file := range []string{"rights.yaml", "preflight.yaml", "gatewaysync.yaml", "gateways.yaml", "hooks.yaml"} {
		for _, document := range documents(t, "plain/"+file) {
			text := strings.ReplaceAll(strings.ReplaceAll(string(document), "generateName: stoker-rollback-", "name: stoker-rollback-x"), "namespace: plant", "namespace: "+namespace)
			cluster.ApplyYAML(t, namespace, text)
		}
	}
}
