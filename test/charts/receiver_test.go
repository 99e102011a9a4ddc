package charts

import (
	"bytes"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

// rightsOf applies the RBAC objects that the chart renders for a component and waits until they are in
// force.
func (s *server) rightsOf(t *testing.T, component string, v values) {
	t.Helper()
	applied := objects{}
	for name, o := range rendered(t, v) {
		switch o.GetKind() {
		case "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
			if o.GetLabels()["app.kubernetes.io/component"] == component {
				_, err := s.apply(t.Context(), o, false)
				require.NoError(t, err, name)
				applied[name] = o
			}
		}
	}
	require.Greater(t, len(applied), 1)
	s.bound(t, applied)
}

// heldToAnnotations checks that an account can patch the request annotations of a GatewaySync and nothing
// else.
func heldToAnnotations(t *testing.T, syncs dynamic.ResourceInterface) {
	t.Helper()
	dry := metav1.PatchOptions{FieldManager: "stoker-request", DryRun: []string{metav1.DryRunAll}}
	_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"stoker.io/requested-ref":"v2","stoker.io/requested-over":"v2@main","stoker.io/requested-ids":"{}"}}}`), dry)
	assert.NoError(t, err)
	for _, patch := range everything {
		_, err := syncs.Patch(t.Context(), "plant", types.MergePatchType, []byte(patch), dry)
		denied(t, err, "stoker-gatewaysyncs", "may patch GatewaySyncs and not update them")
	}
}

func webhookSecret(t *testing.T, p *plant, name, value string) {
	t.Helper()
	_, err := p.core.CoreV1().Secrets(p.namespace).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"token": value}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// A disabled receiver leaves no object behind, whatever its other values are.
func TestDisabledReceiver(t *testing.T) {
	t.Parallel()
	off := with(onIngress, onTLS, onNetworking, set("webhookReceiver.secrets", []any{values{"namespace": "line", "name": "stoker-webhook"}}),
		set("metrics.serviceMonitor.enabled", true), set("watchNamespaces", []any{"north"}), set("webhookReceiver.enabled", false))
	for name := range all(t, off) {
		assert.NotContains(t, name, "receiver")
	}
}

func TestReceiverOfListedNamespaces(t *testing.T) {
	t.Parallel()
	look(t, rendered(t, with(on, set("watchNamespaces", []any{"north"}))), receiver, receiverArgs, has{element: "--watch-namespace=north"})
}

// Runs the program of the image with the arguments and rights that the chart sets. It answers the check of
// helm test and accepts requests with the secret of the GatewaySync. It rejects all other requests alike.
func TestReceiverRunsWithChartRights(t *testing.T) {
	t.Parallel()
	p := policed(t)
	webhookSecret(t, p, "stoker-webhook", "S3CR3T-chart")
	_, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Patch(t.Context(), "plant", types.MergePatchType,
		[]byte(`{"spec":{"webhook":{"secretRef":{"name":"stoker-webhook","key":"token"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	v := with(on, set("webhookReceiver.secrets", []any{values{"namespace": p.namespace, "name": "stoker-webhook"}}))
	p.rightsOf(t, "receiver", v)
	who := p.As(t, namespace, "stoker-receiver", "")

	all := pods(t, v)
	arguments := append(all[receiver].Spec.Containers[0].Args, "--kubeconfig="+kubetest.KubeconfigFor(t, who, ""),
		"--webhook-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0")
	cmd := exec.Command(shipped(t, "receiver"), arguments...)
	cmd.Env = []string{"POD_NAMESPACE=" + namespace}
	process := program.Start(t, "receiver", cmd)
	require.Eventually(t, func() bool {
		health := process.Log.Address("health-addr")
		if health == "" {
			return false
		}
		response, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			return false
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}, eventually, pause)
	address := "http://" + process.Log.Address("webhook-addr")

	check := all[receiverCheck].Spec.Containers[0].Args
	require.Equal(t, "--url=http://stoker-receiver.stoker-system.svc:9444", check[1])
	said, err := exec.CommandContext(t.Context(), shipped(t, "receiver"), check[0], "--url="+address).CombinedOutput()
	require.NoError(t, err, "%s", said)

	post := func(name, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/webhook/"+p.namespace+"/"+name, bytes.NewBufferString(`{"ref":"v2"}`))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	assert.Equal(t, http.StatusUnauthorized, post("plant", "guess"))
	assert.Equal(t, http.StatusUnauthorized, post("nobody", "S3CR3T-chart"))
	require.Equal(t, http.StatusAccepted, post("plant", "S3CR3T-chart"))
	live, err := p.as(t, p.RESTConfig(), "gatewaysyncs").Get(t.Context(), "plant", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "v2", live.GetAnnotations()["stoker.io/requested-ref"])
	ref, _ := at(live.Object, "spec/git/ref")
	assert.Equal(t, "main", ref)

	began := time.Now()
	require.NoError(t, process.End(t, syscall.SIGTERM))
	grace := time.Duration(*all[receiver].Spec.TerminationGracePeriodSeconds)*time.Second - time.Duration(all[receiver].Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds)*time.Second
	assert.Less(t, time.Since(began), grace)
	assert.NotContains(t, process.Log.String(), "S3CR3T")
}
