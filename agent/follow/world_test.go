package follow

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// liveness bounds every wait. A loaded machine needs a tenth of it.
const liveness = 60 * time.Second

const (
	crName   = "site"
	apiToken = "stoker:S3CR3T-api"
)

// world is a namespace of a real API server with a GatewaySync, and a git server. The test plays the lead.
type world struct {
	t       *testing.T
	cluster *kubetest.Cluster
	ns      string
	clients kube.Clients
	git     *gitserver.Server
	repo    *gitserver.Repo
	dir     string
}

func newWorld(t *testing.T, cluster *kubetest.Cluster) *world {
	t.Helper()
	w := &world{t: t, cluster: cluster, ns: cluster.Namespace(t), dir: t.TempDir()}
	var err error
	w.clients, err = kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	root := filepath.Join(w.dir, "git")
	require.NoError(t, os.MkdirAll(root, 0o755))
	w.repo = gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	w.git, err = gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.git.Close()) })
	return w
}

// onSharedCluster returns a world on the cluster that the tests of this package share.
func onSharedCluster(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t, kubetest.Objects(t))
}

const project = `{"title": "%s", "enabled": true, "inheritable": false}`

// commit commits a project for both profiles: with this title for the profile default, and with another one for the profile
// other.
func (w *world) commit(title string) string {
	w.t.Helper()
	return w.repo.Commit(title,
		gitserver.Write("gw/projects/line/project.json", fmt.Sprintf(project, title)),
		gitserver.Write("other/projects/line/project.json", fmt.Sprintf(project, title+" of other")))
}

// gatewaySync creates the GatewaySync of the test, with the port of the gateway of p.
func (w *world) gatewaySync(p *pod, change ...func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	w.t.Helper()
	u, err := url.Parse(p.gw.URL())
	require.NoError(w.t, err)
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(w.t, err)
	number, period := int32(port), int32(5)
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: crName, Namespace: w.ns}}
	gs.Spec.Git = v1alpha1.GitSpec{Repo: w.git.URL("site.git"), Ref: "main"}
	gs.Spec.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: v1alpha1.SecretKeyRef{Name: "git", Key: "token"}}}
	gs.Spec.Gateway = v1alpha1.GatewaySpec{Port: &number, API: &v1alpha1.GatewayAPI{SecretName: "gateway"}}
	gs.Spec.Sync.Defaults.SyncPeriod = &period
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{
		"default": {Mappings: []v1alpha1.Mapping{{Source: "gw/projects", Destination: "projects"}}},
		"other":   {Mappings: []v1alpha1.Mapping{{Source: "other/projects", Destination: "projects"}}},
	}
	for _, c := range change {
		c(gs)
	}
	made, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Create(w.t.Context(), gs, metav1.CreateOptions{})
	require.NoError(w.t, err)
	return made
}

// edit changes the GatewaySync.
func (w *world) edit(change func(*v1alpha1.GatewaySync)) *v1alpha1.GatewaySync {
	w.t.Helper()
	all := kube.GatewaySyncs(w.clients.Dynamic, w.ns)
	var gs *v1alpha1.GatewaySync
	// A lead may write the status concurrently.
	require.NoError(w.t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		is, err := all.Get(w.t.Context(), crName)
		if err == nil {
			change(is)
			gs, err = all.Update(w.t.Context(), is, metav1.UpdateOptions{})
		}
		return err
	}))
	return gs
}

