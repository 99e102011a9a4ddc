package charts

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"stoker.io/stoker/test/cluster/kubetest"
)

// renewal is the CronJob that renews the webhook's certificate. firstRenewal stands for the Job that does it first, whose name ends with a hash.
const renewal, firstRenewal = "CronJob/stoker-system/stoker-certificate", "Job/stoker-system/stoker-certificate"

// pods returns the pod templates of an installation.
func pods(t *testing.T, v values) map[string]corev1.PodTemplateSpec {
	t.Helper()
	all, r := rendered(t, v), once(t, v)
	found := map[string]corev1.PodTemplateSpec{}
	for name, o := range all {
		switch o.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			found[name] = d.Spec.Template
		case "Job":
			var j batchv1.Job
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &j))
			found[firstRenewal] = j.Spec.Template
			assert.NotNil(t, j.Spec.ActiveDeadlineSeconds, "%s: a pod that cannot start must not hold up Argo CD", name)
		case "CronJob":
			var j batchv1.CronJob
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &j))
			found[name] = j.Spec.JobTemplate.Spec.Template
			assert.NotNil(t, j.Spec.JobTemplate.Spec.ActiveDeadlineSeconds, "%s: a pod that cannot start must not block later runs", name)
		}
		assert.NotContains(t, []string{"StatefulSet", "DaemonSet", "Pod"}, o.GetKind(), "this test does not cover the kind yet")
	}
	for _, hook := range r.Hooks {
		for name, o := range parse(t, []byte(hook.Manifest)) {
			var p corev1.Pod
			if o.GetKind() != "Pod" {
				assert.Contains(t, o.GetAnnotations()["helm.sh/hook-delete-policy"], "hook-failed", "%s: a right of the test must not outlive it", name)
				continue
			}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
			found[name] = corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
		}
	}
	want := []string{deployment, injectorCheck}
	if all[renewal] != nil {
		want = append(want, renewal, firstRenewal)
		assert.Equal(t, found[renewal], found[firstRenewal])
	}
	if all[receiver] != nil {
		want = append(want, receiver, receiverCheck)
	}
	if all[notifier] != nil {
		want = append(want, notifier)
	}
	if all[configSync] != nil {
		want = append(want, configSync)
	}
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(found)), "unexpected set of pods")
	return found
}

// I6: All pods run in a namespace that enforces the Pod Security Standard restricted.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	for _, c := range valueCases {
		if c.path == "webhook.hostNetwork" {
			continue // values.yaml says that the standard refuses it
		}
		for name, p := range pods(t, c.values()) {
			for _, result := range evaluator.EvaluatePod(level, &p.ObjectMeta, &p.Spec) {
				assert.True(t, result.Allowed, "%s with %s: %s %s", name, c.path, result.ForbiddenReason, result.ForbiddenDetail)
			}
			for _, c := range p.Spec.Containers {
				assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, name)
				assert.False(t, c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero(), name)
			}
			assert.Empty(t, p.Spec.SecurityContext.RunAsUser, "%s: the image sets the user, and some clusters assign one", name)
		}
	}
}

// A terminating replica keeps serving until its callers have noticed. A rollout never reduces the number
// of available replicas.
func TestGracefulTermination(t *testing.T) {
	t.Parallel()
	all, found := rendered(t, on), pods(t, on)
	for name, part := range map[string]string{deployment: "stoker-injector", receiver: "stoker-receiver"} {
		t.Run(part, func(t *testing.T) {
			spec := found[name].Spec
			c := spec.Containers[0]
			require.NotNil(t, c.Lifecycle.PreStop.Sleep)
			assert.Positive(t, c.Lifecycle.PreStop.Sleep.Seconds)
			assert.Less(t, c.Lifecycle.PreStop.Sleep.Seconds+20, *spec.TerminationGracePeriodSeconds, "the pod needs time for requests in progress")
			for path, want := range map[string]any{
				"spec/strategy/rollingUpdate/maxUnavailable": int64(0),
				"spec/strategy/rollingUpdate/maxSurge":       int64(1),
			} {
				look(t, all, name, path, want)
			}
			look(t, all, "PodDisruptionBudget/stoker-system/"+part, "spec/maxUnavailable", int64(1))
			look(t, all, "PodDisruptionBudget/stoker-system/"+part, "spec/unhealthyPodEvictionPolicy", "AlwaysAllow")
		})
	}
}

