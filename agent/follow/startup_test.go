package follow

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/leak"
)

// stopped returns a gateway that the kubelet has not started yet. An init container seeded its volume.
func (w *world) stopped(name string) *pod {
	w.t.Helper()
	p := w.pod(name, func(o *simulator.Options) { o.Down = true; o.Seeding = simulator.SeedChart })
	p.write("data/.ignition-seed-complete", "")
	p.write("data/ignition.conf", "")
	return p
}

// withoutAPIServer configures an address at which no API server answers.
func withoutAPIServer(t *testing.T) func(*Config) {
	t.Helper()
	clients, err := kube.ConnectTo(&rest.Config{Host: "http://127.0.0.1:1"}, "test")
	require.NoError(t, err)
	return func(c *Config) { c.API = clients.Dynamic }
}

func (a *agent) startup() (open bool, why string) {
	code, why := a.get("/startupz")
	return code == http.StatusOK, why
}

// opens waits until /startupz lets the gateway start, and returns the reason that it gives.
func (a *agent) opens() string {
	a.p.w.t.Helper()
	var why string
	eventually(a.p.w.t, "/startupz opens", func() (open bool) { open, why = a.startup(); return open }, func() string { return why })
	return why
}

// staysClosed waits for a condition, checks that /startupz does not let the gateway start yet, and returns the reason that it gives.
func (a *agent) staysClosed(until string, is func() bool) string {
	a.p.w.t.Helper()
	eventually(a.p.w.t, until, is)
	open, why := a.startup()
	assert.False(a.p.w.t, open, why)
	return why
}

// ahead is a clock that a test can advance.
type ahead struct{ by atomic.Int64 }

func (c *ahead) set(config *Config) {
	config.Now = func() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }
}

// advanceTo sets how far the clock of a running agent is ahead of the real one.
func (c *ahead) advanceTo(a *agent, by time.Duration) {
	c.by.Store(int64(by))
	a.follower.wake()
}

func deadline(d string) func(*v1alpha1.GatewaySync) {
	return func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = d }
}

func TestFirstSyncBeforeStart(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	a := p.start()
	why := a.staysClosed("no agent leads", func() bool { return p.report() != nil })
	assert.Contains(t, why, "no lead")

	w.lead(targetCommit(first))
	assert.Contains(t, a.opens(), "Applied")
	assert.Equal(t, "one", p.title())
	s := p.await("Applied", func(s v1alpha1.SyncReportStatus) bool { return s.Phase == v1alpha1.GatewayApplied })
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, v1alpha1.ReasonWaitingForGateway, s.Reason)
	require.NoError(t, p.gw.SetState(simulator.Running))
	s = p.awaitSynced(first, "one")
	assert.Empty(t, s.Scan, "a gateway that starts needs no scan")
}

func TestNotSyncedBeforeGatewayStart(t *testing.T) {
	_, p, first := synced(t)
	p.agent.end()
	require.NoError(t, p.gw.SetState(simulator.Down))
	p.recreate()
	waits := func() {
		t.Helper()
		a := p.start()
		assert.Contains(t, a.opens(), "the ", "the volume holds the commit, or the gateway was already let start")
		eventually(t, "the agent has tried its gateway", func() bool { return a.follower.State().Of != nil })
		a.iterates(2)
		s := a.follower.State()
		assert.Equal(t, v1alpha1.GatewayApplied, s.Phase, s.Line())
		assert.Equal(t, v1alpha1.ReasonWaitingForGateway, s.Reason)
		r := p.await("the report is the new pod's", func(s v1alpha1.SyncReportStatus) bool {
			return s.Phase == v1alpha1.GatewayApplied && string(p.report().OwnerReferences[0].UID) == p.uid
		})
		assert.Equal(t, first, r.Commit)
	}
	waits()
	p.agent.end() // only the agent's container restarts
	waits()
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.awaitSynced(first, "one")

	// If the gateway has run before, a restarted agent reports Synced at once, whatever state the gateway is in.
	p.agent.end()
	require.NoError(t, p.gw.SetState(simulator.Down))
	p.gw.Requests.Reset()
	a := p.start()
	eventually(t, "the agent is synced", func() bool { return a.follower.State().Phase == v1alpha1.GatewaySynced })
	assert.Empty(t, p.gw.Requests.List())
}

