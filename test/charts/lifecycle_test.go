package charts

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"stoker.io/stoker/test/cluster/kubetest"
)

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
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
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
