package fields

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	agentsync "stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/gitserver"
)

// proposalGroups are the fields that say how a gateway proposes its changes.
func proposalGroups(t *testing.T, s *site) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "git.example.com", nil)
	_, key, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	known := secrets{"ca/value": server.ca, "token/value": "T0KEN", "key/value": key}
	given := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Repo, gs.Spec.Git.CASecretRef = server.url+"/acme/plant.git", ref("ca")
		gs.Spec.Git.Auth = &v1alpha1.Credential{Token: &v1alpha1.TokenAuth{SecretRef: *ref("token")}}
		gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, Provider: "gitea", APIBaseURL: server.url + "/api", PRLabels: []string{"gateway"},
			Authors: map[string]v1alpha1.Author{"anna": "Anna <anna@example.com>"},
			Signing: &v1alpha1.CommitSigning{Format: v1alpha1.SigningSSH, KeySecretRef: *ref("key")}}
	}
	see := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		e, err := effective.Of(gs, "", nil)
		require.NoError(t, err)
		s := connect.ProposalSettings(gs, e, propose.Identity{Namespace: "site", Gateway: "line-1"}, known, repo.RemoteOptions{})
		if s == nil {
			return "nothing is proposed"
		}
		require.NoError(t, s.Problem)
		defer func() { require.NoError(t, s.Remote.Close()) }()
		lines := []any{s.Branch, s.BaseBranch, s.Debounce, s.Labels, s.Limits, s.Authors, s.RepairClosed, s.Provider, s.Watches("projects/a/x.json"), s.Watches("config/x.json")}
		signature, err := s.Sign([]byte("commit"))
		lines = append(lines, signature, err)
		if s.Forge != nil {
			_, err := s.Forge.Open(t.Context(), "main")
			lines = append(lines, server.take(), err)
		}
		return fmt.Sprintln(lines...)
	}
	return []group[v1alpha1.GatewaySync]{
		{"proposals", "bidirectional", given, see, map[string]any{"enabled": false, "watchPaths": []string{"config/**"}, "targetBranch": "b", "baseBranch": "b", "debounce": "5s",
			"prLabels": nil, "provider": "gitlab", "apiBaseURL": nil, "authors": nil, "onClosed": "repair", "signing.format": "openpgp", "signing.keySecretRef": nil,
			"guardrails.maxFileSize": "1Mi", "guardrails.maxTotalSize": "1Mi", "guardrails.maxFilesPerPR": 1, "guardrails.excludePatterns": []string{"**/x.json"}}},
		{"files of a proposal", "bidirectional.guardrails", given, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			rule, _ := connect.ProposalSettings(gs, e, propose.Identity{Gateway: "line-1"}, known, repo.RemoteOptions{}).Guard.Path("projects/a/x.json", "gw/projects/a/x.json")
			return "refused by " + rule
		}, map[string]any{"excludePatterns": []string{"**/x.json"}}},
		{"proposals of a profile", "sync.profiles{}", given, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			return fmt.Sprint(connect.ProposalSettings(gs, e, propose.Identity{Gateway: "line-1"}, known, repo.RemoteOptions{}) != nil)
		}, map[string]any{"bidirectional": false}},
		{"conflicts with proposals", "bidirectional", given, conflicts(s), map[string]any{"conflictStrategy": "manual"}},
		{"pauses of the agent", "sync.defaults", nil, pauses, map[string]any{"syncPeriod": 40}},
		{"pauses of the agent of a profile", "sync.profiles{}", nil, pauses, map[string]any{"syncPeriod": 40}},
	}
}

// orders is a source of one order.
type orders struct{ order *loop.Order }

func (s orders) Decide(context.Context, bool) loop.Decision { return loop.Decision{Order: s.order} }
func (s orders) Changed() <-chan struct{}                   { return nil }

func newLoop(g *gateway) *loop.Loop {
	return loop.New(loop.Config{Engine: g.engine, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewAgent(prometheus.NewRegistry(), "", "", "", "")})
}

// conflicts returns a probe that sees why a sync does not replace a change of the gateway that is to be proposed.
func conflicts(s *site) func(*testing.T, *v1alpha1.GatewaySync) string {
	return func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		g := newGateway(t, s, nil, false)
		g.start(func(*v1alpha1.GatewaySync) {})
		e, err := effective.Of(gs, "", nil)
		require.NoError(t, err)
		facts := plan.Facts{Namespace: "site", GatewayName: "line-1"}
		proposals := connect.ProposalSettings(gs, e, propose.Identity{Namespace: "site", Gateway: "line-1"}, secrets{}, repo.RemoteOptions{})
		gs.Spec.Git = v1alpha1.GitSpec{Repo: s.repo.Dir, Ref: "main"}
		c, err := connect.New(&gs.Spec, connect.Gateway{}, secrets{}, repo.RemoteOptions{}, g.engine.Log)
		require.NoError(t, err)
		commit, err := plan.ParseID(s.second)
		require.NoError(t, err)
		task := agentsync.Task{Target: agentsync.Target{Ref: "main", Name: "refs/heads/main", Commit: commit}, Profile: e, Facts: facts}
		l := newLoop(g)
		l.Iterate(t.Context(), orders{&loop.Order{Task: task, Connections: c, ProposalSettings: proposals}}, false)
		return changing.ReplaceAllString(strings.Join(append(g.files(), fmt.Sprint(l.State().Reason, l.State().Message)), "\n"), "…")
	}
}

// pauses is a probe that sees when an agent without work looks at its gateway again.
func pauses(t *testing.T, gs *v1alpha1.GatewaySync) string {
	e, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	g := newGateway(t, &site{repo: &gitserver.Repo{Dir: filepath.Join(t.TempDir(), "none")}}, nil, false)
	return newLoop(g).Iterate(t.Context(), orders{&loop.Order{Task: agentsync.Task{Profile: e}}}, false).Round(time.Second).String()
}
