package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/program"
	"stoker.io/stoker/test/reference"
)

// The test runs the commands of the page unchanged and in order, except for the address of the receiver's Service.
func TestWebhookPageCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl on this machine")
	}
	page, err := os.ReadFile("../docs/how-to/webhooks.md")
	require.NoError(t, err)
	script := []string{"set -eu"}
	for typed := range strings.Lines(string(page)) {
		for _, command := range []string{"TOKEN=", "kubectl ", "curl "} {
			if line := strings.TrimSpace(typed); strings.HasPrefix(typed, "    ") && strings.HasPrefix(line, command) {
				script = append(script, line)
			}
		}
	}
	require.Len(t, script, 1+5+4) // set -eu, the lines of TOKEN and kubectl, and those of curl

	cluster := kubetest.Control(t)
	install(t, cluster)
	cluster.ApplyYAML(t, "", "apiVersion: v1\nkind: Namespace\nmetadata: {name: plant}\n")
	cluster.ApplyYAML(t, "plant", `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant/line.git", ref: main}, webhook: {secretRef: {name: stoker-webhook, key: token}}}
`)
	r := start(t, cluster)
	kubectl, _ := kubetest.Kubectl(t)
	path, home := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(kubectl, filepath.Join(path, "kubectl")))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".curlrc"), []byte("silent\nshow-error\nfail-with-body\nretry = 30\nretry-delay = 1\nretry-all-errors\nconnect-to = \"stoker-receiver.stoker-system.svc:9444:"+
		strings.TrimPrefix(r.url, "http://")+"\"\n"), 0o600))
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.Join(script, "\n"))
	cmd.Env = []string{"PATH=" + path + ":" + os.Getenv("PATH"), "KUBECONFIG=" + cluster.Kubeconfig(), "HOME=" + home}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, r.Log)
	for _, want := range []string{"secret/stoker-webhook created", "rolebinding.rbac.authorization.k8s.io/stoker-receiver-secrets-stoker-webhook created",
		`"result":"accepted","ref":"v2.4.0"`, `"phase":"Progressing","ref":"v2.4.0"`, `"result":"withdrawn","ref":"main"`} {
		assert.Contains(t, string(out), want)
	}
	assert.Equal(t, 2, strings.Count(string(out), `"result":"accepted"`), "%s", out)
	admin, err := kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	gs, err := kube.GatewaySyncs(admin.Dynamic, "plant").Get(t.Context(), "line")
	require.NoError(t, err)
	assert.NotContains(t, gs.Annotations, v1alpha1.AnnotationRequestedRef, "the page ends with the withdrawal")
}

// certificate creates a certificate for 127.0.0.1, with the file names of a Secret of cert-manager.
func certificate(t *testing.T, dir string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}

func TestServesTLS(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := line(t, cluster)
	dir := t.TempDir()
	certificate(t, dir)
	r := start(t, cluster, "--tls-dir="+dir)
	url := strings.Replace(r.url, "http://", "https://", 1)
	var out, errs bytes.Buffer
	require.Equal(t, daemon.ExitDone, run(t.Context(), []string{"check", "--url=" + url, "--tls-ca-file=" + filepath.Join(dir, "tls.crt")}, noEnv, &out, &errs), errs.String())
	assert.Equal(t, url+": a receiver answers, and rejects a request without a secret\n", out.String())
	client, err := checkClient(filepath.Join(dir, "tls.crt"))
	require.NoError(t, err)
	client.Timeout = time.Minute // other tests share the machine
	res, err := client.Do(pushRequest(url+"/webhook/"+namespace+"/line", "https://git.example.com/plant/line", webhookSecret, "d"))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	assert.Equal(t, http.StatusAccepted, res.StatusCode)
	assert.Equal(t, "HTTP/1.1", res.Proto, "HTTP/2 must be off")

	// The check must reject other servers.
	plain := start(t, cluster)
	require.NoError(t, checkOnce(t.Context(), client, plain.url+"/webhook/stoker-check/stoker-check"))
	assert.ErrorContains(t, checkOnce(t.Context(), client, plain.health+"/healthz"), "405")
	unknown, err := checkClient(filepath.Join(dir, "nowhere"))
	require.NoError(t, err, "a missing file of the authority must not be an error")
	unknown.Timeout = time.Minute
	assert.ErrorContains(t, checkOnce(t.Context(), unknown, url+"/webhook/stoker-check/stoker-check"), "certificate")
	_, err = checkClient(filepath.Join(dir, "tls.key"))
	assert.ErrorContains(t, err, "contains no certificate")
}

func noEnv(string) string { return "" }

func someEnv(string) string { return "x" }

func TestCommandLineErrors(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"--log-level=loud", "--log-format=xml", "--watch-namespace=A", "--watch-label-selector=a=b=c", "extra"}, noEnv, &out)
	require.ErrorIs(t, err, daemon.ErrUsage)
	for _, want := range []string{"loud", "xml", `"A"`, "--watch-label-selector", `"extra"`, "POD_NAMESPACE"} {
		assert.Contains(t, out.String(), want)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--help"}, noEnv, io.Discard, &out))
	assert.Contains(t, out.String(), "receiver turns HTTP calls of git hosts, Argo CD, Kargo and scripts into requests to GatewaySyncs and ConfigSyncs.")
	assert.Contains(t, out.String(), "-webhook-addr")
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"--version"}, noEnv, &out, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--nonsense"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"--install-secret-file="}, someEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"check"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitUsage, run(t.Context(), []string{"check", "--url=ftp://x"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitDone, run(t.Context(), []string{"check", "--help"}, noEnv, io.Discard, io.Discard))
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--kubeconfig=/nowhere"}, someEnv, io.Discard, io.Discard))
	out = bytes.Buffer{}
	assert.Equal(t, daemon.ExitFailed, run(t.Context(), []string{"--install-secret-file=/nowhere"}, someEnv, io.Discard, &out))
	assert.Equal(t, "receiver: --install-secret-file: open /nowhere: no such file or directory\n", out.String())
}

func TestReferenceOfFlagsAndMetrics(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/receiver.md", s.flags(io.Discard))
	reg := prometheus.NewRegistry()
	metrics.NewReceiver(reg, "v")
	reference.Metrics(t, "../docs/reference/receiver.md", reg)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestShippedDeployment(t *testing.T) {
	deployment := &appsv1.Deployment{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(kubetest.Shipped(t, "../kustomize/components/receiver", "Deployment/*")), deployment))
	c := deployment.Spec.Template.Spec.Containers[0]
	env := func(name string) string {
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			return "x"
		}
		return ""
	}
	s, err := parse(c.Args, env, io.Discard)
	require.NoError(t, err)
	for _, p := range c.Ports {
		addr := map[string]string{"webhook": s.WebhookAddr, "health": s.HealthAddr, "metrics": s.MetricsAddr}[p.Name]
		_, port, _ := strings.Cut(addr, ":")
		assert.Equal(t, strconv.Itoa(int(p.ContainerPort)), port, p.Name)
	}
	assert.Greater(t, *deployment.Spec.Template.Spec.TerminationGracePeriodSeconds, int64(drainTimeout.Seconds()))
}

// maxBinary is a ceiling, not a goal. Most of the size is client-go.
const maxBinary = 36 << 20

func TestReleaseBinarySize(t *testing.T) { program.Small(t, "receiver", maxBinary) }

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