func TestUnseededVolumeUntouchedBeforeStart(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0", func(o *simulator.Options) { o.Down = true })
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	a := p.start()
	assert.Contains(t, a.opens(), "seed")
	s := p.await("the agent waits", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForGateway })
	assert.Contains(t, s.Message, "spec.gateway.port right?", "the gateway may listen on another port")
	there, err := os.ReadDir(p.data)
	require.NoError(t, err)
	assert.Empty(t, there, "the directory stays empty, or Ignition would not seed it")

	// The agent's container restarts while the gateway starts for the first time: the agent still waits.
	a.end()
	require.NoError(t, p.gw.SetState(simulator.Starting))
	p.write("data/ignition.conf", "")
	a = p.start()
	assert.Contains(t, a.opens(), "before")
	eventually(t, "the agent waits again", func() bool { return a.follower.State().Reason == v1alpha1.ReasonWaitingForGateway })
	assert.NoDirExists(t, filepath.Join(p.data, "projects", "line"))
	require.NoError(t, os.Remove(filepath.Join(p.data, "ignition.conf")))
	if _, err := os.Stat(filepath.Join(p.data, ".stoker")); err == nil {
		require.NoError(t, os.RemoveAll(filepath.Join(p.data, ".stoker")))
	}
	require.NoError(t, p.gw.Restart(0))
	p.awaitSynced(first, "one")
}

func TestStartupWait(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, deadline("1h"), func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.Startup = v1alpha1.StartupWait })
	w.lead(targetCommit(first))
	p.start().opens()
	p.agent.end()

	second := w.moves("two")
	p.recreate()
	assert.Contains(t, p.start().opens(), "Applied: the files of "+second[:7])
	assert.Equal(t, "two", p.title())
	p.agent.end()

	p.recreate()
	var clock ahead
	a := p.start(withoutAPIServer(t), clock.set)
	a.staysClosed("the agent reports the error", func() bool { return strings.Contains(a.follower.State().Message, "connection refused") })
	clock.advanceTo(a, time.Hour)
	assert.Contains(t, a.opens(), "waited for 1h")
}

func TestStartupByReason(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, deadline("1h"))
	require.NoError(t, os.RemoveAll(filepath.Join(p.dir, "secrets", "git")))
	w.lead(targetCommit(first))
	assert.Contains(t, p.start().opens(), "Secret git")
	p.agent.end()

	q := w.stopped("line-1")
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
	assert.Contains(t, q.start().opens(), "paused")
	q.agent.end()

	r := w.stopped("line-2")
	w.git.Inject(gitserver.Status(http.StatusServiceUnavailable))
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = false })
	var clock ahead
	a := r.start(clock.set)
	a.staysClosed("git is unreachable", func() bool { return a.follower.State().Reason == v1alpha1.ReasonGitUnreachable })
	clock.advanceTo(a, time.Hour)
	assert.Contains(t, a.opens(), "waited for 1h")
	w.git.Heal()
	eventually(t, "the agent syncs after the gateway started", func() bool { return r.title() == "one" })
}

func TestStartupByOutcome(t *testing.T) {
	order := &loop.Order{Task: sync.Task{Target: sync.Target{Commit: plan.ID{1}}}}
	for name, c := range map[string]struct {
		err   error
		opens bool
	}{
		"a snapshot is downloaded": {failure.New(v1alpha1.ReasonProgressing, "%w, 1 MiB so far", archive.ErrDownloading), false},
		"the sync was paused":      {sync.PausedError(), true},
		"the volume is full":       {failure.New(v1alpha1.ReasonNoSpace, "no space"), false},
		"a user must act":          {failure.New(v1alpha1.ReasonMassDeletion, "too many"), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStartup("", "pod", nil, slog.New(slog.DiscardHandler), time.Now)
			s.afterIteration(loop.State{Of: order, Report: &sync.Report{Err: c.err, Reason: failure.Reason(c.err, "")}}, order)
			assert.Equal(t, c.opens, s.allowed(), s.why)
		})
	}
}

func TestStartupDecisionIsKept(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		pod       string
		at, began time.Time
		opened    bool
	}{
		"the agent restarts":  {"pod", now.Add(time.Minute), now, true},
		"the clock goes back": {"pod", now.Add(-time.Minute), now.Add(-time.Minute), true},
		"another pod":         {"other", now.Add(time.Minute), now.Add(time.Minute), false},
	} {
		t.Run(name, func(t *testing.T) {
			file, log := filepath.Join(t.TempDir(), "startup"), slog.New(slog.DiscardHandler)
			first := newStartup(file, "pod", nil, log, func() time.Time { return now })
			first.state.Unseeded, first.state.NewVolume = true, true
			first.allow("Ignition has to seed the volume first")
			s := newStartup(file, c.pod, nil, log, func() time.Time { return c.at })
			assert.Equal(t, startupState{c.pod, c.began, c.opened, c.opened, c.opened}, s.state)
			assert.Equal(t, c.opened, s.allowed())
		})
	}
}

