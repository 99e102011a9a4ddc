package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

const (
	ownSecret     = "S3CR3T-own-of-plant"
	installSecret = "S3CR3T-of-the-installation"
	liveness      = 60 * time.Second // how long a test waits for what must happen
)

// rights holds two Secrets, and the permissions of the chart: GatewaySyncs, ConfigSyncs and SyncTargets of the namespace, and one of the Secrets.
const rights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: stoker-receiver}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: stoker-receiver}
rules:
- {apiGroups: [stoker.io], resources: [gatewaysyncs, configsyncs], verbs: [get, list, watch, patch]}
- {apiGroups: [stoker.io], resources: [synctargets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: stoker-receiver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: stoker-receiver}
subjects: [{kind: ServiceAccount, name: stoker-receiver}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: stoker-receiver-secrets}
rules:
- {apiGroups: [""], resources: [secrets], resourceNames: [webhook], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: stoker-receiver-secrets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: stoker-receiver-secrets}
subjects: [{kind: ServiceAccount, name: stoker-receiver}]
---
apiVersion: v1
kind: Secret
metadata: {name: webhook}
stringData: {secret: "` + ownSecret + `", both: "S3CR3T-new\nS3CR3T-old\n", empty: " \n", forbidden: x}
---
apiVersion: v1
kind: Secret
metadata: {name: ungranted}
stringData: {secret: "S3CR3T-ungranted"}
`

// plant follows a branch and has its own secret.
const plant = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec:
  git: {repo: "git@git.example.com:acme/plant.git", ref: main}
  webhook: {secretRef: {name: webhook, key: secret}}
`

// world is a receiver with an API server. On a real one, it has only the permissions of the chart; the one of go test -short has no permissions.
type world struct {
	*testing.T
	cluster *kubetest.Cluster
	ns      string
	admin   kube.Clients
	url     string
	labels  string                                    // label selector of the replica
	more    []string                                  // additional namespaces of the replica
	wrap    func(http.RoundTripper) http.RoundTripper // wraps the transport to the API server
	log     *program.Log
	reg     *prometheus.Registry
	server  *Server
}

// newWorld creates the GatewaySyncs and ConfigSyncs in objects, and a receiver that has seen them.
func newWorld(t *testing.T, objects string) *world {
	t.Helper()
	w := &world{T: t, cluster: kubetest.Objects(t)}
	w.ns = w.cluster.Namespace(t)
	w.cluster.ApplyYAML(t, w.ns, rights)
	// Without this wait, the receiver may find that it cannot read the Secret, and it retries only after a second.
	w.cluster.WaitAllowed(t, w.ns, "stoker-receiver", authorizationv1.ResourceAttributes{Namespace: w.ns, Group: "stoker.io", Resource: "gatewaysyncs", Verb: "patch"})
	w.cluster.WaitAllowed(t, w.ns, "stoker-receiver", authorizationv1.ResourceAttributes{Namespace: w.ns, Resource: "secrets", Name: "webhook", Verb: "get"})
	w.cluster.ApplyYAML(t, w.ns, objects)
	var err error
	w.admin, err = kube.ConnectTo(w.cluster.RESTConfig(), "test")
	require.NoError(t, err)
	w.start()
	return w
}

// before makes the receiver call do before each request to the API server. An error of do is the answer.
func (w *world) before(do func(*http.Request) error) {
	w.wrap = func(rt http.RoundTripper) http.RoundTripper { return transport{rt, do} }
}

type transport struct {
	http.RoundTripper
	before func(*http.Request) error
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.before(r); err != nil {
		return nil, err
	}
	return t.RoundTripper.RoundTrip(r)
}

// start starts another replica. Later requests go to this replica.
func (w *world) start() {
	w.Helper()
	config := w.cluster.As(w.T, w.ns, "stoker-receiver", "")
	if w.wrap != nil {
		config.Wrap(w.wrap)
	}
	clients, err := kube.ConnectTo(config, "stoker-receiver/test")
	require.NoError(w, err)
	selector, err := labels.Parse(w.labels)
	require.NoError(w, err)
	w.log, w.reg = &program.Log{}, prometheus.NewRegistry()
	w.server, err = New(Config{Clients: clients, Namespace: "stoker-system", Watch: append([]string{w.ns, w.ns}, w.more...), Selector: selector,
		Install: func() []secret.String { return []secret.String{secret.New(installSecret)} },
		Metrics: metrics.NewReceiver(w.reg, "test"), Log: slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.NoError(w, err)
	ctx, stop := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- w.server.Run(ctx) }()
	front := httptest.NewServer(w.server.Routes())
	w.url = front.URL
	server := w.server
	w.Cleanup(func() {
		front.Close()
		stop()
		require.NoError(w, <-done)
		server.Close()
	})
	require.Eventually(w, w.server.Ready, liveness, 5*time.Millisecond, "the receiver did not become ready: %s", w.log)
}

// said is an answer of the receiver.
type said struct {
	Code   int
	A      answer
	S      Status
	Header http.Header
	Raw    string
}

// send sends a request after mods have changed it.
func (w *world) send(method, path, body string, mods ...func(*http.Request)) said {
	w.Helper()
	return w.sendTo(w.url, method, path, body, mods...)
}

// sendTo sends a request to one of several replicas.
func (w *world) sendTo(url, method, path, body string, mods ...func(*http.Request)) said {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, url+path, strings.NewReader(body))
	require.NoError(w, err)
	for _, m := range mods {
		m(req)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(w, err)
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	require.NoError(w, err)
	got := said{Code: res.StatusCode, Header: res.Header, Raw: string(raw)}
	require.Equal(w, "application/json", res.Header.Get("Content-Type"), "%s", raw)
	require.NoError(w, json.Unmarshal(raw, &got.A))
	require.NoError(w, json.Unmarshal(raw, &got.S))
	return got
}

func (w *world) post(name, body string, mods ...func(*http.Request)) said {
	w.Helper()
	return w.send(http.MethodPost, "/webhook/"+w.ns+"/"+name, body, mods...)
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// signed signs a body as GitHub does.
func signed(key, body string) func(*http.Request) {
	return header("X-Hub-Signature-256", signature(key, body))
}

func signature(key, body string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(h.Sum(nil))
}

// gitHub turns a request into a signed push of GitHub.
func gitHub(key, id, body string) func(*http.Request) {
	return func(r *http.Request) {
		signed(key, body)(r)
		r.Header.Set("X-Github-Event", "push")
		r.Header.Set("X-Github-Delivery", id)
	}
}

func push(ref string) string {
	return `{"ref":"` + ref + `","after":"1111111111111111111111111111111111111111","deleted":false,"repository":{"clone_url":"https://git.example.com/acme/plant.git"}}`
}

func (w *world) gs(name string) *v1alpha1.GatewaySync {
	w.Helper()
	gs, err := kube.GatewaySyncs(w.admin.Dynamic, w.ns).Get(w.Context(), name)
	require.NoError(w, err)
	return gs
}

func (w *world) desired(name string) desiredref.Desired {
	w.Helper()
	d, err := desiredref.Of(w.gs(name), "")
	require.NoError(w, err)
	return d
}

// lead changes the status as the lead does.
func (w *world) lead(name string, change func(*v1alpha1.GatewaySync)) {
	w.Helper()
	gs := w.gs(name)
	change(gs)
	gs.Status.ConfirmedAt = &metav1.Time{Time: time.Now()}
	statustest.Complete(gs)
	w.locks(name)
	data, err := json.Marshal(map[string]any{"status": gs.Status})
	require.NoError(w, err)
	_, err = kube.GatewaySyncs(w.admin.Dynamic, w.ns).Patch(w.Context(), name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "stoker-lead"}, "status")
	require.NoError(w, err)
}

// locks renews the lock of the lead.
func (w *world) locks(name string) {
	w.Helper()
	targets := kube.SyncTargets(w.admin.Dynamic, w.ns)
	t := &v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}}
	t.Name, t.Namespace = name, w.ns
	t.Spec.Lead = v1alpha1.LeadRecord{Holder: "gw-0_1", DurationSeconds: 60, Renewed: &metav1.MicroTime{Time: time.Now()}}
	if _, err := targets.Create(w.Context(), t, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		require.NoError(w, err)
		return
	}
	is, err := targets.Get(w.Context(), name)
	require.NoError(w, err)
	is.Spec.Lead = t.Spec.Lead
	_, err = targets.Update(w.Context(), is, metav1.UpdateOptions{})
	require.NoError(w, err)
}

// sees waits until the receiver has seen the current GatewaySync.
func (w *world) sees(name string) {
	w.Helper()
	want := w.gs(name).ResourceVersion
	require.Eventually(w, func() bool {
		gs := w.server.find.Get(kube.GatewaySync, w.ns, name)
		return gs != nil && gs.GetResourceVersion() == want
	}, liveness, 5*time.Millisecond)
}

// counted returns the value of the counter with these label values, in any order.
func (w *world) counted(name string, labels ...string) float64 {
	w.Helper()
	families, err := w.reg.Gather()
	require.NoError(w, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			slices.Sort(values)
			want := slices.Sorted(slices.Values(labels))
			if f.GetName() == name && slices.Equal(values, want) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
