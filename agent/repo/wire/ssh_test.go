package wire

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// shellSite is a repository behind an ssh server.
type shellSite struct {
	*repotest.ShellSite
	t testing.TB
}

func newShellSite(t testing.TB, o gitserver.SSHOptions, initArgs ...string) *shellSite {
	t.Helper()
	return &shellSite{repotest.NewShellSite(t, o, initArgs...), t}
}

func (s *shellSite) url() URL { return parseURL(s.t, s.Address()) }

// auth returns the key of the client and the key of the host.
func (s *shellSite) auth() Auth {
	return Auth{Key: repotest.Token(s.Key), KnownHosts: s.KnownHosts}
}

func (s *shellSite) client() *testClient { return newClient(s.t, s.url(), s.auth(), Options{}) }

func (s *shellSite) resolve(a Auth, o Options) error {
	s.t.Helper()
	_, err := newClient(s.t, s.url(), a, o).Resolve(s.t.Context(), "main")
	return err
}

func hosts(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(text), nil }
}

func TestFetchOverSSH(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	first := g.Push("first", repotest.Views(200))
	s, r := openStore(t, store.Options{}), g.client()
	res, stats := pull(t, s, r, "main")
	assert.Equal(t, resolution{"refs/heads/main", first}, res)
	assert.Equal(t, store.Empty, stats.Condition)
	repotest.RequireSame(t, g, s, first)

	second := g.Push("second", repotest.EditView(3, 1))
	_, stats = pull(t, s, r, "main")
	assert.Equal(t, store.Ready, stats.Condition)
	assert.Less(t, stats.Bytes, int64(1500+len(repotest.View(3, 1))))
	repotest.RequireSame(t, g, s, second)

	g.AnnotatedTag("v1", first.String())
	res, _ = pull(t, s, r, "v1")
	assert.Equal(t, first, res.Commit)
	for _, c := range g.Server.Commands() {
		assert.Equal(t, "git-upload-pack '/site.git'", c, "one program, one quoted path")
	}
}

// By default, upload-pack serves only commits that are tips of refs.
func TestRefusedCommitByBranchOverSSH(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	old := g.Push("old", repotest.Views(10))
	g.History(100, func(int) string { return "more.txt" }, func(i int) string { return strings.Repeat("x", i) })
	s := openStore(t, store.Options{})
	_, err := s.Fetch(t.Context(), g.client(), old, "refs/heads/main")
	require.NoError(t, err)
	repotest.RequireSame(t, g, s, old)
	g.AnnotatedTag("v1", old.String()) // the tagged commit is not a tip for such a server
	for name, ref := range map[string]string{"tag": "refs/tags/v1", "no ref": ""} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, store.Options{})
			stats, err := s.Fetch(t.Context(), g.client(), old, ref)
			require.NoError(t, err)
			repotest.RequireSame(t, g, s, old)
			if ref != "" {
				assert.Less(t, stats.Objects, 60, "the fetch brings only the tagged commit")
			}
		})
	}
	_, err = openStore(t, store.Options{}).Fetch(t.Context(), g.client(), repotest.ParseID(t, strings.Repeat("1", 40)), "main")
	repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
}

// A server that rejects a request ends its program while the client still writes. The write fails, but the client must still
// report the message of the server.
func TestServerMessageBeforeDisconnect(t *testing.T) {
	const words = "upload-pack: not our ref"
	for name, server := range map[string]gitserver.SSHOptions{
		"in an ERR line":        {Refuse: words},
		"on its standard error": {Refuse: words, RefuseOnStderr: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newShellSite(t, gitserver.SSHOptions{})
			commit := g.Push("first", repotest.Views(1))
			server.Users = map[string]ssh.PublicKey{"git": g.Public}
			g.Server.Set(server)

			shell := &sshTransport{url: g.url(), auth: g.auth(), opts: Options{}.WithDefaults()}
			run, err := shell.connect(t.Context(), &exchange{dog: &watchdog{}})
			require.NoError(t, err)
			defer run.close()
			run.in = &lateWriter{run.in, t, run.session}
			_, err = run.request((&advertisement{caps: capability.NewList()}).request(step{wants: []plan.ID{commit}}))
			require.ErrorContains(t, err, words)
			assert.True(t, IsRefused(err), "the client may ask for another ref")

			_, err = openStore(t, store.Options{}).Fetch(t.Context(), g.client(), repotest.ParseID(t, strings.Repeat("1", 40)), "main")
			repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
			assert.ErrorContains(t, err, words)
		})
	}
}

// lateWriter writes after the server has hung up.
type lateWriter struct {
	io.WriteCloser
	t       *testing.T
	session *ssh.Session
}

