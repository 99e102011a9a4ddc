package main

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/hooks/daemons"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/notify"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

// broken is the status of a GatewaySync whose only gateway cannot run the commit.
const broken = `{observedGeneration: 1, gatewaysReady: 0/1, target: {ref: main, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa},
conditions: [{type: Ready, status: "False", reason: TemplateFailed, message: "line-1: no such field", lastTransitionTime: "2026-01-01T00:00:00Z"}],
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Error, reason: TemplateFailed, message: no such field}]}`

// repaired has what changes in the status broken once the gateway runs the commit.
const repaired = `{gatewaysReady: 1/1, conditions: [{type: Ready, status: "True", reason: Synced, message: "1 of 1 gateways runs aaaaaaa", lastTransitionTime: "2026-01-01T00:00:00Z"}],
discoveredGateways: [{name: line-1, podName: line-1-0, syncStatus: Synced, reason: Synced, syncedCommit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, message: ""}]}`

// Two replicas with the rights that kustomize and the chart give them, on a real API server. The first one reports that problems began
// and is stopped. The second one reports that they ended, and repeats nothing.
func TestNotifyTakesOver(t *testing.T) {
	t.Parallel()
	messages, configMessages := make(chan string, 100), make(chan string, 100)
	slack := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if strings.HasSuffix(r.URL.Path, "/configs") {
			configMessages <- string(body)
		} else {
			messages <- string(body)
		}
	}))
	defer slack.Close()

	cluster := kubetest.Control(t)
	namespace := cluster.Namespace(t)
	const own = "stoker-system"
	cluster.ApplyYAML(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+own+"}\n")
	cluster.ApplyYAML(t, "", kubetest.Shipped(t, "../kustomize/components/notifier", "ServiceAccount/*", "*Role*/*"))
	cluster.ApplyYAML(t, "", strings.ReplaceAll(kubetest.Shipped(t, "../kustomize/components/notifier-secrets", "*/*"), "ignition", namespace))
	cluster.ApplyYAML(t, namespace, `
apiVersion: v1
kind: Secret
metadata: {name: stoker-alerts}
stringData: {url: "`+slack.URL+`/S3CR3T", configs: "`+slack.URL+`/S3CR3T/configs"}
---
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: site}
spec: {source: {git: {repoURL: "https://git.example.com/plant.git", path: objects}}}
---
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec:
  git: {repo: "https://git.example.com/plant.git", ref: main}
  alerting:
    enabled: true
    webhooks:
      - {type: slack, urlSecretRef: {name: stoker-alerts, key: url}}
      - {type: slack, urlSecretRef: {name: stoker-alerts, key: configs}, topics: [ConfigSyncNotReady]}
`)
	client, err := dynamic.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	setOutcome := func(phase v1alpha1.OutcomePhase, reason v1alpha1.Reason, message string) {
		t.Helper()
		cs, err := kube.ConfigSyncs(client, namespace).Get(t.Context(), "site")
		require.NoError(t, err)
		cs.Status = v1alpha1.ConfigSyncStatus{ObservedGeneration: cs.Generation, ObservedRequest: desiredref.Key(cs), Outcome: &v1alpha1.Outcome{Phase: phase, Reason: reason, Message: message}}
		_, err = kube.ConfigSyncs(client, namespace).Update(t.Context(), cs, metav1.UpdateOptions{}, "status")
		require.NoError(t, err)
	}
	cluster.WaitAllowed(t, own, "stoker-notifier", authorizationv1.ResourceAttributes{Verb: "watch", Group: "stoker.io", Resource: "configsyncs"})
	cluster.WaitAllowed(t, own, "stoker-notifier", authorizationv1.ResourceAttributes{Verb: "watch", Group: "stoker.io", Resource: "gatewaysyncs"})
	cluster.WaitAllowed(t, own, "stoker-notifier", authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "secrets", Name: "stoker-alerts"})

	var log program.Log
	start := func() (stop func()) {
		clients, err := kube.ConnectTo(cluster.As(t, own, "stoker-notifier", ""), "test")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		s := daemon.Settings{HealthAddr: "127.0.0.1:0", MetricsAddr: "127.0.0.1:0", LogFormat: "json", LogLevel: "info", WatchNamespace: daemon.Texts{namespace}}
		go func() {
			defer close(ended)
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: slack.Certificate().Raw})
			assert.NoError(t, daemons.Notify(ctx, daemons.Cluster{Clients: clients, Namespace: own}, notify.Config{Client: httpclient.Client{CA: ca, Loopback: true}, Settle: time.Second, Cluster: "north", Page: "https://grafana.example.com/d/{namespace}", Log: daemon.Log(&log, "json", "info")}, s))
		}()
		return func() { cancel(); <-ended }
	}
	received := func(messages <-chan string) string {
		t.Helper()
		select {
		case m := <-messages:
			return m
		case <-time.After(3 * time.Minute):
			require.Fail(t, "no message was sent", log.String())
			return ""
		}
	}
	stopFirst := start()
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", broken))
	setOutcome(v1alpha1.OutcomeFailed, v1alpha1.ReasonManifestInvalid, "site.yaml: line 3: unexpected end")
	assert.JSONEq(t, "{\"text\": \":red_circle: `north "+namespace+"/line` *NotReady firing*: `TemplateFailed: line-1 (pod line-1-0): no such field` next: `the gateways keep what they run; fix the template in git` <https://grafana.example.com/d/"+namespace+"|page>\"}", received(messages))
	assert.JSONEq(t, "{\"text\": \":red_circle: `north "+namespace+"/line` *ConfigSyncNotReady firing*: `ConfigSync site: ManifestInvalid: site.yaml: line 3: unexpected end` next: `stoker config status site --namespace "+namespace+"` <https://grafana.example.com/d/"+namespace+"|page>\"}", received(configMessages))
	stopSecond := start()
	stopFirst()
	require.NoError(t, lead(t.Context(), cluster, namespace, "line", repaired))
	setOutcome(v1alpha1.OutcomeSucceeded, v1alpha1.ReasonSynced, "6 objects of aaaaaaa are applied")
	assert.Contains(t, received(messages), "*NotReady resolved*: `it has ended after ")
	assert.Contains(t, received(configMessages), "*ConfigSyncNotReady resolved*: `ConfigSync site: it has ended after ")
	stopSecond()
	assert.Zero(t, len(messages)+len(configMessages), "each message must be sent once")
	assert.NotContains(t, log.String(), "S3CR3T")
	assert.Equal(t, 4, strings.Count(log.String(), `"msg":"notification sent"`), log.String())
}

