package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/cluster/kubetest"
)

// I2: the shipped webhook configuration without a Service behind it.
func TestMissingService(t *testing.T) {
	w := newWorld(t)
	w.cluster.ApplyYAML(t, "", shipped(t, "MutatingWebhookConfiguration/*"))
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	required := gatewayPod("required")
	required.Annotations[v1alpha1.AnnotationRequire] = "true"
	w.eventually("the webhook configuration is in force", func() bool {
		_, err := w.client.CoreV1().Pods(plant).Create(t.Context(), required, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "require.pods.stoker.io")
	})
	begun, called := time.Now(), w.webhookCalls()
	assert.Positive(t, called)
	plain := gatewayPod("plain")
	plain.Annotations = nil
	w.pod(plant, plain)
	ours := gatewayPod("stoker-injector-x")
	ours.Annotations[v1alpha1.AnnotationRequire] = "true" // the strictest request that a pod can make
	made, err := w.client.CoreV1().Pods(system).Create(t.Context(), ours, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	assert.False(t, inject.Has(made))
	assert.Equal(t, called, w.webhookCalls(), "the API server must not call the webhook for these pods")
	assert.False(t, inject.Has(w.pod(plant, gatewayPod("gw"))), "the pod must start without an agent")
	assert.Greater(t, w.webhookCalls(), called)
	assert.Less(t, time.Since(begun), time.Minute, "the pod must start within the timeout of a request")
}

// webhookCalls returns how often the API server has called a webhook of the injector, including failed calls.
func (w *world) webhookCalls() (n int) {
	w.Helper()
	text, err := w.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	require.NoError(w, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `pods.stoker.io"`) {
			_, value, _ := strings.Cut(line, "} ")
			times, err := strconv.Atoi(strings.TrimSpace(value))
			require.NoError(w, err)
			n += times
		}
	}
	return n
}

func TestInjectorSurvivesAPIServerOutage(t *testing.T) {
	w := newWorld(t, kubetest.Private())
	in := w.start()
	w.install(in)
	plant := w.cluster.Namespace(t)
	w.gatewaySync(plant)
	assert.True(t, inject.Has(w.pod(plant, gatewayPod("before"))))
	in.restarted = true
	w.cluster.Kill(t, kubetest.APIServer)
	w.cluster.Start(t, kubetest.APIServer)
	w.eventually("pods get agents again", func() bool {
		made, err := w.client.CoreV1().Pods(plant).Create(t.Context(), gatewayPod("after"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && inject.Has(made)
	})
	other := w.cluster.Namespace(t)
	w.gatewaySync(other)
	w.eventually("the reconciler continues", func() bool { return w.status(other)["Ready"] == "Unknown/NoGateways" })
}