func (w *lateWriter) Write(p []byte) (int, error) {
	require.Eventually(w.t, func() bool {
		_, err := w.session.SendRequest("are-you-there", false, nil)
		return errors.Is(err, io.EOF)
	}, time.Minute, time.Millisecond)
	n, err := w.WriteCloser.Write(p)
	assert.ErrorIs(w.t, err, io.EOF)
	return n, err
}

func TestUnreadableRepositoriesOverSSH(t *testing.T) {
	t.Run("no key is AuthFailed", func(t *testing.T) {
		err := newShellSite(t, gitserver.SSHOptions{}).resolve(Auth{}, Options{})
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
	})
	t.Run("an empty repository has no refs, and a fetch is RefNotFound", func(t *testing.T) {
		c := newShellSite(t, gitserver.SSHOptions{}).client()
		refs, err := c.Refs(t.Context())
		require.NoError(t, err)
		assert.Empty(t, refs.ByName)
		_, err = openStore(t, store.Options{}).Fetch(t.Context(), c, plan.ID{1}, "main")
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
		assert.ErrorContains(t, err, "is empty")
	})
	t.Run("a missing repository is RefNotFound with the server's message", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		r := newClient(t, parseURL(t, g.Server.URL("git", "other.git")), g.auth(), Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
		assert.ErrorContains(t, err, "does not appear to be a git repository")
	})
	t.Run("object format sha256 is UnsupportedRepository", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{}, "--object-format=sha256")
		g.Commit("first", repotest.Views(1))
		err := g.resolve(g.auth(), Options{})
		repotest.RequireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
		assert.ErrorContains(t, err, "sha256")
	})
	t.Run("too many refs are LimitExceeded", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		g.Push("first", repotest.Views(1))
		for i := range 30 {
			g.Tag("t"+strings.Repeat("x", i), g.Head())
		}
		repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, g.resolve(g.auth(), Options{MaxRefs: 20}))
		repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, g.resolve(g.auth(), Options{MaxBytes: 500}))
	})
}

// F5: any path is a single word for the shell of the server.
func TestSSHPathIsQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"ssh://h/a.git":             `git-upload-pack '/a.git'`,
		"ssh://h/~user/a.git":       `git-upload-pack '~user/a.git'`,
		"git@h:a.git":               `git-upload-pack 'a.git'`,
		"git@h:/a.git":              `git-upload-pack '/a.git'`,
		"ssh://h/a';touch%20x;'":    `git-upload-pack '/a'\'';touch x;'\'''`,
		"git@h:a$(touch)`x`\\!.git": `git-upload-pack 'a$(touch)` + "`x`" + `\'\!'.git'`,
	} {
		t.Run(in, func(t *testing.T) {
			assert.Equal(t, want, parseURL(t, in).command(uploadPack), in)
		})
	}
	g := newShellSite(t, gitserver.SSHOptions{})
	odd := gitserver.NewRepo(t, filepath.Join(filepath.Dir(g.Dir), "it's!.git"))
	head := odd.Commit("first", gitserver.Write("a", "a"))
	res, err := newClient(t, parseURL(t, g.Server.URL("git", "it's!.git")), g.auth(), Options{}).Resolve(t.Context(), "main")
	require.NoError(t, err)
	assert.Equal(t, head, res.Commit.String())
}

func TestSSHKeys(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.Push("first", repotest.Views(1))
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(private, tripwire, []byte(tripwire))
	require.NoError(t, err)
	_, other, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		key  func() (secret.String, error)
		says string
	}{
		"no key":                    {nil, "git.auth.sshKey"},
		"passphrase":                {repotest.Token(string(pem.EncodeToMemory(locked))), "passphrase"},
		"not a key":                 {repotest.Token(tripwire), "not a private key"},
		"public key":                {repotest.Token(string(ssh.MarshalAuthorizedKey(g.Public))), "is a public key"},
		"key that the host rejects": {repotest.Token(other), "rejects the ssh key"},
		"unreadable file":           {func() (secret.String, error) { return secret.String{}, errors.New("no such file") }, "no such file"},
		"half a key":                {repotest.Token(g.Key[:len(g.Key)/2]), "not a private key"},
		"empty key":                 {repotest.Token(""), "not a private key"},
	} {
		t.Run(name, func(t *testing.T) {
			a := g.auth()
			a.Key = tt.key
			err := g.resolve(a, Options{})
			repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.ErrorContains(t, err, tt.says)
		})
	}
	t.Run("a rotated key is used at once, with or without a final newline", func(t *testing.T) {
		current := other
		r := newClient(t, g.url(), Auth{Key: func() (secret.String, error) { return secret.New(current), nil }, KnownHosts: hosts(g.Server.KnownHosts())}, Options{})
		_, err := r.Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		current = strings.TrimSpace(g.Key)
		_, err = r.Resolve(t.Context(), "main")
		require.NoError(t, err)
	})
	t.Run("another user is refused", func(t *testing.T) {
		_, err := newClient(t, parseURL(t, g.Server.URL("root", "site.git")), g.auth(), Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.Contains(t, g.Server.Users(), "root")
	})
}

