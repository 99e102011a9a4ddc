package fleet

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

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
