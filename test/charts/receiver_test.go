package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// The values of the table change only the namespaces and the timeout of the webhook configuration. All other fields are those of the default values.
// kustomize/base has these, too, and the injector's tests run them against an API server.
func TestWebhookConfigurationValues(t *testing.T) {
	t.Parallel()
	outside := []any{"kube-system", namespace}
	expr := func(key, operator string, list ...any) any {
		return map[string]any{"key": key, "operator": operator, "values": list}
	}
	system, notDisabled := expr("kubernetes.io/metadata.name", "NotIn", outside...), expr("stoker.io/injection", "NotIn", "disabled")
	enabled := expr("stoker.io/injection", "In", "enabled")
	for name, c := range map[string]struct {
		values     values
		namespaces []any
		timeout    int64
	}{
		"defaults":                   {nil, []any{system, notDisabled}, 2},
		"required label":             {set("webhook.namespaceSelector.requireLabel", true), []any{system, enabled}, 2},
		"watched namespaces":         {set("watchNamespaces", []any{"north", "south"}), []any{system, expr("kubernetes.io/metadata.name", "In", "north", "south"), notDisabled}, 2},
		"timeout":                    {set("webhook.timeoutSeconds", 7), []any{system, notDisabled}, 7},
		"required label and timeout": {with(set("webhook.namespaceSelector.requireLabel", true), set("webhook.timeoutSeconds", 7)), []any{system, enabled}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			entries := func(v values) []any { return rendered(t, v)[webhooks].Object["webhooks"].([]any) }
			got, want := entries(c.values), entries(nil)
			require.Len(t, got, 2)
			for i := range got {
				entry, base := maps.Clone(got[i].(map[string]any)), maps.Clone(want[i].(map[string]any)) // rendered objects are cached
				assert.Equal(t, map[string]any{"matchExpressions": c.namespaces}, entry["namespaceSelector"])
				assert.EqualValues(t, c.timeout, entry["timeoutSeconds"])
				for _, field := range []string{"namespaceSelector", "timeoutSeconds"} {
					delete(entry, field)
					delete(base, field)
				}
				assert.Equal(t, base, entry)
			}
		})
	}
}

// exits runs a program of the project and returns its exit code and output.
func exits(t *testing.T, part string, arguments ...string) (int, string) {
	t.Helper()
	program := shipped(t, part) // build first: a build may take longer than the timeout
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env, cmd.Stderr = []string{"POD_NAME=" + part, "POD_NAMESPACE=" + namespace}, &said
	_ = cmd.Run() // the exit code is checked below
	return cmd.ProcessState.ExitCode(), said.String()
}

// Each program parses the arguments that the chart passes. It exits with code 2 before it does anything
// else if it does not know a flag or rejects a value.
func TestProgramArguments(t *testing.T) {
	t.Parallel()
	missing, mounted := filepath.Join(t.TempDir(), "none"), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(mounted, "install-secret"), 0o700))
	for _, key := range []string{"secret", "token"} {
		require.NoError(t, os.WriteFile(filepath.Join(mounted, "install-secret", key), []byte("a secret of some length"), 0o600))
	}
	tried := map[string]int{}
	for _, c := range valueCases {
		for name, p := range pods(t, c.values()) {
			one := p.Spec.Containers[0]
			part, ends := "injector", "find the API server"
			switch {
			case strings.Contains(name, "receiver"):
				part = "receiver"
			case name == notifier, name == configSync:
				part, ends = "stoker", "load the kubeconfig"
			}
			arguments := slices.Clone(one.Args)
			if name == receiverCheck {
				continue // covered by TestReceiverRunsWithChartRights
			}
			image := p.Annotations["stoker.io/image-of-agents"] // the kubelet substitutes it
			for i, a := range arguments {
				arguments[i] = strings.NewReplacer("=/etc/stoker/install-secret", "="+mounted+"/install-secret", "$(AGENT_IMAGE)", image).Replace(a)
			}
			arguments = append(arguments, "--kubeconfig="+missing)
			if name == "CronJob/stoker-system/stoker-certificate" {
				assert.Equal(t, []string{"renew"}, one.Args)
			}
			if key := part + strings.Join(arguments, "\x00"); tried[key] == 0 {
				tried[key]++
				code, said := exits(t, part, arguments...)
				assert.Equal(t, 1, code, "%s with %s: %s", name, c.path, said)
				assert.Contains(t, said, ends, "%s with %s: without a cluster, the program must fail only after the arguments are parsed", name, c.path)
			}
		}
	}
	assert.Greater(t, len(tried), 20)
}

func TestReceiverDefaultsMatchChart(t *testing.T) {
	t.Parallel()
	code, said := exits(t, "receiver", "--nobody-knows=this")
	assert.Equal(t, 2, code, said)
	_, help := exits(t, "receiver", "--help")
	defaults(t, help, map[string]string{"webhook-addr": ":9444", "health-addr": ":8082", "metrics-addr": ":8083"})
}

// defaults checks the default values of flags in the help of a program.
func defaults(t *testing.T, help string, of map[string]string) {
	t.Helper()
	for flag, value := range of {
		_, after, found := strings.Cut(help, "-"+flag+" ")
		require.True(t, found, flag)
		usage, _, _ := strings.Cut(after, "\n  -")
		assert.Contains(t, usage, `(default "`+value+`")`, "the chart relies on this default")
	}
}

func TestInjectorDefaultsMatchChart(t *testing.T) {
	t.Parallel()
	code, said := exits(t, "injector", "--agent-image=x:1", "--nobody-knows=this")
	assert.Equal(t, 2, code, said)
	_, help := exits(t, "injector", "--help")
	defaults(t, help, map[string]string{
		"webhook-addr": ":9443", "health-addr": ":8082", "metrics-addr": ":8083", "certificate-dir": "/etc/stoker/tls",
	})
	_, after, _ := strings.Cut(help, "-agent-resources ")
	usage, _, _ := strings.Cut(after, "\n  -")
	_, standard, found := strings.Cut(usage, `(default "`)
	require.True(t, found)
	standard, _, _ = strings.Cut(standard, `")`)
	assert.JSONEq(t, strings.ReplaceAll(standard, `\"`, `"`), mustJSON(t, theChart(t).Values["agentResources"]), "chart and injector must have the same default")
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