// annotate sets an annotation of the GatewaySync, as a request does.
func (w *world) annotate(key, value string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	require.NoError(w.t, err)
	_, err = kube.GatewaySyncs(w.clients.Dynamic, w.ns).Patch(w.t.Context(), crName, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// lead writes the SyncTarget, as the lead does, for the requests of the GatewaySync.
func (w *world) lead(change ...func(*v1alpha1.SyncTargetSpec)) *v1alpha1.SyncTarget {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	all := kube.SyncTargets(w.clients.Dynamic, w.ns)
	t, err := all.Get(ctx, crName)
	create := apierrors.IsNotFound(err)
	gs, gone := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(ctx, crName)
	if create {
		require.NoError(w.t, gone)
		t = &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: crName, Namespace: w.ns, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindGatewaySync, Name: crName, UID: gs.UID}}}}
		t.Spec = v1alpha1.SyncTargetSpec{Format: 1, Generation: gs.Generation, Ref: "main", RefName: "refs/heads/main",
			Lead: v1alpha1.LeadRecord{Holder: "test", Transitions: 1}}
	} else {
		require.NoError(w.t, err)
	}
	instructed := func() v1alpha1.SyncTargetSpec {
		s := *t.Spec.DeepCopy()
		s.Lead, s.Problem = v1alpha1.LeadRecord{}, nil
		return s
	}
	before := instructed()
	if gone == nil {
		t.Spec.Requests = annotation.Hash(gs)
	}
	for _, c := range change {
		c(&t.Spec)
	}
	if after := instructed(); create || !equality.Semantic.DeepEqual(before, after) {
		t.Spec.Revision++
	}
	if create {
		t, err = all.Create(ctx, t, metav1.CreateOptions{})
	} else {
		t, err = all.Update(ctx, t, metav1.UpdateOptions{})
	}
	require.NoError(w.t, err)
	return t
}

// targetCommit makes the lead name a commit.
func targetCommit(commit string) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) { s.Commit = commit }
}

func generation(n int64) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) { s.Generation = n }
}

// pod is a gateway's pod: a data directory, a simulated gateway, and the files that the kubelet mounts.
type pod struct {
	w    *world
	name string
	uid  string
	dir  string
	data string
	gw   *simulator.Gateway

	agent *agent
}

// syncedPod returns a pod whose gateway runs its first commit, with this title.
func (w *world) syncedPod(title string) (*pod, string) {
	w.t.Helper()
	p := w.pod("line-0")
	first := w.commit(title)
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, title)
	return p, first
}

func (w *world) pod(name string, change ...func(*simulator.Options)) *pod {
	w.t.Helper()
	p := &pod{w: w, name: name, dir: filepath.Join(w.dir, name)}
	p.data = filepath.Join(p.dir, "data")
	for _, dir := range []string{"data", "repo", "podinfo", "secrets"} {
		require.NoError(w.t, os.MkdirAll(filepath.Join(p.dir, dir), 0o755))
	}
	o := simulator.Options{Data: p.data, Strict: true, Token: apiToken}
	for _, c := range change {
		c(&o)
	}
	var err error
	p.gw, err = simulator.Start(o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { assert.NoError(w.t, p.gw.Close()) })
	p.writeSecretFile("gateway", "apiKey", apiToken)
	p.writeSecretFile("git", "token", "S3CR3T-git")
	p.writePodInfo(map[string]string{"app.kubernetes.io/name": name}, map[string]string{})
	p.recreate()
	return p
}

