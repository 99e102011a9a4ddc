package repo

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

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// shellSite is a repository behind a real ssh server.
type shellSite struct {
	*site
	srv *gitserver.SSHServer
	key string // of the user git, in PEM
	pub ssh.PublicKey
}

func newShellSite(t testing.TB, o gitserver.SSHOptions, initArgs ...string) *shellSite {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"), initArgs...)
	signer, text, err := gitserver.NewSSHKey()
	require.NoError(t, err)
	if o.Users == nil {
		o.Users = map[string]ssh.PublicKey{"git": signer.PublicKey()}
	}
	srv, err := gitserver.StartSSH(root, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return &shellSite{&site{Repo: repo, t: t}, srv, text, signer.PublicKey()}
}

func (s *shellSite) url() URL { return parseURL(s.t, s.srv.URL("git", "site.git")) }

// auth knows the key and the host.
func (s *shellSite) auth() Auth {
	return Auth{Key: token(s.key), KnownHosts: hosts(s.srv.KnownHosts())}
}

func (s *shellSite) remote() *Remote { return newRemote(s.t, s.url(), s.auth(), RemoteOptions{}) }

func (s *shellSite) resolve(a Auth, o RemoteOptions) error {
	s.t.Helper()
	_, err := newRemote(s.t, s.url(), a, o).Resolve(s.t.Context(), parseRef(s.t, "main"))
	return err
}

func hosts(text string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(text), nil }
}

func TestFetchOverSSHBringsWhatHTTPSBrings(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	first := g.commit("first", views(200))
	s, r := openStore(t, t.TempDir()), g.remote()
	res, stats := pull(t, s, r, "main")
	assert.Equal(t, Resolution{"refs/heads/main", first}, res)
	assert.Equal(t, FetchFirst, stats.Kind)
	requireSame(t, g.site, s, first)

	second := g.commit("second", editView(3, 1))
	_, stats = pull(t, s, r, "main")
	assert.Equal(t, FetchIncremental, stats.Kind)
	assert.Less(t, stats.Bytes, int64(1500+len(view(3, 1))))
	requireSame(t, g.site, s, second)

	g.AnnotatedTag("v1", first.String())
	res, _ = pull(t, s, r, "v1")
	assert.Equal(t, first, res.Commit)
	for _, c := range g.srv.Commands() {
		assert.Equal(t, "git-upload-pack '/site.git'", c, "one program, one quoted path")
	}
}

// A server that gives commits by the tips of refs only, as upload-pack does by default.
func TestACommitThatTheServerRefusesComesByItsBranchOverSSH(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	old := g.commit("old", views(10))
	g.history(100, func(int) string { return "more.txt" }, func(i int) string { return strings.Repeat("x", i) })
	s := openStore(t, t.TempDir())
	_, err := s.Fetch(t.Context(), g.remote(), old, "refs/heads/main")
	require.NoError(t, err)
	requireSame(t, g.site, s, old)
	g.AnnotatedTag("v1", old.String()) // what it points to is no tip for such a server
	for _, ref := range []string{"refs/tags/v1", ""} {
		s := openStore(t, t.TempDir())
		stats, err := s.Fetch(t.Context(), g.remote(), old, ref)
		require.NoError(t, err)
		requireSame(t, g.site, s, old)
		if ref != "" {
			assert.Less(t, stats.Objects, 60, "the tagged commit alone")
		}
	}
	_, err = openStore(t, t.TempDir()).Fetch(t.Context(), g.remote(), parseID(t, strings.Repeat("1", 40)), "main")
	requireReason(t, v1alpha1.ReasonRefNotFound, err)
}

// A server that refuses ends its program while the client still writes, and so the write fails; its words are there all the
// same.
func TestWhatAServerSaysBeforeItHangsUpIsHeard(t *testing.T) {
	const words = "upload-pack: not our ref"
	for name, server := range map[string]gitserver.SSHOptions{
		"in an ERR line":        {Refuse: words},
		"on its standard error": {Refuse: words, RefuseAside: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newShellSite(t, gitserver.SSHOptions{})
			commit := g.commit("first", views(1))
			server.Users = map[string]ssh.PublicKey{"git": g.pub}
			g.srv.Set(server)

			wire := &secureShell{url: g.url(), auth: g.auth(), opts: RemoteOptions{}.withDefaults()}
			run, err := wire.talk(t.Context(), &exchange{dog: &watchdog{}})
			require.NoError(t, err)
			defer run.hangUp()
			run.in = &lateWriter{run.in, t, run.session}
			_, err = run.request((&advert{caps: capability.NewList()}).request(step{want: commit}))
			require.ErrorContains(t, err, words)
			assert.True(t, refused(err), "another way to ask may have more luck")

			_, err = openStore(t, t.TempDir()).Fetch(t.Context(), g.remote(), parseID(t, strings.Repeat("1", 40)), "main")
			requireReason(t, v1alpha1.ReasonRefNotFound, err)
			assert.ErrorContains(t, err, words)
		})
	}
}