// The Deployment of a component, its Services, monitors, policies and its topology spread select the same pods, and none of the other component.
func TestSelectorsMatchPods(t *testing.T) {
	t.Parallel()
	all := rendered(t, with(on, set("metrics.serviceMonitor.enabled", true)))
	labels := map[string]any{}
	for _, name := range []string{deployment, receiver} {
		found, ok := at(all[name].Object, "spec/template/metadata/labels")
		require.True(t, ok)
		labels[name] = found
	}
	looked := 0
	for name, o := range all {
		path, selects := map[string]string{
			"Deployment": "spec/selector/matchLabels", "Service": "spec/selector", "PodDisruptionBudget": "spec/selector/matchLabels",
			"NetworkPolicy": "spec/podSelector/matchLabels", "ServiceMonitor": "spec/selector/matchLabels",
		}[o.GetKind()]
		if !selects {
			continue
		}
		mine, others := deployment, receiver
		if strings.Contains(name, "receiver") {
			mine, others = receiver, deployment
		}
		selector, ok := at(o.Object, path)
		require.True(t, ok, name)
		assert.Subset(t, labels[mine], selector, name)
		assert.NotSubset(t, labels[others], selector, name)
		assert.NotContains(t, selector, "app.kubernetes.io/instance", "%s: Argo CD may change that label", name)
		looked++
	}
	assert.Equal(t, 11, looked)
	for _, name := range []string{deployment, receiver} {
		t.Run(name, func(t *testing.T) {
			spread, ok := at(all[name].Object, pod+"/topologySpreadConstraints")
			require.True(t, ok)
			for _, s := range spread.([]any) {
				selector, _ := at(s, "labelSelector/matchLabels")
				assert.Subset(t, labels[name], selector)
			}
		})
	}
	for _, port := range []struct {
		service, name, deployment, container string
		number                               int64
	}{
		{"stoker-injector", "webhook", deployment, container, 9443},
		{"stoker-injector", "metrics", deployment, container, 8083},
		{"stoker-receiver", "webhook", receiver, receiverContainer, 9444},
		{"stoker-receiver-metrics", "metrics", receiver, receiverContainer, 8083},
	} {
		t.Run(port.service+" "+port.name, func(t *testing.T) {
			target, ok := at(all["Service/stoker-system/"+port.service].Object, "spec/ports/"+port.name+"/targetPort")
			require.True(t, ok)
			look(t, all, port.deployment, port.container+"/ports/"+target.(string)+"/containerPort", port.number)
		})
	}
	look(t, all, webhooks, "webhooks/0/clientConfig/service", values{
		"name": "stoker-injector", "namespace": namespace, "path": "/mutate", "port": int64(443),
	})
}

// Gateways of the examples start in a namespace that enforces the Pod Security Standard restricted.
func TestExamplesAreRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	seen := 0
	require.NoError(t, filepath.WalkDir("../../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "{{") || !strings.Contains(string(text), "kind: StatefulSet") {
			return err
		}
		for name, o := range parse(t, text) {
			if o.GetKind() != "StatefulSet" {
				continue
			}
			var s appsv1.StatefulSet
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s))
			for _, result := range evaluator.EvaluatePod(level, &s.Spec.Template.ObjectMeta, &s.Spec.Template.Spec) {
				assert.True(t, result.Allowed, "%s %s: %s %s", path, name, result.ForbiddenReason, result.ForbiddenDetail)
			}
			seen++
		}
		return nil
	}))
	assert.Greater(t, seen, 8)
}

