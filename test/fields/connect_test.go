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

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/storage"
	agentsync "stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
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