// lateWriter writes when the server has hung up.
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

func TestRepositoriesOverSSHThatCannotBeRead(t *testing.T) {
	t.Run("an empty one says so", func(t *testing.T) {
		err := newShellSite(t, gitserver.SSHOptions{}).resolve(Auth{}, RemoteOptions{})
		requireReason(t, v1alpha1.ReasonAuthFailed, err)
		g := newShellSite(t, gitserver.SSHOptions{})
		requireReason(t, v1alpha1.ReasonRefNotFound, g.resolve(g.auth(), RemoteOptions{}))
	})
	t.Run("one that is not there is RefNotFound with the server's words", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		r := newRemote(t, parseURL(t, g.srv.URL("git", "other.git")), g.auth(), RemoteOptions{})
		_, err := r.Resolve(t.Context(), parseRef(t, "main"))
		requireReason(t, v1alpha1.ReasonRefNotFound, err)
		assert.ErrorContains(t, err, "does not appear to be a git repository")
	})
	t.Run("object format sha256 is UnsupportedRepository", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{}, "--object-format=sha256")
		g.Commit("first", views(1))
		err := g.resolve(g.auth(), RemoteOptions{})
		requireReason(t, v1alpha1.ReasonUnsupportedRepository, err)
		assert.ErrorContains(t, err, "sha256")
	})
	t.Run("too many refs are LimitExceeded", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		g.commit("first", views(1))
		for i := range 30 {
			g.Tag("t"+strings.Repeat("x", i), g.Head())
		}
		requireReason(t, v1alpha1.ReasonLimitExceeded, g.resolve(g.auth(), RemoteOptions{MaxRefs: 20}))
		requireReason(t, v1alpha1.ReasonLimitExceeded, g.resolve(g.auth(), RemoteOptions{MaxBytes: 500}))
	})
}

// F5: whatever a path holds, the server's shell sees one word.
func TestThePathOfAnSSHAddressIsOneWord(t *testing.T) {
	for in, want := range map[string]string{
		"ssh://h/a.git":             `git-upload-pack '/a.git'`,
		"ssh://h/~user/a.git":       `git-upload-pack '~user/a.git'`,
		"git@h:a.git":               `git-upload-pack 'a.git'`,
		"git@h:/a.git":              `git-upload-pack '/a.git'`,
		"ssh://h/a';touch%20x;'":    `git-upload-pack '/a'\'';touch x;'\'''`,
		"git@h:a$(touch)`x`\\!.git": `git-upload-pack 'a$(touch)` + "`x`" + `\'\!'.git'`,
	} {
		assert.Equal(t, want, parseURL(t, in).command(), in)
	}
	g := newShellSite(t, gitserver.SSHOptions{})
	odd := gitserver.NewRepo(t, filepath.Join(filepath.Dir(g.Dir), "it's!.git"))
	head := odd.Commit("first", gitserver.Write("a", "a"))
	res, err := newRemote(t, parseURL(t, g.srv.URL("git", "it's!.git")), g.auth(), RemoteOptions{}).Resolve(t.Context(), parseRef(t, "main"))
	require.NoError(t, err)
	assert.Equal(t, head, res.Commit.String())
}

func TestSSHKeys(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.commit("first", views(1))
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
		"none says which field":              {nil, "git.auth.sshKey"},
		"one with a passphrase says so":      {token(string(pem.EncodeToMemory(locked))), "passphrase"},
		"one that is no key says so":         {token(tripwire), "no private key"},
		"the public half says so":            {token(string(ssh.MarshalAuthorizedKey(g.pub))), "public half"},
		"one that the host does not take":    {token(other), "does not take the ssh key"},
		"one that cannot be read says so":    {func() (secret.String, error) { return secret.String{}, errors.New("no such file") }, "no such file"},
		"one cut in the middle is no key":    {token(g.key[:len(g.key)/2]), "no private key"},
		"an empty one is no key, not no one": {token(""), "no private key"},
	} {
		t.Run(name, func(t *testing.T) {
			a := g.auth()
			a.Key = tt.key
			err := g.resolve(a, RemoteOptions{})
			requireReason(t, v1alpha1.ReasonAuthFailed, err)
			assert.ErrorContains(t, err, tt.says)
		})
	}
	t.Run("a rotated one counts at once, with or without its last newline", func(t *testing.T) {
		current := other
		r := newRemote(t, g.url(), Auth{Key: func() (secret.String, error) { return secret.New(current), nil }, KnownHosts: hosts(g.srv.KnownHosts())}, RemoteOptions{})
		_, err := r.Resolve(t.Context(), parseRef(t, "main"))
		requireReason(t, v1alpha1.ReasonAuthFailed, err)
		current = strings.TrimSpace(g.key)
		_, err = r.Resolve(t.Context(), parseRef(t, "main"))
		require.NoError(t, err)
	})
	t.Run("another user is not let in", func(t *testing.T) {
		_, err := newRemote(t, parseURL(t, g.srv.URL("root", "site.git")), g.auth(), RemoteOptions{}).Resolve(t.Context(), parseRef(t, "main"))
		requireReason(t, v1alpha1.ReasonAuthFailed, err)
		assert.Contains(t, g.srv.Users(), "root")
	})
}

