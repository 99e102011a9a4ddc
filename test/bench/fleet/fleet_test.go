package fleet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go logs only through klog
	if asked, err := RunGateways(context.Background(), os.Args[1:], os.Stdin, os.Stdout); asked {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	kubetest.Main(m)
}

// The intervals are unusually short and the git server is polled constantly. This reveals agents that
// send requests to the API server because time passes or because the lead polls git.
func TestIdleFleetWrites(t *testing.T) {
	const agents, idle = 50, 20 * time.Second
	cluster := kubetest.Control(t)
	require.NoError(t, install(t.Context(), cluster))
	admin, err := kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	b, err := newTestbed(t.Context(), admin, t.TempDir(), size{1, agents}, slog.New(slog.DiscardHandler), func(gs *v1alpha1.GatewaySync) {
		period := int32(5)
		gs.Spec.Sync.Defaults.SyncPeriod, gs.Spec.Polling.Interval = &period, "1s"
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, b.close()) }()
	require.NoError(t, b.start(t.Context()))
	require.NoError(t, b.waitVerifiedWithin(t.Context(), 2*time.Minute, b.repo.Head(), ""))
	require.NoError(t, b.settle(t.Context(), 12*time.Second), "a report that differs only in its text is delayed by ten seconds")

	versions := func() map[string]string {
		all := map[string]string{}
		reports, bad, err := kube.SyncReports(admin.Dynamic, b.sites[0].namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Empty(t, bad)
		for _, r := range reports {
			all[r.Name] = r.ResourceVersion
		}
		return all
	}
	turns := func() (n float64) {
		for _, a := range b.agents {
			families, err := a.registry.Gather()
			require.NoError(t, err)
			for _, f := range families {
				if f.GetName() != "stoker_reconcile_total" {
					continue
				}
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						if l.GetValue() == "follow" {
							n += m.GetCounter().GetValue()
						}
					}
				}
			}
		}
		return n
	}
	was, turned, began := versions(), turns(), b.mark()
	require.Len(t, began.leads, 1)
	require.NoError(t, sleep(t.Context(), idle))
	require.Eventually(t, func() bool { return turns()-turned > 2*agents }, time.Minute, 100*time.Millisecond, "the followers must check their files")
	require.Eventually(t, func() bool { return b.since(began).git.Advertisements > 5 }, time.Minute, 100*time.Millisecond, "the lead must poll git")
	w := b.since(began)

	assert.Len(t, was, agents)
	assert.Equal(t, was, versions(), "an idle fleet must write nothing")
	assert.Zero(t, w.git.UploadPacks)
	require.False(t, w.leadsChanged, "the lead must not change")
	assert.Empty(t, writers(w.sum(followers)))
	lock := writers(w.sum(leaders))
	assert.Positive(t, lock["update synctargets"], "the lead must renew its lock")
	assert.LessOrEqual(t, lock["update synctargets"], int(w.duration/(5*time.Second))+2)
	delete(lock, "update synctargets")
	assert.LessOrEqual(t, lock[confirmRequest], w.allowedConfirms(), "the status must not be confirmed more often than allowed")
	delete(lock, confirmRequest)
	assert.Empty(t, lock)
	assert.Zero(t, w.busyRequests(), "%v", w.sum(allAgents).requests)
	assert.Empty(t, w.sum(allAgents).refused)
}

// writers returns the requests that write.
func writers(c counts) map[string]int {
	all := maps.Clone(c.requests)
	maps.DeleteFunc(all, func(what string, _ int) bool {
		verb, _, _ := strings.Cut(what, " ")
		return verb == "get" || verb == "list" || verb == watching
	})
	return all
}