// recreate deletes the pod and creates it with another UID.
func (p *pod) recreate() {
	p.w.t.Helper()
	pods := p.w.clients.Core.CoreV1().Pods(p.w.ns)
	zero := int64(0)
	err := pods.Delete(p.w.t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	require.True(p.w.t, err == nil || apierrors.IsNotFound(err), "%v", err)
	made, err := pods.Create(p.w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{v1alpha1.LabelCRName: crName}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway", Image: "example.com/ignition"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.w.t, err)
	p.uid = string(made.UID)
}

func (p *pod) write(name, content string) {
	p.w.t.Helper()
	file := filepath.Join(p.dir, name)
	require.NoError(p.w.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(p.w.t, os.WriteFile(file+"~", []byte(content), 0o600))
	require.NoError(p.w.t, os.Rename(file+"~", file))
}

// writeSecretFile writes a key of a Secret as a plain file, for tests that need no symlinks of the kubelet.
func (p *pod) writeSecretFile(name, key, value string) {
	p.w.t.Helper()
	p.write("secrets/"+name+"/"+key, value)
}

// mountSecret writes a Secret with one key as the kubelet does: a new directory and a symlink that is replaced atomically.
func (p *pod) mountSecret(name, key, value string) {
	p.w.t.Helper()
	dir := filepath.Join(p.dir, "secrets", name)
	version := "..version_" + rand.Text()
	p.write(filepath.Join("secrets", name, version, key), value)
	require.NoError(p.w.t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	require.NoError(p.w.t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if is, err := os.Lstat(filepath.Join(dir, key)); err == nil && is.Mode().Type() == fs.ModeSymlink {
		return
	}
	require.NoError(p.w.t, os.RemoveAll(filepath.Join(dir, key)))
	require.NoError(p.w.t, os.Symlink(filepath.Join("..data", key), filepath.Join(dir, key)))
}

// writePodInfo writes labels and annotations as the kubelet does.
func (p *pod) writePodInfo(labels, annotations map[string]string) {
	p.w.t.Helper()
	for name, m := range map[string]map[string]string{"labels": labels, "annotations": annotations} {
		var b strings.Builder
		for k, v := range m {
			fmt.Fprintf(&b, "%s=%q\n", k, v)
		}
		p.write("podinfo/"+name, b.String())
	}
}

// title returns the title of the project on the gateway's disk.
func (p *pod) title() string {
	b, err := os.ReadFile(filepath.Join(p.data, "projects", "line", "project.json"))
	if err != nil {
		return ""
	}
	var v struct{ Title string }
	require.NoError(p.w.t, json.Unmarshal(b, &v))
	return v.Title
}

// agent is a running follower of a pod.
type agent struct {
	p        *pod
	follower *Follower
	http     *httptest.Server
	reg      *prometheus.Registry
	log      *program.Log
	traffic  *traffic
	ended    chan error // gets the result of Run
	end      func()
}

// traffic counts the requests of an agent to the API server.
type traffic struct {
	mu     gosync.Mutex
	counts map[string]int // by request, like "PUT syncreports"
	denied string         // request that is forbidden now
	next   http.RoundTripper
}

func (tr *traffic) deny(what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.denied = what
}

func (tr *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	kind := "" // of /apis/GROUP/VERSION/namespaces/NAMESPACE/KIND; the tests count no others
	if parts := strings.Split(r.URL.Path, "/"); len(parts) > 6 {
		kind = parts[6]
	}
	tr.mu.Lock()
	tr.counts[r.Method+" "+kind]++
	denied := tr.denied == r.Method+" "+kind
	tr.mu.Unlock()
	if denied {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/json")
		rec.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(rec, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"%s is forbidden","code":403}`, kind)
		return rec.Result(), nil
	}
	return tr.next.RoundTrip(r)
}

func (tr *traffic) count(what string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.counts[what]
}

func (tr *traffic) writes() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for what, times := range tr.counts {
		if !strings.HasPrefix(what, "GET ") {
			n += times
		}
	}
	return n
}

// start runs a follower for the pod in this process.
func (p *pod) start(change ...func(*Config)) *agent {
	p.w.t.Helper()
	t := p.w.t
	a := &agent{p: p, log: &program.Log{}, reg: prometheus.NewRegistry(), traffic: &traffic{counts: map[string]int{}}}
	log := slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pod", p.name)
	config := p.w.cluster.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		a.traffic.next = next
		return a.traffic
	})
	clients, err := kube.ConnectTo(config, "stoker-agent/test")
	require.NoError(t, err)
	store, err := repo.Open(filepath.Join(p.dir, "repo", "objects"), repo.StoreOptions{Log: log})
	require.NoError(t, err)
	engine := sync.New(sync.Config{DataDir: p.data, Store: store, Log: log, Limits: plan.DefaultLimits})
	c := Config{
		Identity: Identity{Namespace: p.w.ns, Pod: p.name, PodUID: p.uid, GatewaySync: crName, Gateway: p.name},
		Version:  "v0.0.1", PodInfo: filepath.Join(p.dir, "podinfo"), StartupFile: filepath.Join(p.dir, "repo", "startup.json"),
		API: clients.Dynamic, Secrets: connect.Mounted{Dir: filepath.Join(p.dir, "secrets")}, Engine: engine, Log: log,
		Metrics: metrics.NewAgent(a.reg, "v0.0.1", p.w.ns, crName, p.name),
	}
	for _, f := range change {
		f(&c)
	}
	a.follower, err = New(c)
	require.NoError(t, err)
	a.http = httptest.NewServer(loop.Handler(a.follower.Routes()))
	ctx, cancel := context.WithCancel(context.Background())
	a.ended = make(chan error, 1)
	go func() { a.ended <- a.follower.Run(ctx) }()
	a.end = gosync.OnceFunc(func() {
		cancel()
		select {
		case err := <-a.ended:
			assert.True(t, err == nil || errors.Is(err, ErrRestartGateway), "%v", err)
		case <-time.After(liveness):
			t.Error("the follower does not end")
			return
		}
		a.http.Close()
		assert.NoError(t, engine.Close())
		assert.NoError(t, store.Close())
	})
	t.Cleanup(func() {
		a.end()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", p.name, a.log)
		}
		state, err := json.Marshal(a.follower.State())
		assert.NoError(t, err)
		report, err := json.Marshal(p.report())
		assert.NoError(t, err)
		measured, err := a.reg.Gather()
		assert.NoError(t, err)
		for _, said := range []string{a.log.String(), string(state), string(report), fmt.Sprint(measured)} {
			assert.NotContains(t, said, "S3CR3T", "C7: no secret in a log, a state, a report or a metric")
		}
	})
	p.agent = a
	return a
}

// get requests one of the agent's routes.
func (a *agent) get(path string) (int, string) {
	r, err := http.Get(a.http.URL + path)
	require.NoError(a.p.w.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(a.p.w.t, err)
	return r.StatusCode, string(b)
}

// report returns the pod's report from the API server, or nil if there is none.
func (p *pod) report() *v1alpha1.SyncReport {
	r, err := kube.SyncReports(p.w.clients.Dynamic, p.w.ns).Get(context.WithoutCancel(p.w.t.Context()), p.name)
	if err != nil {
		return nil
	}
	return r
}

// await waits until the pod's report satisfies ok, and returns its status.
func (p *pod) await(what string, ok func(v1alpha1.SyncReportStatus) bool) v1alpha1.SyncReportStatus {
	p.w.t.Helper()
	var last v1alpha1.SyncReportStatus
	eventually(p.w.t, what, func() bool {
		r := p.report()
		if r == nil {
			return false
		}
		last = r.Status
		return ok(last)
	}, func() string { b, _ := json.Marshal(last); return string(b) })
	return last
}

// awaitSynced waits until the report says that the commit runs, and checks the disk.
func (p *pod) awaitSynced(commit, title string) v1alpha1.SyncReportStatus {
	p.w.t.Helper()
	s := p.await("Synced at "+commit, func(s v1alpha1.SyncReportStatus) bool {
		return s.Phase == v1alpha1.GatewaySynced && s.Commit == commit && s.Target == commit
	})
	assert.Equal(p.w.t, title, p.title(), "a report is never ahead of the disk")
	return s
}

func eventually(t *testing.T, what string, ok func() bool, detail ...func() string) {
	t.Helper()
	deadline := time.Now().Add(liveness)
	for !ok() {
		if time.Now().After(deadline) {
			for _, d := range detail {
				what += "; last: " + d()
			}
			t.Fatalf("waited %s for: %s", liveness, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
