// Package prometheus tests the alerts and dashboards with the code of Prometheus. It evaluates every expression on samples that it
// scraped from a real fleet, which it breaks and fixes. The scrapes are not kept: each run makes its own.
package prometheus

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/pki"
	"stoker.io/stoker/test/fleet/plant"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

const webhookToken = "S3CR3T-0123456789abcdef0123456789abcdef"

// fleet is a plant of two gateways, an injector, a receiver and stoker config run, each a process of its own.
type fleet struct {
	*plant.Plant
	t                           *testing.T
	injector, receiver, configs *program.Process
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t}
	f.Plant = plant.New(t, 2, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Defaults.SyncPeriod = new(int32(5))
		gs.Spec.Sync.Defaults.DesignerSessionPolicy = v1alpha1.DesignerWait
		gs.Spec.Webhook.SecretRef = &v1alpha1.SecretKeyRef{Name: "stoker-webhook", Key: "token"}
	})
	_, err := f.Kube.Core.CoreV1().Secrets(f.Namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "stoker-webhook"},
		StringData: map[string]string{"token": webhookToken}}, metav1.CreateOptions{})
	require.NoError(t, err)
	home := f.Cluster.Namespace(t)
	daemon := func(name string, args ...string) *program.Process {
		args = append(args, "--kubeconfig", f.Cluster.Kubeconfig(), "--watch-namespace", f.Namespace, "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")
		cmd := exec.Command(program.Build(t, name), args...)
		cmd.Env = []string{"POD_NAMESPACE=" + home}
		p := program.Start(t, name, cmd)
		f.Eventually(name+" listens", func() bool { return p.Log.Address("metrics-addr") != "" })
		return p
	}
	authority, err := pki.NewAuthority("test")
	require.NoError(t, err)
	pair, err := authority.Server(pki.Subject{Name: "stoker-injector"}, "localhost")
	require.NoError(t, err)
	certificates := t.TempDir()
	require.NoError(t, pair.Write(certificates, "tls"))
	f.injector = daemon("injector", "--certificate-dir", certificates, "--agent-image", "registry.example.com/agent:1", "--repair", "report", "--webhook-addr", "127.0.0.1:0")
	f.receiver = daemon("receiver", "--webhook-addr", "127.0.0.1:0")
	f.configs = daemon("hooks", "config", "run", "--namespace", home, "--log-format", "json")
	f.Start()
	f.Converges("first", f.First)
	return f
}

// scrape reads all targets that run, with the labels that the monitors of the chart give them.
func (f *fleet) scrape() scrape {
	f.t.Helper()
	var all scrape
	for _, g := range f.Gateways() {
		if !g.Agent.Ended() && g.Agent.Log.Address("metrics") != "" {
			all = append(all, f.target(g).scraped(f.t)...)
		}
	}
	for name, p := range map[string]*program.Process{"stoker-injector": f.injector, "stoker-receiver": f.receiver, "stoker-configsync": f.configs} {
		all = append(all, target{name, p.Log.Address("metrics-addr"), map[string]string{"namespace": "stoker-system", "job": name, "service": name,
			"pod": name + "-0", "container": strings.TrimPrefix(name, "stoker-"), "endpoint": "metrics"}}.scraped(f.t)...)
	}
	return all
}

func (f *fleet) target(g *plant.Gateway) target {
	return target{"stoker-agent", g.Agent.Log.Address("metrics"), map[string]string{"namespace": f.Namespace, "job": "stoker-system/stoker-agent", "pod": g.Name,
		"container": "stoker-agent", "endpoint": "stoker-metrics", "stoker_io_cr_name": f.Name}}
}

// shows waits until a sample of the metric contains all words, and returns the scrape.
func (f *fleet) shows(metric string, words ...string) scrape {
	f.t.Helper()
	var last scrape
	f.Eventually(metric+" "+strings.Join(words, " "), func() bool {
		last = f.scrape()
		for _, line := range last.values(metric) {
			there := true
			for _, w := range words {
				there = there && strings.Contains(line, w)
			}
			if there {
				return true
			}
		}
		return false
	})
	return last
}