// Each documented command that runs until it is stopped becomes the replica that acts, and exits with 0. The tests of internal/configsync check
// what such a replica does.
func TestDaemonCommands(t *testing.T) {
	t.Parallel()
	lines := document.Open(t)
	cluster := kubetest.Objects(t)
	for c := range lines.Of("docs/reference/cli.md") {
		t.Run(c.Text, func(t *testing.T) {
			var out, talk program.Log
			ctx, stop := context.WithCancel(t.Context())
			code := make(chan int, 1)
			args := append(strings.Fields(c.Text)[1:], "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--kubeconfig", cluster.Kubeconfig(), "-n", cluster.Namespace(t))
			go func() { code <- newCLI(&out, &talk).run(ctx, "stoker", args) }()
			require.Eventually(t, func() bool {
				return strings.Contains(talk.String(), "this replica applies ConfigSyncs") || strings.Contains(talk.String(), "this replica sends notifications")
			}, time.Minute, 10*time.Millisecond, "%s", &talk)
			stop()
			select {
			case got := <-code:
				assert.Equal(t, exit.Done, got, talk.String())
			case <-time.After(time.Minute):
				require.Fail(t, "the command did not end", talk.String())
			}
		})
	}
}

func TestDaemonUsage(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"config run plant":                      "too many arguments",
		"config run --watch-namespace=Line":     `--watch-namespace: "Line" is not a valid namespace name`,
		"config run --log-level=loud":           "--log-level",
		"notify --page-url=javascript:alert(1)": "the address of the page must begin with https://",
		"notify --cluster=a\nb":                 "the name of the cluster must have at most 63 printable characters",
		"notify --settle=-1s":                   "--settle must not be negative",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			var out, talk program.Log
			assert.Equal(t, exit.Usage, newCLI(&out, &talk).run(t.Context(), "stoker", strings.Split(command, " ")))
			assert.Contains(t, talk.String(), want)
		})
	}
}