// Runs Helm itself to install, upgrade and uninstall the chart. Helm must keep the CA that the injector
// wrote and, with the CRDs, every GatewaySync.
func TestHelmLifecycle(t *testing.T) {
	t.Parallel()
	s := newServer(t, kubetest.Private(), kubetest.WithoutKinds())
	getter := genericclioptions.NewConfigFlags(false)
	kubeconfig, inNamespace := s.Kubeconfig(), namespace
	getter.KubeConfig, getter.Namespace = &kubeconfig, &inNamespace
	helm := new(action.Configuration)
	require.NoError(t, helm.Init(getter, namespace, "secret", func(string, ...any) {}))

	in := action.NewInstall(helm)
	in.ReleaseName, in.Namespace, in.CreateNamespace = "stoker", namespace, true
	_, err := in.Run(theChart(t), nil)
	require.NoError(t, err)

	s.mapper.Reset()
	p := &plant{server: s, namespace: s.Namespace(t)}
	syncs := p.as(t, s.RESTConfig(), "gatewaysyncs")
	before := parseOne(t, "{apiVersion: stoker.io/v1alpha1, kind: GatewaySync, metadata: {name: before}, spec: "+spec+"}")
	require.Eventually(t, func() bool {
		_, err = syncs.Create(t.Context(), before, metav1.CreateOptions{})
		return err == nil
	}, eventually, pause, "%v", err)
	configurations := s.core.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err = configurations.Patch(t.Context(), "stoker-injector", types.StrategicMergePatchType, caBundle(t), metav1.PatchOptions{FieldManager: "stoker-injector"})
	require.NoError(t, err)

	secrets := s.core.CoreV1().Secrets(namespace)
	certificate, err := secrets.Get(t.Context(), "stoker-injector-cert", metav1.GetOptions{})
	require.NoError(t, err)
	certificate.Data = map[string][]byte{"tls.crt": []byte("issued")}
	certificate, err = secrets.Update(t.Context(), certificate, metav1.UpdateOptions{})
	require.NoError(t, err)
	jobs := func() (names []string) {
		list, err := s.core.BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, j := range list.Items {
			if j.DeletionTimestamp == nil {
				names = append(names, j.Name)
			}
		}
		return names
	}
	require.Len(t, jobs(), 1)
	first := jobs()[0]

	up := action.NewUpgrade(helm)
	up.Namespace = namespace
	_, err = up.Run("stoker", theChart(t), with(set("defaults.polling.interval", "5m"), set("webhook.timeoutSeconds", 4)))
	require.NoError(t, err)
	assert.Equal(t, []string{first}, jobs())
	background := metav1.DeletePropagationBackground
	require.NoError(t, s.core.BatchV1().Jobs(namespace).Delete(t.Context(), first, metav1.DeleteOptions{PropagationPolicy: &background})) // its time to live has passed
	_, err = up.Run("stoker", theChart(t), with(set("defaults.polling.interval", "5m"), set("webhook.timeoutSeconds", 4)))
	require.NoError(t, err)
	assert.Equal(t, []string{first}, jobs(), "an upgrade runs the renewal again")
	_, err = up.Run("stoker", theChart(t), with(set("defaults.polling.interval", "5m"), set("webhook.timeoutSeconds", 4), set("image.registry", "registry.example.com/stoker")))
	require.NoError(t, err, "a Job that waits for its image must not stop the upgrade that names the right one")
	assert.NotEqual(t, []string{first}, jobs())
	assert.Len(t, jobs(), 1)
	keptCertificate, err := secrets.Get(t.Context(), "stoker-injector-cert", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, certificate.Data, keptCertificate.Data, "an upgrade must keep the certificate")
	live, err := configurations.Get(t.Context(), "stoker-injector", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, live.Webhooks, 2)
	for _, w := range live.Webhooks {
		assert.EqualValues(t, 4, *w.TimeoutSeconds, w.Name)
		assert.NotEmpty(t, w.ClientConfig.CABundle, w.Name)
	}
	after := before.DeepCopy()
	after.SetName("after")
	require.Eventually(t, func() bool {
		made, err := syncs.Create(t.Context(), after, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return false
		}
		interval, _ := at(made.Object, "spec/polling/interval")
		return interval == "5m"
	}, eventually, pause, "an upgrade must update the CRDs")
	kept, err := syncs.Get(t.Context(), "before", metav1.GetOptions{})
	require.NoError(t, err)
	look(t, objects{"before": kept}, "before", "spec/polling/interval", "60s")

	response, err := action.NewUninstall(helm).Run("stoker")
	require.NoError(t, err)
	assert.Contains(t, response.Info, "CustomResourceDefinition")
	_, err = syncs.Get(t.Context(), "before", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = configurations.Get(t.Context(), "stoker-injector", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)

	again := action.NewInstall(helm)
	again.ReleaseName, again.Namespace = "stoker", namespace
	_, err = again.Run(theChart(t), nil)
	require.NoError(t, err, "the release must adopt the CRDs that were kept")
	_, err = syncs.Get(t.Context(), "before", metav1.GetOptions{})
	require.NoError(t, err)
}

// Helm 4 renders the chart as Helm 3 does, and accepts its values and its schema.
func TestHelm4(t *testing.T) {
	t.Parallel()
	newer := filepath.Join(t.TempDir(), "helm4")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", newer, "helm.sh/helm/v4/cmd/helm").CombinedOutput()
	require.NoError(t, err, "%s", out)
	chart := filepath.Join("..", "..", "charts", "stoker")
	// Helm 4 writes another number of empty lines between the objects.
	objectsOf := func(out string) (all []string) {
		for o := range strings.SplitSeq(out, "\n---\n") {
			all = append(all, strings.TrimSpace(strings.TrimPrefix(o, "---\n")))
		}
		return all
	}
	run := func(t *testing.T, program string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).Output()
		require.NoError(t, err, "%s %v", program, args)
		return string(out)
	}
	for name, set := range map[string]string{
		"defaults":   "crds.keep=true",
		"every part": "webhookReceiver.enabled=true,notifier.enabled=true,configSync.enabled=true,configSync.namespaces={line},metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.rules.enabled=true,metrics.dashboards.enabled=true",
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "stoker", chart, "--namespace", "stoker-system", "--set", set, "--kube-version", "v1.37.2"}
			older := objectsOf(run(t, theHelm(t), args...))
			assert.Greater(t, len(older), 20)
			assert.Equal(t, older, objectsOf(run(t, newer, args...)))
		})
	}
	t.Run("lint", func(t *testing.T) { run(t, newer, "lint", "--strict", chart) })
	t.Run("schema", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), newer, "template", "stoker", chart, "--set", "injector.replicas=x").CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(out), "replicas")
	})
}

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs warnings about values of a wrong type, which some tests use
	flag.Parse()
	// About half of the tests mostly wait for API servers and commands. With two processors, two tests at
	// a time would leave them idle.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(goruntime.GOMAXPROCS(0)) {
		if err := parallel.Value.Set(strconv.Itoa(2 * goruntime.GOMAXPROCS(0))); err != nil {
			panic(err) // cannot happen: the value is a number
		}
	}
	code := kubetest.M{M: m}.Run()
	if err := errors.Join(os.RemoveAll(programs.dir), os.RemoveAll(helm.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "programs that were built:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