func TestStartupWithoutRights(t *testing.T) {
	kubetest.NotShort(t) // rights
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	config := w.cluster.RESTConfig()
	config.Impersonate.UserName = "system:serviceaccount:" + w.ns + ":nobody"
	clients, err := kube.ConnectTo(config, "stoker-agent/test")
	require.NoError(t, err)
	var clock ahead
	a := p.start(clock.set, func(c *Config) { c.API = clients.Dynamic })
	why := a.staysClosed("the agent reports the error", func() bool { return strings.Contains(a.follower.State().Message, "forbidden") })
	assert.Contains(t, why, "bind the ClusterRole stoker-agent")
	clock.advanceTo(a, bindTimeout)
	assert.Contains(t, a.opens(), "waiting for an operator: the agent may not read its SyncTarget")
}

func TestStartupDeadlineEndsSync(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, deadline("10s"))
	w.git.Inject(gitserver.Stall(0).Times(1))
	w.lead(targetCommit(first))
	a := p.start()
	assert.Contains(t, a.opens(), "waited for 10s", "the deadline has opened it, and not the files, which the next fetch brings")
	require.NoError(t, p.gw.SetState(simulator.Running))
	s := p.awaitSynced(first, "one")
	assert.NotEmpty(t, s.Scan)
}

// A sync that was pending before the gateway started becomes an ordinary sync beside a running gateway, with a scan.
func TestPreStartOrderAfterStart(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, deadline("1h"))
	w.git.Inject(gitserver.Status(http.StatusServiceUnavailable))
	w.lead(targetCommit(first))
	a := p.start()
	a.staysClosed("git is unreachable", func() bool { return a.follower.State().Reason == v1alpha1.ReasonGitUnreachable })
	rename := func(from, to string) {
		gs := w.edit(func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{to: gs.Spec.Sync.Profiles[from]}
		})
		w.lead(generation(gs.Generation))
	}
	rename("default", "renamed")
	assert.Contains(t, a.opens(), "waiting for an operator")
	require.NoError(t, p.gw.SetState(simulator.Running))
	p.gw.Requests.Reset()
	w.git.Heal()
	eventually(t, "the agent syncs the pending order and scans", func() bool {
		return p.title() == "one" && p.gw.Requests.Count("POST /data/api/v1/scan/projects") == 1
	})
	rename("renamed", "default")
	s := p.awaitSynced(first, "one")
	assert.NotEmpty(t, s.Scan)
	assert.Equal(t, 1, p.gw.Requests.Count("POST /data/api/v1/scan/projects"))
}

func TestFollowerShutdown(t *testing.T) {
	w := newWorld(t, kubetest.Control(t))
	p := w.stopped("line-0")
	before := goleak.IgnoreCurrent()
	for range 3 {
		a := p.start(withoutAPIServer(t), func(c *Config) { c.Period = 100 * time.Millisecond })
		a.iterates(2)
		a.end()
	}
	leak.None(t, before)
}

func problemOf(generation int64, reason v1alpha1.Reason, message string) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) {
		s.Problem = &v1alpha1.TargetProblem{Generation: generation, Reason: reason, Message: message}
	}
}

// A first start with a wrong Secret: no commit is known, and an operator must act.
func TestStartupIgnoresRefThatNeedsAction(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	gs := w.gatewaySync(p)
	w.lead(problemOf(gs.Generation, v1alpha1.ReasonAuthFailed, "git refused the token"))
	a := p.start()
	assert.Equal(t, "waiting for an operator: git refused the token", strings.TrimSpace(a.opens()))
	s := p.await("AuthFailed", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonAuthFailed })
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, gs.Generation, s.Generation, "the report names the generation that the agent cannot follow")
	assert.EqualValues(t, 1, s.Revision)
	assert.Empty(t, s.Target)

	writes, gets := a.traffic.writes(), a.traffic.count("GET gatewaysyncs")
	w.lead(func(s *v1alpha1.SyncTargetSpec) { now := metav1.NowMicro(); s.Lead.Renewed = &now })
	a.iterates(2)
	assert.Equal(t, writes, a.traffic.writes(), "the problem is reported once")
	assert.Equal(t, gets, a.traffic.count("GET gatewaysyncs"))
	assert.Equal(t, 1, strings.Count(a.log.String(), "reason=AuthFailed"))

	first := w.moves("one", func(s *v1alpha1.SyncTargetSpec) { s.Problem = nil })
	require.NoError(t, p.gw.SetState(simulator.Running))
	s = p.awaitSynced(first, "one")
	assert.EqualValues(t, 2, s.Revision)
}