// fix waits until all gateways run a new commit.
func (f *fleet) fix(title string) scrape {
	f.t.Helper()
	f.Converges(title, f.Push(title))
	f.shows("stoker_gatewaysync_condition", `type="Ready"`, `status="True"`, "} 1")
	return f.shows("stoker_gateways", `state="Synced"`, "} 2")
}

func (f *fleet) patch(patch string) {
	f.t.Helper()
	_, err := kube.GatewaySyncs(f.Kube.Dynamic, f.Namespace).Patch(f.t.Context(), f.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(f.t, err)
}

func (f *fleet) post(token, body string) int {
	f.t.Helper()
	url := fmt.Sprintf("http://%s/webhook/%s/%s", f.receiver.Log.Address("webhook-addr"), f.Namespace, f.Name)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(f.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(f.t, err)
	require.NoError(f.t, res.Body.Close())
	return res.StatusCode
}

// review shows the injector a pod, as the API server would.
func (f *fleet) review(pod *corev1.Pod) {
	f.t.Helper()
	raw, err := json.Marshal(pod)
	require.NoError(f.t, err)
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "1", Namespace: f.Namespace, Name: pod.Name, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
			Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}}})
	require.NoError(f.t, err)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "https://"+f.injector.Log.Address("webhook-addr")+"/mutate", bytes.NewReader(body))
	require.NoError(f.t, err)
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(f.t, err)
	require.NoError(f.t, res.Body.Close())
	require.Equal(f.t, http.StatusOK, res.StatusCode)
}

// incident is a fault of the fleet and its end.
type incident struct {
	name string
	// alerts fire while it lasts, and no others.
	alerts        []string
	before        scrape
	broken, fixed scrape
	lasts, every  time.Duration // two hours in steps of 30 s by default
	again         time.Duration // as in stage: the interval after which counters grow again; 0 for never
	settles       time.Duration // how long it takes until the alerts end; 30 minutes by default
}

