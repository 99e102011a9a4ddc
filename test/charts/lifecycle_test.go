package charts

import (
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
