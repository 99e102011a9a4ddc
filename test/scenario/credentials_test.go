package scenario

import (
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/test/gitserver"
)

// rawSpec returns a GatewaySync with the given repository and credentials.
func rawSpec(repo, auth string) string {
	return fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: site}
spec:
  git:
    repo: %q
    ref: main
    auth: %s
  polling: {interval: 1s}
  sync:
    defaults: {syncPeriod: 5}
    profiles:
      default:
        mappings:
          - {source: services/gw/projects, destination: projects}
          - {source: services/gw/config, destination: config}
`, repo, auth)
}

// F10: The agent sends nothing to an unknown host and reports HostKeyUnknown. Once the line of the message
// is in the Secret, the agent fetches the commit without a restart.
func TestSSHRepository(t *testing.T) {
	p := newPlant(t, withoutGateway)
	signer, key, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	srv, err := gitserver.StartSSH(filepath.Join(p.dir, "git"), gitserver.SSHOptions{Users: map[string]ssh.PublicKey{"git": signer.PublicKey()}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, srv.Close()) }()
	p.secret("ssh/identity", key)
	p.secret("ssh/known_hosts", "example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl")
	p.spec.raw = rawSpec(srv.URL("git", "site.git"),
		`{sshKey: {secretRef: {name: ssh, key: identity}, knownHosts: {secretRef: {name: ssh, key: known_hosts}}}}`)
	first := p.repo.Commit("first", site()...)
	p.start()
	s := p.reason("HostKeyUnknown")
	assert.Contains(t, s.Message, "SHA256:")
	assert.Empty(t, srv.Users(), "the agent must not send its key to an unknown host")
	p.checkForeign()

	p.secret("ssh/known_hosts", srv.KnownHosts())
	p.synced(first)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.synced(second)
	for _, c := range srv.Commands() {
		assert.Equal(t, "git-upload-pack '/site.git'", c)
	}
	assert.NotContains(t, p.agent.Log.String(), key[40:60])
}

// A corrected Secret takes effect as soon as its file changes, independent of the polling interval.
func TestCorrectedSecret(t *testing.T) {
	t.Run("of git", func(t *testing.T) {
		p := newPlant(t, withoutGateway)
		p.git.SetAuth(gitserver.Basic("git", "S3CR3T-right"))
		p.spec.slow = true
		commit := p.repo.Commit("first", site()...)
		p.secret("git/token", "S3CR3T-wrong")
		p.start()
		p.reason("AuthFailed")
		p.secret("git/token", "S3CR3T-right")
		p.synced(commit)
	})
	t.Run("of the gateway", func(t *testing.T) {
		p := newPlant(t)
		p.spec.slow = true
		commit := p.repo.Commit("first", site()...)
		p.secret("gateway/apiKey", "wrong")
		p.start()
		p.reason("GatewayForbidden")
		p.secret("gateway/apiKey", p.gw.Token())
		p.synced(commit)
	})
}

func TestGitHubApp(t *testing.T) {
	p := newPlant(t, withoutGateway)
	app, key, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	p.repo = gitserver.NewRepo(t, filepath.Join(p.dir, "git", "plant", "site.git"))
	p.git.SetAuth(app.Auth)
	api := httptest.NewServer(app)
	defer api.Close()
	p.secret("app/key", key)
	auth := func(app int) string {
		return fmt.Sprintf(`{githubApp: {appId: %d, installationId: 42, privateKeySecretRef: {name: app, key: key}, apiBaseURL: %q}}`, app, api.URL+"/api/v3")
	}
	first := p.repo.Commit("first", site()...)
	p.spec.raw = rawSpec(p.git.URL("plant/site.git"), auth(8))
	p.start()
	s := p.reason("AuthFailed")
	assert.Contains(t, s.Message, "appId 8")

	p.spec.raw = rawSpec(p.git.URL("plant/site.git"), auth(7))
	p.saveSpec()
	p.synced(first)
	p.synced(p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two"))))
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T")
}

func TestPasswordInURLIsNeverLogged(t *testing.T) {
	p := newPlant(t, withoutGateway)
	p.git.SetAuth(gitserver.Basic("me", "S3CR3T-9"))
	first := p.repo.Commit("first", site()...)
	p.spec.raw = rawSpec("http://me:S3CR3T-9@"+p.git.URL("site.git")[len("http://"):], "{}")
	p.start("--log-level=debug")
	p.synced(first)
	p.git.SetAuth(gitserver.Basic("me", "S3CR3T-other"))
	p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	s := p.reason("AuthFailed")
	assert.Equal(t, first, s.Commit, "the last good commit must stay")
	assert.NotContains(t, fmt.Sprint(s), "S3CR3T")
	assert.NotContains(t, p.agent.Log.String(), "S3CR3T")
}