func TestStartupWaitsForMissingRef(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	w.gatewaySync(p, deadline("5m"))
	w.lead() // git is unavailable: the target has the ref, but no commit
	var clock ahead
	a := p.start(clock.set)
	a.staysClosed("the agent says what it waits for", func() bool { // each iteration of the loop determines this again
		_, why := a.startup()
		return strings.Contains(why, "no commit is known") && strings.Contains(why, "main")
	})
	clock.advanceTo(a, 5*time.Minute)
	assert.Contains(t, a.opens(), "waited for 5m")

	q := w.stopped("line-1")
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
	assert.Contains(t, q.start().opens(), "paused", "only an operator ends a pause")
}

// The gateways run a commit, the spec names a ref that does not exist, and a pod starts on a new volume.
func TestNewPodStartsBehindSpec(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	old := w.gatewaySync(p, deadline("5m"))
	w.lead(targetCommit(first))
	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref = "release" })
	var clock ahead
	a := p.start(clock.set)
	a.staysClosed("the agent waits", func() bool { return strings.Contains(a.follower.State().Message, "waiting until they agree") })
	clock.advanceTo(a, 5*time.Minute)
	assert.Contains(t, a.opens(), "waited for 5m", "the deadline is that of the spec")
	a.end()

	q := w.stopped("line-1")
	w.edit(deadline("1h"))
	w.lead(problemOf(gs.Generation, v1alpha1.ReasonRefNotFound, "of an earlier spec"))
	b := q.start(func(c *Config) { c.Period = 100 * time.Millisecond })
	b.staysClosed("the problem belongs to another spec", func() bool { return strings.Contains(b.follower.State().Message, "waiting until they agree") })
	w.lead(problemOf(gs.Generation+1, v1alpha1.ReasonRefNotFound, "there is no ref release"))
	assert.Contains(t, b.opens(), "there is no ref release")
	q.await("RefNotFound", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonRefNotFound && s.Message == "there is no ref release"
	})
	b.iterates(1) // the one under way may have read the spec before
	gets := b.traffic.count("GET gatewaysyncs")
	b.iterates(2)
	assert.Equal(t, gets, b.traffic.count("GET gatewaysyncs"), "the spec is not read again for the same generation")
	assert.Empty(t, q.title())
	assert.Greater(t, gs.Generation, old.Generation)
}

// A gateway with a complete volume starts, even if the agent's own cache or its metrics port is unusable.
func TestCompleteVolumeStartsWithoutCache(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := p.run(w.cluster.Kubeconfig())
	p.awaitSynced(first, "one")
	assert.Less(t, a.stop(), grace)

	// The next pod cannot use its cache volume, and another program has taken the port.
	p.recreate()
	place := filepath.Join(p.dir, "repo")
	require.NoError(t, os.RemoveAll(place))
	require.NoError(t, os.WriteFile(place, nil, 0o600))
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	second := w.commit("two")
	a = p.run(w.cluster.Kubeconfig(), "--metrics-addr", taken.Addr().String())
	assert.Contains(t, a.opens(), "holds "+first[:7])
	code, _ := a.get("/healthz")
	assert.Equal(t, http.StatusOK, code)

	s := p.await("the agent reports the error", func(s v1alpha1.SyncReportStatus) bool {
		return s.Target == second && s.Reason == v1alpha1.ReasonWriteFailed
	})
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, first, s.Commit)
	assert.Contains(t, s.Message, "cache of git objects")
	assert.Equal(t, "one", p.title())
	code, body := a.get("/state")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, first)

	require.NoError(t, os.Remove(place)) // an operator fixes the volume, and the agent retries
	p.awaitSynced(second, "two")
	assert.Less(t, a.stop(), grace)
}

// Without a commit on the volume, the gateway waits for the first sync, which cannot run, until the deadline.
func TestEmptyVolumeWaitsForCache(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	place := filepath.Join(p.dir, "repo")
	require.NoError(t, os.RemoveAll(place))
	require.NoError(t, os.WriteFile(place, nil, 0o600))
	w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := p.run(w.cluster.Kubeconfig())
	p.await("the agent reports the error", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWriteFailed })
	code, why := a.get("/startupz")
	assert.Equal(t, http.StatusServiceUnavailable, code, why)
	require.NoError(t, os.Remove(place))
	assert.Contains(t, a.opens(), "Applied")
	assert.Equal(t, "one", p.title())
}
