package follow

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	gosync "sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

func TestMain(m *testing.M) {
	// Most of these tests wait for the agent, so more of them can run in parallel than there are processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(program.M{Tests: kubetest.M{M: m}}.Run())
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

// iterates waits until the loop of the agent has ended n more iterations.
func (a *agent) iterates(n float64) {
	a.p.w.t.Helper()
	before := gathered(a.p.w.t, a, "stoker_reconcile_total")
	eventually(a.p.w.t, "more iterations", func() bool { return gathered(a.p.w.t, a, "stoker_reconcile_total") >= before+n })
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

// process is the real agent in a pod. It may also lead.
type process struct {
	*program.Process
	p      *pod
	health string
}

// run starts the real agent in the pod.
func (p *pod) run(kubeconfig string, args ...string) *process {
	p.w.t.Helper()
	t := p.w.t
	cmd := exec.Command(program.Build(t, "agent"), append([]string{"--kubeconfig", kubeconfig, "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = []string{"POD_NAME=" + p.name, "POD_NAMESPACE=" + p.w.ns, "POD_UID=" + p.uid, "CR_NAME=" + crName, "GATEWAY_NAME=" + p.name,
		"DATA_PATH=" + p.data, "REPO_PATH=" + filepath.Join(p.dir, "repo"), "SECRETS_DIR=" + filepath.Join(p.dir, "secrets"),
		"PODINFO_DIR=" + filepath.Join(p.dir, "podinfo"), "SECRETS=" + p.mounts()}
	a := &process{p: p, Process: program.Start(t, p.name, cmd)}
	t.Cleanup(func() { assert.NotContains(t, a.Log.String(), "S3CR3T", "C7") })
	eventually(t, "the agent listens", func() bool {
		require.False(t, a.Ended(), "the agent ended:\n%s", a.Log)
		a.health = a.Log.Address("health")
		return a.health != ""
	})
	return a
}

// mounts lists the keys of the pod's current Secrets, as the injector does when the pod is created.
func (p *pod) mounts() string {
	files, err := filepath.Glob(filepath.Join(p.dir, "secrets", "*", "*"))
	require.NoError(p.w.t, err)
	for i, file := range files {
		files[i], err = filepath.Rel(filepath.Join(p.dir, "secrets"), file)
		require.NoError(p.w.t, err)
	}
	return strings.Join(files, ",")
}

func (a *process) get(path string) (int, string) {
	r, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + a.health + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(a.p.w.t, err)
	return r.StatusCode, string(b)
}

// opens waits until /startupz lets the gateway start, and returns the reason that it gives.
func (a *process) opens() string {
	a.p.w.t.Helper()
	var why string
	eventually(a.p.w.t, "/startupz opens", func() bool {
		code, body := a.get("/startupz")
		why = body
		return code == http.StatusOK
	}, func() string { return why })
	return why
}

// stop ends the agent as the kubelet does, and returns how long that took.
func (a *process) stop() time.Duration {
	a.p.w.t.Helper()
	began := time.Now()
	require.NoError(a.p.w.t, a.End(a.p.w.t, syscall.SIGTERM))
	return time.Since(began)
}

// anonymous returns the memory in KiB that is not backed by files. It always counts against the limit of a container.
func (a *process) anonymous() int {
	a.p.w.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	require.NoError(a.p.w.t, err)
	_, rest, ok := strings.Cut(string(raw), "RssAnon:")
	require.True(a.p.w.t, ok)
	var kib int
	_, err = fmt.Sscanf(rest, "%d kB", &kib)
	require.NoError(a.p.w.t, err)
	return kib
}

// grace is the default termination grace period of a pod.
const grace = 30 * time.Second

func TestAgentLifecycle(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	a := p.run(w.cluster.Kubeconfig())
	eventually(t, "the API server has answered", func() bool { _, why := a.get("/startupz"); return strings.Contains(why, "no lead") })
	code, _ := a.get("/startupz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = a.get("/healthz")
	assert.Equal(t, http.StatusOK, code)

	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" }) // the agent also leads
	assert.Contains(t, a.opens(), "Applied")
	assert.Equal(t, "one", p.title())
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.awaitSynced(first, "one")
	assert.LessOrEqual(t, a.anonymous(), 40<<10, "KiB of anonymous memory; the agent shares a small pod with a gateway")
	code, body := a.get("/state")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, first)
	code, _ = a.get("/readyz")
	assert.Equal(t, http.StatusOK, code)
	assert.Less(t, a.stop(), grace)

	// The pod restarts while the API server is not available.
	require.NoError(t, p.gw.SetState(simulator.Down))
	w.git.Forget()
	p.recreate()
	require.NoError(t, os.Remove(filepath.Join(p.dir, "repo", "startup.json")))
	nowhere := filepath.Join(p.dir, "kubeconfig")
	require.NoError(t, os.WriteFile(nowhere, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`), 0o600))
	b := p.run(nowhere)
	assert.Contains(t, b.opens(), "holds "+first[:7])
	assert.Empty(t, w.git.Requests())
	eventually(t, "the first iteration has ended", func() bool {
		_, body := b.get("/state")
		return strings.Contains(body, first) && strings.Contains(body, string(v1alpha1.ReasonWaitingForLead))
	})
	assert.Less(t, b.stop(), grace)
	for line := range strings.Lines(b.Log.String()) {
		assert.True(t, json.Valid([]byte(line)), "client-go logs through the agent's log: %s", line)
	}
}

func TestSIGTERMDuringSync(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0", func(o *simulator.Options) { o.ScanDelay = 2 * time.Second })
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := p.run(w.cluster.Kubeconfig())
	p.awaitSynced(first, "one")

	// Stop between the first renamed file and the end of the scan.
	second := w.commit("two")
	eventually(t, "the files are written", func() bool { return p.title() == "two" })
	assert.Less(t, a.stop(), grace)
	s := p.report().Status
	assert.Equal(t, second, s.Commit, "the report is never ahead of the disk")
	assert.Contains(t, []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayApplied, v1alpha1.GatewayPending}, s.Phase)
	if s.Phase == v1alpha1.GatewaySynced {
		assert.NotEmpty(t, s.Scan, "a verified sync has a scan")
	}

	// Stop while git sends data.
	a = p.run(w.cluster.Kubeconfig())
	p.awaitSynced(second, "two")
	w.git.Inject(gitserver.Stall(0).On(gitserver.UploadPack))
	third := w.commit("three")
	s = p.await("the sync has started", func(s v1alpha1.SyncReportStatus) bool { return s.Phase == v1alpha1.GatewaySyncing })
	assert.Equal(t, second, s.Commit)
	assert.Equal(t, third, s.Target)
	assert.Less(t, a.stop(), grace)
	s = p.report().Status
	assert.Equal(t, second, s.Commit)
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Contains(t, s.Message, "stopped")
	assert.Equal(t, "two", p.title())
	w.git.Heal()
	p.run(w.cluster.Kubeconfig())
	p.awaitSynced(third, "three")
}