// Nothing of the machine's ssh counts: no agent, no configuration, no known hosts, no user name.
func TestNothingOfTheMachinesSSHCounts(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.commit("first", views(1))
	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "config"), []byte("Host *\n User thief\n Hostname 192.0.2.1\n Port 1\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "known_hosts"), []byte(g.srv.KnownHosts()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", "id_ed25519"), []byte(g.key), 0o600))
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
	requireReason(t, v1alpha1.ReasonAuthFailed, g.resolve(Auth{KnownHosts: hosts(g.srv.KnownHosts())}, RemoteOptions{}))
	requireReason(t, v1alpha1.ReasonHostKeyUnknown, g.resolve(Auth{Key: token(g.key)}, RemoteOptions{}))
	u := parseURL(t, strings.Replace(g.srv.URL("git", "site.git"), "git@", "", 1))
	_, err = newRemote(t, u, g.auth(), RemoteOptions{}).Resolve(t.Context(), parseRef(t, "main"))
	require.NoError(t, err, "the user is git where the address names nobody")
	assert.NotContains(t, g.srv.Users(), "thief")
	assert.Empty(t, asked)
	assert.NoFileExists(t, filepath.Join(home, "canary"))
}

func TestSSHServersThatGoSilentAreGitTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		server gitserver.SSHOptions
		client RemoteOptions
	}{
		"before the handshake":        {gitserver.SSHOptions{StallHello: true}, RemoteOptions{Handshake: 100 * time.Millisecond}},
		"before the refs":             {gitserver.SSHOptions{StallAfter: 1}, RemoteOptions{StallWindow: 150 * time.Millisecond}},
		"in the middle of the refs":   {gitserver.SSHOptions{StallAfter: 100}, RemoteOptions{StallWindow: 150 * time.Millisecond}},
		"the refs take too long":      {gitserver.SSHOptions{StallAfter: 100}, RemoteOptions{Advertise: 100 * time.Millisecond}},
		"in the middle of the pack":   {gitserver.SSHOptions{StallAfter: 5000}, RemoteOptions{StallWindow: 150 * time.Millisecond}},
		"the whole fetch is too long": {gitserver.SSHOptions{StallAfter: 5000}, RemoteOptions{Total: 500 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newShellSite(t, gitserver.SSHOptions{})
			commit := g.commit("first", views(200))
			tt.server.Users = map[string]ssh.PublicKey{"git": g.pub}
			g.srv.Set(tt.server)
			r := newRemote(t, g.url(), g.auth(), tt.client)
			_, err := r.Resolve(t.Context(), parseRef(t, "main"))
			if err == nil {
				_, err = openStore(t, t.TempDir()).Fetch(t.Context(), r, commit, "main")
			}
			requireReason(t, v1alpha1.ReasonGitTimeout, err)
		})
	}
	t.Run("a server that is not there is GitUnreachable", func(t *testing.T) {
		g := newShellSite(t, gitserver.SSHOptions{})
		u, a := g.url(), g.auth()
		require.NoError(t, g.srv.Close())
		_, err := newRemote(t, u, a, RemoteOptions{}).Resolve(t.Context(), parseRef(t, "main"))
		requireReason(t, v1alpha1.ReasonGitUnreachable, err)
	})
}

func TestNoLogLineHoldsTheSSHKey(t *testing.T) {
	g := newShellSite(t, gitserver.SSHOptions{})
	g.commit("first", views(3))
	var log bytes.Buffer
	l := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := newRemote(t, g.url(), g.auth(), RemoteOptions{Log: l})
	pull(t, openStoreWith(t, t.TempDir(), StoreOptions{Log: l}), r, "main")
	l.Info("x", "remote", r, "url", r.URL())
	for line := range strings.Lines(g.key) {
		assert.NotContains(t, log.String(), strings.TrimSpace(line)[:20])
	}
}
