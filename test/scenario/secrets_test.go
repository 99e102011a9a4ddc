package scenario

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// C7: No output of the agent contains the token for git, a password in the URL of the repository, or the key of the gateway.
func TestNoOutputContainsSecrets(t *testing.T) {
	const gitToken, urlToken, apiKey = "S3CR3T-1-git-token", "S3CR3T-2-in-the-url", "S3CR3T-3-gateway-key"
	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.Token = "stoker:" + apiKey })
	p.secret("git/token", gitToken)
	p.git.SetAuth(gitserver.Token(gitToken))
	first := p.repo.Commit("first", site()...)
	p.start("--log-level", "debug")
	p.synced(first)
	var output strings.Builder
	collect := func() {
		t.Helper()
		for _, url := range []string{"http://" + p.agent.health + "/state", "http://" + p.agent.health + "/readyz", "http://" + p.agent.Log.Address("metrics") + "/metrics"} {
			t.Run(url, func(t *testing.T) {
				res, err := http.Get(url)
				require.NoError(t, err)
				_, err = io.Copy(&output, res.Body)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
			})
		}
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.agent.PID()))
		require.NoError(t, err)
		output.Write(command)
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.agent.PID()))
		if os.Getuid() == 0 {
			require.NoError(t, err)
			output.Write(environ)
		} else {
			require.ErrorIs(t, err, fs.ErrPermission, "programs of the same user must not read the agent")
		}
	}
	collect()

	elsewhere, err := gitserver.Start(filepath.Join(p.dir, "git"), gitserver.Options{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, elsewhere.Close()) }()
	// sequence: each fault makes the agent report an error, which must not show a secret
	for _, fault := range []gitserver.Fault{gitserver.Status(401), gitserver.Status(500), gitserver.Redirect(elsewhere.URL("")), gitserver.Truncate(100)} {
		p.git.Inject(fault)
		p.saveSpec()
		p.await("a failure", func(s state) bool { return s.Phase == "Error" })
		collect()
		p.git.Heal()
		p.saveSpec()
		p.synced(first)
	}
	p.spec.repo = strings.Replace(p.git.URL("site.git"), "http://", "http://someone:"+urlToken+"@", 1)
	p.git.SetAuth(gitserver.Token("another"))
	p.saveSpec()
	p.reason("AuthFailed")
	collect()
	p.git.SetAuth(nil)
	require.NoError(t, p.gw.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: 403, Body: "you sent stoker:" + apiKey}))
	next := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.saveSpec()
	p.await("the token is rejected", func(s state) bool { return s.Reason == "GatewayForbidden" })
	collect()
	p.gw.Faults.Clear()
	p.saveSpec()
	p.synced(next)
	p.stop()
	output.WriteString(p.agent.Log.String())

	assert.Greater(t, output.Len(), 10_000, "the output must be long enough to search")
	for _, secret := range []string{gitToken, urlToken, apiKey} {
		if i := strings.Index(output.String(), secret); i >= 0 {
			t.Errorf("the output contains %s: …%s…", secret, output.String()[max(0, i-200):i])
		}
	}
}

// F6, F7: The agent never starts another program. It runs without a PATH, and the test watches /proc.
func TestAgentStartsNoOtherProgram(t *testing.T) {
	p := newPlant(t)
	first := p.repo.Commit("first", site(
		gitserver.Write(inGit+"projects/line/.gitattributes", "* filter=evil diff=evil"),
		gitserver.Write(".gitmodules", "[submodule \"x\"]\n\tpath = services/gw/projects/line/x\n\turl = --upload-pack=touch\n"),
		gitserver.Submodule(inGit+"projects/line/x", strings.Repeat("1", 40)),
		gitserver.Script(inGit+"projects/line/hooks/post-checkout", "#!/bin/sh\ntouch /tmp/canary\n"))...)
	p.start()
	pid := p.agent.PID()
	assert.NotEmpty(t, childrenOf(os.Getpid()), "the test must see the agent as a child process")
	stop, done := make(chan struct{}), make(chan []string)
	go func() {
		var seen []string
		for looks := 0; ; looks++ {
			select {
			case <-stop:
				if looks < 50 {
					seen = append(seen, "too few observations")
				}
				done <- seen
				return
			case <-time.After(time.Millisecond):
			}
			seen = append(seen, childrenOf(pid)...)
		}
	}()
	p.await("Synced", func(s state) bool { return s.Phase == "Synced" && s.Commit == first })
	p.write(viewPath, edited)
	second := p.repo.Commit("second", gitserver.Write(inGit+viewPath, view("two")))
	p.await("Synced", func(s state) bool { return s.Phase == "Synced" && s.Commit == second })
	p.repo.Commit("broken", gitserver.Write(inGit+viewPath, "{"))
	p.reason("ConfigSyntaxError")
	close(stop)
	assert.Empty(t, <-done, "the agent must not start child processes")
	assert.NoFileExists(t, filepath.Join(p.data, "projects/line/x"))
}