// The client ignores the ssh setup of the machine: agent, configuration, known hosts and user name.
func TestMachineSSHConfigIsIgnored(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.Push("first", repotest.Views(1))
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "config"), []byte("Host *\n User thief\n Hostname 192.0.2.1\n Port 1\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "known_hosts"), []byte(g.Server.KnownHosts()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "id_ed25519"), []byte(g.Key), 0o600))
	agent, err := net.Listen("unix", filepath.Join(home, "agent"))
	require.NoError(t, err)
	defer func() { _ = agent.Close() }()
	asked := make(chan struct{}, 1)
	go func() {
		for {
			c, err := agent.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			asked <- struct{}{}
		}
	}()
	for k, v := range map[string]string{
		"HOME": home, "SSH_AUTH_SOCK": agent.Addr().String(), "SSH_KNOWN_HOSTS": filepath.Join(home, ".ssh", "known_hosts"), "USER": "thief",
		"GIT_SSH_COMMAND": "touch " + filepath.Join(home, "canary"),
	} {
		t.Setenv(k, v)
	}
	repotest.RequireReason(t, v1alpha1.ReasonAuthFailed, g.resolve(Auth{KnownHosts: hosts(g.Server.KnownHosts())}, Options{}))
	repotest.RequireReason(t, v1alpha1.ReasonHostKeyUnknown, g.resolve(Auth{Key: repotest.Token(g.Key)}, Options{}))
	u := parseURL(t, strings.Replace(g.Server.URL("git", "site.git"), "git@", "", 1))
	_, err = newClient(t, u, g.auth(), Options{}).Resolve(t.Context(), "main")
	require.NoError(t, err, "the default user is git")
	assert.NotContains(t, g.Server.Users(), "thief")
	assert.Empty(t, asked)
	assert.NoFileExists(t, filepath.Join(home, "canary"))
}

func TestSilentSSHServers(t *testing.T) {
	for name, tt := range map[string]struct {
		server gitserver.SSHOptions
		client Options
	}{
		"before the handshake":      {gitserver.SSHOptions{StallHello: true}, Options{Handshake: 100 * time.Millisecond}},
		"before the refs":           {gitserver.SSHOptions{StallAfter: 1}, Options{StallWindow: 150 * time.Millisecond}},
		"in the middle of the refs": {gitserver.SSHOptions{StallAfter: 100}, Options{StallWindow: 150 * time.Millisecond}},
		"over the time for refs":    {gitserver.SSHOptions{StallAfter: 100}, Options{Advertise: 100 * time.Millisecond}},
		"in the middle of the pack": {gitserver.SSHOptions{StallAfter: 5000}, Options{StallWindow: 150 * time.Millisecond}},
		"over the total time":       {gitserver.SSHOptions{StallAfter: 5000}, Options{Total: 500 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newShellSite(t, gitserver.SSHOptions{})
			commit := g.Push("first", repotest.Views(200))
			tt.server.Users = map[string]ssh.PublicKey{"git": g.Public}
			g.Server.Set(tt.server)
			r := newClient(t, g.url(), g.auth(), tt.client)
			_, err := r.Resolve(t.Context(), "main")
			if err == nil {
				_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, commit, "main")
			}
			repotest.RequireReason(t, v1alpha1.ReasonGitTimeout, err)
		})
	}
	t.Run("a missing server is GitUnreachable", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		u, a := g.url(), g.auth()
		require.NoError(t, g.Server.Close())
		_, err := newClient(t, u, a, Options{}).Resolve(t.Context(), "main")
		repotest.RequireReason(t, v1alpha1.ReasonGitUnreachable, err)
	})
}

func TestSSHKeyIsNotLogged(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.Push("first", repotest.Views(3))
	var log bytes.Buffer
	l := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newClient(t, g.url(), g.auth(), Options{Log: l})
	pull(t, openStore(t, store.Options{Log: l}), r, "main")
	l.Info("x", "remote", r, "url", r.url)
	for line := range strings.Lines(g.Key) {
		assert.NotContains(t, log.String(), strings.TrimSpace(line)[:20])
	}
}
