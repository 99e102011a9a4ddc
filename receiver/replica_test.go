package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) { plant.Main(m) }

// system is the namespace of the manifests in kustomize/.
const system = "stoker-system"

const webhookSecret = "S3CR3T-of-line"

// replica is a receiver process with only the shipped permissions.
type replica struct {
	t *testing.T
	*program.Process
	url, health, metrics string
}

// install grants the receiver its permissions.
func install(t *testing.T, cluster *kubetest.Cluster) {
	t.Helper()
	cluster.ApplyYAML(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n")
	cluster.ApplyYAML(t, "", kubetest.Shipped(t, "../kustomize/components/receiver", "ServiceAccount/*", "ClusterRole*/*"))
	cluster.WaitAllowed(t, system, "stoker-receiver", authorizationv1.ResourceAttributes{Group: "stoker.io", Resource: "gatewaysyncs", Verb: "patch"})
}

// grant creates the Secret of a namespace and grants the receiver read access.
func grant(t *testing.T, cluster *kubetest.Cluster, namespace string) {
	t.Helper()
	cluster.ApplyYAML(t, "", strings.ReplaceAll(kubetest.Shipped(t, "../kustomize/components/receiver-secrets", "*/*"), "ignition", namespace))
	cluster.WaitAllowed(t, system, "stoker-receiver", authorizationv1.ResourceAttributes{Namespace: namespace, Resource: "secrets", Name: "stoker-webhook", Verb: "get"})
	_, err := cluster.Client(t).CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "stoker-webhook"},
		StringData: map[string]string{"secret": webhookSecret}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func start(t *testing.T, cluster *kubetest.Cluster, args ...string) *replica {
	t.Helper()
	file := kubetest.KubeconfigFor(t, cluster.As(t, system, "stoker-receiver", ""), "")
	cmd := exec.Command(program.Build(t, "receiver"), append([]string{"--kubeconfig", file, "--webhook-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "POD_NAMESPACE="+system)
	r := &replica{t: t, Process: program.Start(t, "receiver", cmd)}
	require.Eventually(t, func() bool { return r.Log.Address("metrics-addr") != "" }, plant.Liveness, 5*time.Millisecond, "%s", r.Log)
	r.url, r.health, r.metrics = "http://"+r.Log.Address("webhook-addr"), "http://"+r.Log.Address("health-addr"), "http://"+r.Log.Address("metrics-addr")
	require.Eventually(t, func() bool { return r.code(r.health+"/readyz") == http.StatusOK }, plant.Liveness, 10*time.Millisecond, "%s", r.Log)
	return r
}

// code requests a page over a new connection and returns the status code.
func (r *replica) code(url string) int {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body) // only the status code matters
	return res.StatusCode
}

// memory returns the memory of the receiver in bytes: now is its anonymous memory, and peak its highest resident set without
// the file and shared-memory pages of this moment. Those are pages of the executable, which may lie on a tmpfs such as
// /dev/shm.
func (r *replica) memory() (now, peak int) {
	r.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
	require.NoError(r.t, err)
	var peakRSS, fileBacked, shmem int
	for line := range strings.Lines(string(status)) {
		for name, into := range map[string]*int{"RssAnon:": &now, "VmHWM:": &peakRSS, "RssFile:": &fileBacked, "RssShmem:": &shmem} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				kib, err := strconv.Atoi(strings.Fields(rest)[0])
				require.NoError(r.t, err)
				*into = kib << 10
			}
		}
	}
	return now, peakRSS - fileBacked - shmem
}

// pushRequest returns a signed push of GitHub to a branch.
func pushRequest(url, repository, key, id string) *http.Request {
	return paddedPushRequest(url, repository, key, id, "")
}

// paddedPushRequest returns a signed push with the given text as padding.
func paddedPushRequest(url, repository, key, id, padding string) *http.Request {
	body := `{"padding":"` + padding + `","ref":"refs/heads/main","after":"1111111111111111111111111111111111111111","repository":{"clone_url":"` + repository + `"}}`
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(body))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(h.Sum(nil)))
	req.Header.Set("X-Github-Event", "push")
	req.Header.Set("X-Github-Delivery", id)
	return req
}

// onlyByWebhook makes a GatewaySync depend on the receiver for new commits.
func onlyByWebhook(gs *v1alpha1.GatewaySync) {
	no := false
	gs.Spec.Polling.Enabled = &no
	gs.Spec.Webhook.SecretRef = &v1alpha1.SecretKeyRef{Name: "stoker-webhook", Key: "secret"}
}