// incidents breaks the fleet in one way after the other, and fixes it each time.
func (f *fleet) incidents() []incident {
	t := f.t
	one := f.Gateways()[1]
	healthy := f.shows("stoker_gateways", `state="Synced"`, "} 2")
	var all []incident
	last := healthy
	add := func(i incident) {
		i.before = last
		last = i.fixed
		all = append(all, i)
	}

	require.NoError(t, one.Simulator.SetState(simulator.Down))
	f.Push("down")
	broken := f.shows("stoker_gateways", `state="Error"`, "} 1")
	require.NoError(t, one.Simulator.SetState(simulator.Running))
	add(incident{name: "a gateway is down", alerts: []string{"StokerGatewaysBehind"}, broken: broken, fixed: f.fix("up")})

	f.Commit("broken", gitserver.Files(map[string]string{"projects/line/project.json": `{"title": `}))
	broken = f.shows("stoker_gatewaysync_condition", `type="Stalled"`, `status="True"`, "} 1")
	add(incident{name: "a commit is broken", alerts: []string{"StokerStalled"}, broken: broken, fixed: f.fix("whole")})

	f.Git.Inject(gitserver.Status(http.StatusServiceUnavailable))
	broken = f.shows("stoker_gatewaysync_condition", `type="RefResolved"`, `status="False"`, "} 1")
	f.Git.Heal()
	add(incident{name: "git is away", alerts: []string{"StokerGitFailing"}, broken: broken, fixed: f.fix("git is back")})

	// Each known cause has an alert of its own. This alert is for all others.
	unready := last.with(t, "stoker_gatewaysync_condition", func(s *sample) {
		if s.labels.Get("type") == "Ready" && s.labels.Get("status") == "True" {
			s.value = 0
		}
	})
	add(incident{name: "not ready for another reason", alerts: []string{"StokerNotReady"}, broken: unready, fixed: last, lasts: 2 * time.Hour})

	id, err := one.Simulator.Designers.Open("admin", "line")
	require.NoError(t, err)
	f.Push("waits")
	f.shows("stoker_gateways", `state="Held"`, "} 1")
	f.shows("stoker_behind_seconds", "DesignerSessionActive")
	broken = f.shows("stoker_gateways", `state="Synced"`, "} 1") // the other gateway
	require.NoError(t, one.Simulator.Designers.Close(id))
	// A fleet of a test cannot wait for four hours.
	broken = broken.with(t, "stoker_behind_seconds", func(s *sample) { s.value += 5 * 3600 })
	add(incident{name: "a Designer stays open", alerts: []string{"StokerHeldTooLong"}, broken: broken, fixed: f.fix("closed")})

	require.NoError(t, os.WriteFile(one.Path("projects/line/project.json"), []byte(`{"title": "edited", "enabled": true}`), 0o600))
	broken = f.shows("stoker_drift_files", one.Name, "} 1")
	fixed := f.fix("git wins")
	f.shows("stoker_drift_files", one.Name, "} 0")
	fixed = f.scrape()
	add(incident{name: "a user edits a file", alerts: []string{"StokerDrift"}, broken: broken, fixed: fixed})

	f.Eventually("lost+found has the user's file", func() bool { fixed = f.scrape(); return fixed.sum("stoker_lost_and_found_bytes") > 0 })
	full := fixed.with(t, "stoker_lost_and_found_limit_bytes", func(s *sample) { s.value = fixed.sum("stoker_lost_and_found_bytes") * 1.1 })
	add(incident{name: "lost+found is full", alerts: []string{"StokerLostAndFoundFull"}, broken: full, fixed: fixed})

	require.NoError(t, one.Simulator.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: http.StatusInternalServerError}))
	f.Push("not scanned")
	begins := f.shows("stoker_scan_api_duration_seconds_count", "ScanFailed")
	goesOn := f.counts(begins, "stoker_scan_api_duration_seconds_count")
	one.Simulator.Faults.Clear()
	all = append(all, incident{name: "scans fail", alerts: []string{"StokerGatewaysBehind", "StokerGatewayScanFailing"},
		before: begins, broken: goesOn,
		again: 5 * time.Minute, fixed: f.fix("scanned")})
	last = all[len(all)-1].fixed

	second := f.Push("to be rolled back")
	f.Converges("to be rolled back", second)
	before := f.scrape()
	f.patch(fmt.Sprintf(`{"metadata": {"annotations": {%q: %q, %q: %q}}}`, v1alpha1.AnnotationRequestedRef, f.First, v1alpha1.AnnotationRequestedUnless, second))
	f.Converges("first", f.First)
	broken = f.shows("stoker_rollback_triggered_total", `by="request"`, "} 1")
	f.patch(fmt.Sprintf(`{"metadata": {"annotations": {%q: null, %q: null}}}`, v1alpha1.AnnotationRequestedRef, v1alpha1.AnnotationRequestedUnless))
	f.Converges("to be rolled back", second)
	last = before
	add(incident{name: "a rollback", alerts: []string{"StokerRolledBack"}, broken: broken, fixed: f.scrape()})

	for range 4 {
		require.Equal(t, http.StatusUnauthorized, f.post("wrong", "{}"))
	}
	begins = f.shows("stoker_webhook_received_total", `result="refused"`, "} 4")
	for range 4 {
		f.post("wrong", "{}")
	}
	require.Less(t, f.post(webhookToken, `{"source": "script", "id": "1", "ref": "main"}`), 300)
	broken = f.shows("stoker_webhook_received_total", `result="refused"`, "} 8")
	last = begins
	add(incident{name: "a sender has the wrong secret", alerts: []string{"StokerReceiverRefusing"}, broken: broken, fixed: broken, settles: 2 * time.Hour})

	f.Cluster.ApplyYAML(t, f.Namespace, fmt.Sprintf(`
apiVersion: stoker.io/v1alpha1
kind: ConfigSync
metadata: {name: environment}
spec: {source: {git: {repoURL: %q, branch: main, path: kubernetes}}}`, f.Git.URL("site.git")))
	notApplied := f.shows("stoker_configsync_ready", `configsync="environment"`, "} 0") // its repository has no such folder
	require.NoError(t, kube.ConfigSyncs(f.Kube.Dynamic, f.Namespace).Delete(t.Context(), "environment", metav1.DeleteOptions{}))
	f.Eventually("the ConfigSync is gone", func() bool { return len(f.scrape().values("stoker_configsync_ready")) == 0 })
	add(incident{name: "a ConfigSync is not applied", alerts: []string{"StokerConfigSyncNotReady"}, broken: notApplied, fixed: f.scrape()})

	// This fleet has no object storage, so the samples are changed. Module storage uploads snapshots to real ones.
	unstored := last.with(t, "stoker_snapshots_not_uploaded", func(s *sample) { s.value = 2 })
	add(incident{name: "uploads fail", alerts: []string{"StokerSnapshotsNotUploaded"}, broken: unstored, fixed: last, lasts: 3 * time.Hour})

	panics := last.with(t, "stoker_webhook_panics_total", func(s *sample) { s.value++ }) // the receiver has no known way to panic
	add(incident{name: "a panic", alerts: []string{"StokerReceiverPanics"}, broken: panics, fixed: panics, settles: 2 * time.Hour})
	last = broken

	skewed := last.with(t, "stoker_build_info", func(s *sample) { // of one gateway
		if s.labels.Get("pod") == one.Name {
			s.labels = relabelled(s.labels, "version", "v9")
		}
	})
	add(incident{name: "agents of two versions", alerts: []string{"StokerAgentVersionSkew"}, broken: skewed, fixed: last, lasts: 32 * 24 * time.Hour, every: time.Hour})

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "forgotten", Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: f.Name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway", Image: "gateway", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/usr/local/bin/ignition/data"}}}},
			Volumes: []corev1.Volume{{Name: "data"}}}}
	_, err = f.Kube.Core.CoreV1().Pods(f.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	f.review(pod)
	f.shows("stoker_gateways", `state="MissingSidecar"`, "} 1")
	broken = f.shows("stoker_pods_without_agent", "} 1")
	require.NoError(t, f.Kube.Core.CoreV1().Pods(f.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	f.Eventually("no pod lacks an agent", func() bool { return len(f.scrape().values("stoker_pods_without_agent")) == 0 })
	f.shows("stoker_gateways", `state="MissingSidecar"`, "} 0")
	add(incident{name: "a pod without agent", alerts: []string{"StokerPodsWithoutAgent"}, broken: broken, fixed: f.scrape()})

	// The tests of package injector show with a real eviction that it exports this metric.
	stopped := last.with(t, "stoker_repairs_stopped", func(s *sample) { s.value = 1 })
	add(incident{name: "a repair stops", alerts: []string{"StokerRepairStopped"}, broken: stopped, fixed: last})

	for _, g := range f.Gateways() {
		require.NoError(t, g.Agent.End(t, syscall.SIGTERM))
	}
	broken = f.shows("stoker_fleets_without_agents", "} 1")
	f.Start()
	f.Eventually("the injector sees the agents", func() bool { return len(f.scrape().values("stoker_fleets_without_agents")) == 0 })
	add(incident{name: "no agent runs", alerts: []string{"StokerAgentsAway"}, broken: broken, fixed: f.fix("agents are back")})
	return all
}

// counts waits until a counter of failures has grown.
func (f *fleet) counts(was scrape, metric string) scrape {
	f.t.Helper()
	failed := func(s scrape) scrape {
		return slices.DeleteFunc(slices.Clone(s), func(one sample) bool { return one.labels.Get("result") == "ok" })
	}
	var now scrape
	f.Eventually(metric+" grows", func() bool { now = f.scrape(); return failed(now).sum(metric) > failed(was).sum(metric) })
	return now
}

func relabelled(l labels.Labels, name, value string) labels.Labels {
	b := labels.NewBuilder(l)
	b.Set(name, value)
	return b.Labels()
}

// readFile returns the content of a file of the repository.
func readFile(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.FromSlash(name))
	require.NoError(t, err)
	return content
}

func TestMain(m *testing.M) { plant.Main(m) }

const (
	files        = "../../charts/stoker/files/"
	rulesFile    = files + "prometheus/rules.yaml"
	dashboardDir = files + "grafana/"
	docs         = "../../docs/"
)