// childrenOf lists the child processes of pid. It reads only the threads of pid, which is fast on a
// machine with many processes.
func childrenOf(pid int) []string {
	var children []string
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid))
	for _, file := range lists {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		children = append(children, strings.Fields(string(b))...)
	}
	return children
}

// A standalone agent makes its API key, too. A gateway that ran already must be restarted by a user, and the status says so.
func TestOwnKey(t *testing.T) {
	p := newPlant(t)
	p.spec.api = "{managed: true}"
	commit := p.repo.Commit("first", site()...)
	p.start()
	s := p.reason("GatewayForbidden")
	assert.Contains(t, s.Message, "restart the gateway")
	require.NoError(t, p.gw.Restart(0))
	p.stop()
	p.start()
	p.synced(commit)
	for _, r := range p.gw.Requests.List() {
		assert.NotEqual(t, "stoker", r.Token, "only the key of the agent is used")
	}
	require.NoError(t, p.gw.Canaries.Check())
}

// Git may own the permissions. The agent leaves them as they are, and the status names what git lacks.
func TestOwnKeyWithPermissionsOfGit(t *testing.T) {
	const path = "config/resources/core/ignition/security-properties/config.json"
	p := newPlant(t, func(_ *plant, o *simulator.Options) { o.ResetPermissions = true })
	p.spec.api = "{managed: true}"
	content := p.read(path)
	commit := p.repo.Commit("first", site(gitserver.Write("services/gw/"+path, content))...)
	p.start()
	p.reason("GatewayForbidden")
	p.stop()
	require.NoError(t, p.gw.Restart(0))
	p.start()
	s := p.await("the status names what git lacks", func(s state) bool { return strings.Contains(s.Message, "git has ") })
	assert.Equal(t, "GatewayForbidden", s.Reason)
	assert.Contains(t, s.Message, "git has "+path)
	assert.Contains(t, s.Message, `{"name": "Authenticated", "children": [{"name": "Stoker", "children": []}]}`)
	assert.Equal(t, content, p.read(path))
	assert.Equal(t, commit, s.Commit)
}

// F24: the page on signed commits, with an author's own git and the real agent.
func TestSignedCommitsPage(t *testing.T) {
	for _, name := range []string{"ssh-keygen", "gpg"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s on this machine", name)
		}
	}
	p := newPlant(t, withoutGateway)
	p.started()

	clone := filepath.Join(p.dir, "clone")
	home, err := os.MkdirTemp("", "gpg") // the path of gpg's socket must be short
	require.NoError(t, err)
	t.Cleanup(func() {
		end := exec.Command("gpgconf", "--kill", "all") // gpg leaves its agent running
		end.Env = append(os.Environ(), "GNUPGHOME="+home)
		assert.NoError(t, end.Run())
		assert.NoError(t, os.RemoveAll(home))
	})
	author := document.NewShell(t, p.dir, nil, "GNUPGHOME="+home, "GIT_AUTHOR_NAME=You", "GIT_AUTHOR_EMAIL=you@example.com",
		"GIT_COMMITTER_NAME=You", "GIT_COMMITTER_EMAIL=you@example.com")
	author.Type(t, "git clone --quiet "+p.repo.Dir+" clone")
	author.Dir = clone
	require.NoError(t, os.WriteFile(filepath.Join(clone, "file"), []byte("one"), 0o600))
	author.Type(t, "git add file")
	for c := range document.Open(t).Of("docs/how-to/signed-commits.md") {
		author.Type(t, c.Text)
	}
	keys, err := os.ReadFile(filepath.Join(clone, "allowed_signers"))
	require.NoError(t, err)
	openpgp, err := os.ReadFile(filepath.Join(clone, "openpgp.asc"))
	require.NoError(t, err)

	signed := strings.TrimSpace(author.Type(t, "git rev-parse HEAD"))
	p.secret("authors/keys", string(keys)+string(openpgp))
	p.spec.git = "    verify: {keysSecretRef: {name: authors, key: keys}}\n"
	p.saveSpec()
	p.synced(signed)

	p.repo.Commit("unsigned", gitserver.Write(inGit+viewPath, view("bad")))
	held := p.reason("SignatureInvalid")
	assert.Equal(t, "Error", held.Phase)
	assert.Equal(t, signed, held.Commit)
	assert.Equal(t, view("one"), p.read(viewPath))

	p.secret("authors/keys", string(openpgp))
	p.spec.git = "    verify: {mode: Tag, keysConfigMapRef: {name: authors, key: keys}, formats: [openpgp]}\n"
	p.spec.ref = "v1.0.0"
	p.saveSpec()
	p.synced(signed) // the tag of the page, signed with gpg
	p.spec.ref = "v1.1.0"
	p.repo.AnnotatedTag("v1.1.0", p.repo.Head())
	p.saveSpec()
	p.reason("SignatureInvalid")
	assert.Equal(t, view("one"), p.read(viewPath))
	p.stop()
}

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
