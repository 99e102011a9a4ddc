package fleet

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
)

// An overloaded API server carries requests out, and answers late. Agents must not add to its load then: they must not repeat what was
// carried out, and no lead may be replaced.
func TestSlowAPIServer(t *testing.T) {
	kubetest.NotShort(t)
	cluster := kubetest.Control(t)
	require.NoError(t, install(t.Context(), cluster))
	for _, delay := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			t.Parallel()
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
			require.NoError(t, b.start(t.Context()))
			require.NoError(t, b.waitVerifiedWithin(t.Context(), 2*time.Minute, b.repo.Head(), ""))
			require.NoError(t, b.settle(t.Context(), calm))

			for _, a := range b.agents {
				a.traffic.delay.Store(int64(delay))
			}
			was, begun := b.leads(), time.Now()
			w, err := b.round(t.Context(), 1, 5*time.Minute)
			if err != nil {
				t.Log(b.since(b.emptyMark()).sum(allAgents))
			}
			require.NoError(t, err)
			asked := w.sum(followers)
			t.Logf("%s; verified after %s; followers: %v refused %v; leads: %v refused %v; git %+v", time.Since(begun), w.verified, asked.requests, asked.refused,
				w.sum(leaders).requests, w.sum(leaders).refused, w.git)
			assert.Equal(t, was, b.leads(), "the leads stay")
			assert.LessOrEqual(t, requests(followers)(w), 3.0, "requests per follower")
			assert.LessOrEqual(t, asked.requests["update syncreports"], (agents-1)*sites, "one report per follower")
			assert.EqualValues(t, sites*agents, w.git.UploadPacks, "one fetch per agent")
			assert.EqualValues(t, sites, w.git.Advertisements-w.git.UploadPacks, "one poll per GatewaySync")
			assert.LessOrEqual(t, w.sum(leaders).requests["create events"], sites*(agents+2), "no Event is sent twice")
			assert.LessOrEqual(t, writes(w), 5.0, "status writes per GatewaySync")
		})
	}
}
