package fields

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/follow"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/metrics"
)

// follows returns a probe that sees what an agent in a pod says about the start of its gateway, which runs another commit than the target, and
// whether it reaches the gateway. The agent starts twice, because it knows the spec only from then on.
func follows(s *site, server *web) func(*testing.T, *v1alpha1.GatewaySync) string {
	return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, nil, false)
		g.start(func(*v1alpha1.GatewaySync) {})
		gs.Spec.Git.Repo = s.repo.Dir
		api := newAPI()
		api.put(t, stokerPath+"gatewaysyncs/plant", gs)
		api.put(t, stokerPath+"synctargets/plant", v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Revision: 1, Generation: 1, Ref: "main",
			RefName: "refs/heads/main", Commit: s.second, Requests: annotation.Hash(gs), Lead: v1alpha1.LeadRecord{Holder: "test", Transitions: 1}}})
		var lines string
		for i := range 2 { // sequence: the second start knows the spec of the first
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			var f *follow.Follower
			var started string
			f, err := follow.New(follow.Config{
				Identity:    follow.Identity{Namespace: "site", Pod: "line-1", PodUID: strconv.Itoa(i), GatewaySync: "plant", Gateway: "line-1"},
				StartupFile: filepath.Join(g.dir, fmt.Sprint("startup-", i)), API: api.clients(t).Dynamic, Secrets: secrets{}, Engine: g.engine, Log: slog.New(slog.DiscardHandler),
				Metrics: metrics.NewAgent(prometheus.NewRegistry(), "", "", "", ""),
				OnSyncTarget: func(*v1alpha1.SyncTarget, error) {
					if started == "" {
						w := httptest.NewRecorder()
						loop.Handler(f.Routes()).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/startupz", nil))
						started = fmt.Sprint(w.Code, w.Body)
					}
				},
				OnState: func(s loop.State) {
					if s.Of != nil && s.Report != nil {
						stop()
					}
				},
			})
			require.NoError(t, err)
			require.NoError(t, f.Run(ctx))
			stop()
			lines = fmt.Sprint(started, "contacts the gateway: ", server.take() != "")
		}
		return lines
	}
}

func followGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "gateway.example.com", nil)
	u, err := url.Parse(server.url)
	require.NoError(t, err)
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	require.NoError(t, err)
	given := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Gateway = v1alpha1.GatewaySpec{Port: new(int32(port)), TLS: true, TLSConfig: &v1alpha1.GatewayTLSConfig{InsecureSkipVerify: true}}
	}
	see := follows(s, server)
	return []group[v1alpha1.GatewaySync]{
		{"start of a gateway", "", given, see, map[string]any{"gateway.port": 1, "gateway.tls": false, "sync.defaults.startup": "wait", "sync.profiles{}.startup": "wait"}},
	}
}