func TestFleetBench(t *testing.T) {
	kubetest.NotShort(t)
	work := t.TempDir()
	var out strings.Builder
	require.NoError(t, Run(t.Context(), []string{"-sizes", "3,2x2", "-stages", "2x1", "-n", "1", "-idle", "2s", "-work", work}, &out, io.Discard))
	for _, line := range []string{"| 3 ", "| 2 × 2 ", "| update syncreports ", "| 3 agents: one poll of git per GatewaySync and sync", "| rollout: at most 1.5 s", "| no stages: no field", "2 × 2 agents: a status is written every two minutes while nothing happens"} {
		t.Run(line, func(t *testing.T) {
			assert.Contains(t, out.String(), line)
		})
	}
	_, goals, _ := strings.Cut(out.String(), "## Goals\n\n")
	for row := range strings.Lines(goals) {
		assert.Regexp(t, `^\|.+\|.+\| *(met|\*\*missed\*\*|-+)? *\|$`, strings.TrimSpace(row), "each row must have a verdict; make bench judges it")
	}
	left, err := os.ReadDir(work)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestMissedGoals(t *testing.T) {
	plain := func(agents, perFollower, statuses, polls int) result {
		r := result{size: size{1, agents}}
		w := window{duration: 10 * time.Second, verified: time.Second, counts: map[*agent]counts{}, leads: map[*agent]bool{}}
		for i := range agents {
			a := &agent{}
			c := counts{requests: map[string]int{"update syncreports": perFollower}, in: 4000 * int64(perFollower)}
			if i == 0 {
				w.leads[a], c.requests["patch gatewaysyncs/status"] = true, statuses
			}
			w.counts[a] = c
		}
		w.git.UploadPacks, w.git.Advertisements = agents, agents+polls
		r.syncs, r.idle = []window{w}, window{duration: time.Minute}
		return r
	}
	missed := func(all ...result) (what []string) {
		for _, g := range judge(all) {
			if !g.met {
				what = append(what, g.what)
			}
		}
		return what
	}
	assert.Empty(t, missed(plain(10, 1, 2, 1), plain(50, 1, 3, 1)))
	assert.Len(t, missed(plain(10, 1, 2, 1), plain(50, 3, 3, 1)), 2, "requests and bytes grow")
	assert.Len(t, missed(plain(10, 1, 4, 1)), 1, "too many statuses")
	assert.Len(t, missed(plain(10, 1, 2, 10)), 1, "too many requests to git")
	assert.Len(t, missed(plain(10, 3, 2, 1)), 1, "too many reports")
	busy := plain(10, 1, 2, 1)
	busy.idle = busy.syncs[0]
	assert.Len(t, missed(busy), 2)
}

func TestMissedRolloutGoals(t *testing.T) {
	for name, c := range map[string]struct {
		rollout
		missed int
	}{
		"not measured":                {rollout{of: size{2, 5}}, 0},
		"all goals met":               {rollout{of: size{2, 5}, staged: []map[string]int{{"a": 20, "b": 4}}, gaps: []time.Duration{nextStep}}, 0},
		"late step":                   {rollout{of: size{2, 5}, staged: []map[string]int{{}}, gaps: []time.Duration{0, 0, nextStep + 1}}, 1},
		"too many writes":             {rollout{of: size{2, 5}, staged: []map[string]int{{"a": 20, "b": 5}}}, 1},
		"status field without stages": {rollout{of: size{2, 5}, staged: []map[string]int{{}}, unexpectedFields: []string{"status.rollout"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			missed := 0
			for _, g := range c.goals() {
				if !g.met {
					missed++
				}
			}
			assert.Equal(t, c.missed, missed)
		})
	}
}

// An overloaded API server carries requests out, and answers late. Agents must not add to its load then: they must not repeat what was
// carried out, and no lead may be replaced.
func TestSlowAPIServer(t *testing.T) {
	kubetest.NotShort(t)
	cluster := kubetest.Control(t)
	require.NoError(t, install(t.Context(), cluster))
	const delay = 3 * time.Second
	const sites, agents = 2, 4
	admin, err := kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("FLEET_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("delay", delay)
	}
	b, err := newTestbed(t.Context(), admin, t.TempDir(), size{sites, agents}, log)
	require.NoError(t, err)
	defer func() { assert.NoError(t, b.close()) }()
	// A renewal takes longer than the lock is usually valid. Durations are a fifth of those of agents in pods.
	b.timing = lead.Timing{Lock: 3 * time.Second, SlowLock: 12 * time.Second, SlowFor: 12 * time.Second, Renew: time.Second, Deadline: 10 * time.Second}
	require.Greater(t, delay+b.timing.Renew, b.timing.Lock)
	require.NoError(t, b.start(t.Context()))
	require.NoError(t, b.waitVerifiedWithin(t.Context(), 2*time.Minute, b.repo.Head(), ""))
	require.NoError(t, b.settle(t.Context(), calm))
	leads := b.leads()
	require.Len(t, leads, sites)
	for _, a := range b.agents {
		a.traffic.delay.Store(int64(delay))
	}
	check := func(what string, w window, reads, fetches, polls int) {
		asked, led := w.sum(followers), w.sum(leaders)
		t.Logf("%s: verified after %s; followers: %v; leads: %v; refused: %v; git: %+v", what, w.verified, asked.requests, led.requests, w.sum(allAgents).refused, w.git)
		assert.Equal(t, leads, b.leads(), "%s: the leads stay", what)
		assert.LessOrEqual(t, asked.requests["update syncreports"], (agents-1)*sites, "%s: one report per follower", what)
		assert.LessOrEqual(t, asked.requests["get gatewaysyncs"], reads*(agents-1)*sites, "%s: reads of the GatewaySync", what)
		assert.LessOrEqual(t, requests(followers)(w), 3.0, "%s: requests per follower", what)
		assert.EqualValues(t, fetches, w.git.UploadPacks, "%s: fetches", what)
		assert.EqualValues(t, polls, w.git.Advertisements-w.git.UploadPacks, "%s: polls", what)
		assert.LessOrEqual(t, led.requests["create events"], sites*(agents+2), "%s: no Event is sent twice", what)
		assert.LessOrEqual(t, writes(w), 5.0, "%s: status writes per GatewaySync", what)
	}
	w, err := b.round(t.Context(), 1, 3*time.Minute)
	require.NoError(t, err)
	check("a commit", w, 0, sites*agents, sites)

	began := b.mark()
	for _, s := range b.sites {
		_, err := kube.GatewaySyncs(admin.Dynamic, s.namespace).Patch(t.Context(), crName, types.MergePatchType,
			[]byte(`{"spec": {"sync": {"defaults": {"syncPeriod": 31}}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	for _, s := range b.sites {
		require.Eventually(t, func() bool {
			gs, err := b.syncs.Get(s.namespace, crName)
			return err == nil && gs.Status.ObservedGeneration == 2 && meta.IsStatusConditionTrue(gs.Status.Conditions, v1alpha1.ConditionReady)
		}, 3*time.Minute, 100*time.Millisecond, s.namespace)
	}
	took := time.Since(began.at)
	require.NoError(t, b.settle(t.Context(), calm))
	w = b.since(began)
	w.verified = took
	check("a spec", w, 1, 0, 0)
}
