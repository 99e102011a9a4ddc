package fields

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/storage"
	agentsync "stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/gitserver"
)

// refsOf returns what a git server gets and answers if an agent asks for the refs of a repository.
func refsOf(t *testing.T, server *web, known secrets, git v1alpha1.GitSpec) string {
	t.Helper()
	remote, err := connect.Git(git, known, repo.RemoteOptions{})
	if err != nil {
		return err.Error()
	}
	defer func() { require.NoError(t, remote.Close()) }()
	all, err := remote.Refs(t.Context())
	if err == nil {
		name, err := repo.ParseRef("main")
		require.NoError(t, err)
		at, err := all.Resolve(name)
		return fmt.Sprint(at, err)
	}
	return server.take() + "\n" + message(err)
}

var clientPort = regexp.MustCompile(`:\d+->`)

// message returns the text of an error without the ports of clients, which differ between two runs.
func message(err error) string {
	if err == nil {
		return "no error"
	}
	return clientPort.ReplaceAllString(err.Error(), "->")
}

// gitGroups are the fields with which an agent fetches and pushes. Both take the same credentials.
func gitGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	key := appKey(t)
	over := func(name string, see func(*testing.T, *web, secrets, *v1alpha1.GatewaySync) string, given func(gs *v1alpha1.GatewaySync, server string), to map[string]any) group[v1alpha1.GatewaySync] {
		server := newWeb(t, "", "git.example.com", func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if !strings.Contains(r.URL.Path, "access_tokens") {
				return false
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"token":"issued","expires_at":"2099-01-01T00:00:00Z","permissions":{"contents":"write","pull_requests":"write"}}`))
			return true
		})
		known := secrets{"ca/value": server.ca, "token/value": "T0KEN", "app/value": key}
		return group[v1alpha1.GatewaySync]{name, "", func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Git.Repo, gs.Spec.Git.CASecretRef = server.url+"/acme/plant.git", ref("ca")
			given(gs, server.url)
		}, func(t *testing.T, gs *v1alpha1.GatewaySync) string { return see(t, server, known, gs) }, to}
	}
	fetch := func(t *testing.T, server *web, known secrets, gs *v1alpha1.GatewaySync) string {
		return refsOf(t, server, known, gs.Spec.Git)
	}
	token := func() *v1alpha1.TokenAuth { return &v1alpha1.TokenAuth{SecretRef: *ref("token"), Username: "bot"} }
	app := func(server string) *v1alpha1.GitHubAppAuth {
		return &v1alpha1.GitHubAppAuth{AppID: 7, InstallationID: 8, PrivateKeySecretRef: *ref("app"), APIBaseURL: server + "/api"}
	}
	return append([]group[v1alpha1.GatewaySync]{
		over("git with a token", fetch, func(gs *v1alpha1.GatewaySync, _ string) { gs.Spec.Git.Auth = &v1alpha1.Credential{Token: token()} },
			map[string]any{"git.repo": nil, "git.caSecretRef": nil, "git.auth.token": nil}),
		over("git with an app", fetch, func(gs *v1alpha1.GatewaySync, server string) {
			gs.Spec.Git.Auth = &v1alpha1.Credential{GitHubApp: app(server)}
		},
			map[string]any{"git.auth.githubApp": nil}),
		over("pushes with a token", pushes, func(gs *v1alpha1.GatewaySync, _ string) {
			gs.Spec.Bidirectional.Auth = &v1alpha1.Credential{Token: token()}
		},
			map[string]any{"bidirectional.auth.token": nil}),
		over("pushes with an app", pushes, func(gs *v1alpha1.GatewaySync, server string) {
			gs.Spec.Bidirectional.Auth = &v1alpha1.Credential{GitHubApp: app(server)}
		}, map[string]any{"bidirectional.auth.githubApp": nil}),
	}, sshGroups(t)...)
}

// pushes returns what a git server gets if an agent is about to push.
func pushes(t *testing.T, server *web, known secrets, gs *v1alpha1.GatewaySync) string {
	t.Helper()
	remote, _, err := connect.NewProposalRemote(&gs.Spec, gs.Spec.Bidirectional, known, repo.RemoteOptions{})
	if err != nil {
		return err.Error()
	}
	defer func() { require.NoError(t, remote.Close()) }()
	_, err = remote.PushRefs(t.Context())
	return server.take() + "\n" + message(err)
}

func sshGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	root := t.TempDir()
	gitserver.NewRepo(t, filepath.Join(root, "plant.git")).Commit("first", gitserver.Write("a", "b"))
	signer, text, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	server, err := gitserver.StartSSH(root, gitserver.SSHOptions{Users: map[string]ssh.PublicKey{"git": signer.PublicKey()}, Pushes: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	known := secrets{"key/value": text, "hosts/value": server.KnownHosts(), "none/value": "git.example.com " + strings.Fields(server.KnownHosts())[1] + " " + strings.Fields(server.KnownHosts())[2]}
	given := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Git.Repo = server.URL("git", "plant.git")
		gs.Spec.Git.Auth = &v1alpha1.Credential{SSHKey: &v1alpha1.SSHKeyAuth{SecretRef: *ref("key"), KnownHosts: &v1alpha1.SecretSource{SecretRef: *ref("hosts")}}}
	}
	strange := func(gs *v1alpha1.GatewaySync) {
		given(gs)
		gs.Spec.Git.Auth.SSHKey.KnownHosts.SecretRef = *ref("none")
	}
	push := func(given func(*v1alpha1.GatewaySync)) func(*v1alpha1.GatewaySync) {
		return func(gs *v1alpha1.GatewaySync) {
			given(gs)
			gs.Spec.Bidirectional.Auth = &v1alpha1.Credential{SSHKey: gs.Spec.Git.Auth.SSHKey}
			gs.Spec.Git.Auth = nil
		}
	}
	fetches := func(t *testing.T, gs *v1alpha1.GatewaySync) string { return refsOf(t, &web{}, known, gs.Spec.Git) }
	sends := func(t *testing.T, gs *v1alpha1.GatewaySync) string { return pushes(t, &web{}, known, gs) }
	secretFields, insecure := map[string]any{"secretRef": nil, "knownHosts": nil}, map[string]any{"insecureIgnoreHostKey": true}
	return []group[v1alpha1.GatewaySync]{
		{"git over ssh", "git.auth.sshKey", given, fetches, secretFields},
		{"git over ssh to an unknown host", "git.auth.sshKey", strange, fetches, insecure},
		{"pushes over ssh", "bidirectional.auth.sshKey", push(given), sends, secretFields},
		{"pushes over ssh to an unknown host", "bidirectional.auth.sshKey", push(strange), sends, insecure},
	}
}

// gatewayGroups are the fields with which an agent connects to its gateway.
func gatewayGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	server := newWeb(t, "", "gateway.example.com", nil)
	stranger := newWeb(t, "", "other.example.com", nil)
	known := secrets{"ca/value": server.ca, "strange/value": stranger.ca, "api/token": "name:T0KEN", "api/token2": "name:T0KEN2"}
	given := func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Gateway = v1alpha1.GatewaySpec{API: &v1alpha1.GatewayAPI{SecretName: "api", SecretKey: "token"},
			TLSConfig: &v1alpha1.GatewayTLSConfig{CASecretRef: ref("ca"), ServerName: "gateway.example.com"}}
	}
	see := alone(server, func(t *testing.T, gs *v1alpha1.GatewaySync) string {
		gateway := connect.Gateway{URL: server.url, Key: apikey.New(t.TempDir(), time.Now)}
		c, err := connect.New(&gs.Spec, gateway, known, repo.RemoteOptions{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Remote.Close()) }()
		_, err = c.Gateway.Info(t.Context())
		return fmt.Sprintln(server.take(), c.HasAPIToken, message(err))
	})
	return []group[v1alpha1.GatewaySync]{
		{"requests to the gateway", "gateway", given, see, map[string]any{"api": nil, "tlsConfig.caSecretRef": nil, "tlsConfig.serverName": nil}},
		{"requests with a key of the agent", "gateway.api", func(gs *v1alpha1.GatewaySync) {
			given(gs)
			gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "api", SecretKey: "token"}
		}, see, map[string]any{"managed": true}},
		{"requests to an unknown gateway", "gateway.tlsConfig", func(gs *v1alpha1.GatewaySync) {
			given(gs)
			gs.Spec.Gateway.TLSConfig.CASecretRef = ref("strange")
		}, see, map[string]any{"insecureSkipVerify": true}},
	}
}

// storageGroups are the fields with which an agent connects to object storage, and the prefix of what it stores there.
func storageGroups(t *testing.T) []group[v1alpha1.GatewaySync] {
	key := appKey(t)
	use := func(name string, kind func(server string) v1alpha1.SnapshotStorage, to map[string]any) group[v1alpha1.GatewaySync] {
		server := newWeb(t, "", "", func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if r.URL.Path == "/token" {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"access_token":"A","token_type":"Bearer","expires_in":3600}`)
			}
			return r.URL.Path == "/token"
		})
		known := secrets{
			"s3/value": "aws_access_key_id=ID\naws_secret_access_key=KEY", "azure/value": "YWNjZXNza2V5",
			"gcs/value": fmt.Sprintf(`{"type":"service_account","client_email":"a@example.com","private_key":%q,"token_uri":%q}`, key, server.url+"/token"),
		}
		see := func(t *testing.T, gs *v1alpha1.GatewaySync) string {
			s, err := storage.New(&gs.Spec, known)
			if err != nil || s == nil {
				return fmt.Sprint(s, err)
			}
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			job := agentsync.New(agentsync.Config{}).UploadJob(agentsync.Connections{Storage: s}, &agentsync.Task{Profile: e})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // bounds the retries
			defer cancel()
			_, err = s.List(ctx, job.Prefix)
			return server.take() + "\n" + strings.ReplaceAll(message(err), "context deadline exceeded", "")
		}
		return group[v1alpha1.GatewaySync]{name, "snapshots.storage", func(gs *v1alpha1.GatewaySync) {
			s := kind(server.url)
			gs.Spec.Snapshots.Enabled, gs.Spec.Snapshots.Storage = true, &s
		}, see, to}
	}
	s3 := func(server string) v1alpha1.SnapshotStorage {
		return v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3, Bucket: "bucket", Endpoint: server, Region: "eu-west-1", SecretRef: ref("s3")}
	}
	amazon := func(string) v1alpha1.SnapshotStorage { return s3("") }
	azure := func(server string) v1alpha1.SnapshotStorage {
		return v1alpha1.SnapshotStorage{Type: v1alpha1.StorageAzure, Account: "account", Bucket: "container", Endpoint: server, SecretRef: ref("azure")}
	}
	gcs := func(server string) v1alpha1.SnapshotStorage {
		return v1alpha1.SnapshotStorage{Type: v1alpha1.StorageGCS, Bucket: "bucket", Endpoint: server, SecretRef: ref("gcs")}
	}
	return []group[v1alpha1.GatewaySync]{
		use("requests to S3", s3, map[string]any{"type": "pvc", "bucket": nil, "endpoint": "s3.example.com", "region": nil, "secretRef": nil, "keyPrefix": "p/"}),
		use("requests to Amazon S3", amazon, map[string]any{"region": "eu-central-1", "pathStyle": true}),
		use("requests to Azure", azure, map[string]any{"account": nil, "bucket": nil, "endpoint": "azure.example.com", "keyPrefix": "p/", "secretRef": nil}),
		use("requests to Google", gcs, map[string]any{"bucket": nil, "endpoint": "gcs.example.com", "keyPrefix": "p/", "secretRef": nil}),
	}
}

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

// pauses is a probe that sees how long an agent without work waits until it checks its gateway again.
func pauses(t *testing.T, gs *v1alpha1.GatewaySync) string {
	e, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	g := newGateway(t, &site{repo: &gitserver.Repo{Dir: filepath.Join(t.TempDir(), "none")}}, nil, false)
	return newLoop(g).Iterate(t.Context(), orders{&loop.Order{Task: agentsync.Task{Profile: e}}}, false).Round(time.Second).String()
}
