package gitserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gitserver"
)

// start serves a repository with two commits and returns the server, the repository and the second commit.
func start(t *testing.T, opts gitserver.Options) (*gitserver.Server, *gitserver.Repo, string) {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	repo.Commit("first", gitserver.Write("projects/a/project.json", "{}"), gitserver.Write("big.txt", bigText()))
	second := repo.Commit("second", gitserver.Write("projects/a/view.json", `{"root":{}}`))
	srv, err := gitserver.Start(root, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return srv, repo, second
}

// bigText returns text that does not compress well, so that a pack has enough bytes to be truncated.
func bigText() string {
	var b strings.Builder
	for i, x := 0, uint64(1); i < 20000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b.WriteByte(' ' + byte(x>>33)%90)
	}
	return b.String()
}

// git runs git as a client and returns its output.
func git(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Env = gitserver.Env()
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestClone(t *testing.T) {
	srv, repo, second := start(t, gitserver.Options{})
	clone := filepath.Join(t.TempDir(), "clone")
	out, err := git(t, "clone", "-q", srv.URL("site.git"), clone)
	require.NoError(t, err, out)
	out, err = git(t, "-C", clone, "rev-parse", "HEAD")
	require.NoError(t, err, out)
	assert.Equal(t, second, strings.TrimSpace(out))

	stats := srv.Stats()
	assert.Equal(t, 2, stats.Advertisements, "protocol v2: capabilities, then refs")
	assert.Equal(t, 1, stats.UploadPacks)
	assert.Greater(t, stats.PackBytes, int64(10000))
	assert.Greater(t, stats.Out, stats.PackBytes)

	third := repo.Commit("third", gitserver.Write("projects/a/view.json", `{}`))
	srv.Forget()
	out, err = git(t, "-C", clone, "pull", "-q", "--ff-only")
	require.NoError(t, err, out)
	out, err = git(t, "-C", clone, "rev-parse", "HEAD")
	require.NoError(t, err, out)
	assert.Equal(t, third, strings.TrimSpace(out))
	assert.Less(t, srv.Stats().PackBytes, int64(2000), "an incremental fetch must be small")
}

func TestPackBytes(t *testing.T) {
	for name, args := range map[string][]string{"v0": {"-c", "protocol.version=0"}, "v2": {"-c", "protocol.version=2"}} {
		t.Run(name, func(t *testing.T) {
			srv, repo, _ := start(t, gitserver.Options{})
			clone := filepath.Join(t.TempDir(), "clone.git")
			args := append(args, "-c", "fetch.unpackLimit=1", "clone", "-q", "--bare", srv.URL("site.git"), clone)
			out, err := git(t, args...)
			require.NoError(t, err, out)
			packs, err := filepath.Glob(filepath.Join(clone, "objects/pack/*.pack"))
			require.NoError(t, err)
			require.Len(t, packs, 1)
			info, err := os.Stat(packs[0])
			require.NoError(t, err)
			assert.Equal(t, info.Size(), srv.Stats().PackBytes)
			assert.NotEmpty(t, repo.Head())
		})
	}
}

func TestFilteredShallowFetch(t *testing.T) {
	srv, repo, second := start(t, gitserver.Options{})
	first := repo.Git("rev-parse", second+"^")
	clone := filepath.Join(t.TempDir(), "c.git")
	_, err := git(t, "init", "-q", "--bare", clone)
	require.NoError(t, err)
	out, err := git(t, "-C", clone, "fetch", "-q", "--depth=1", "--filter=blob:none", srv.URL("site.git"), first)
	require.NoError(t, err, out)
	assert.Less(t, srv.Stats().PackBytes, int64(2000), "no blob was sent")
}

func TestPushIsRefused(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	clone := filepath.Join(t.TempDir(), "clone")
	out, err := git(t, "clone", "-q", srv.URL("site.git"), clone)
	require.NoError(t, err, out)
	_, err = git(t, "-C", clone, "push", "-q", "origin", "HEAD:other")
	require.Error(t, err)
}

func TestAuthReload(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{Auth: gitserver.Basic("git", "right")})
	withUser := func(userinfo string) string {
		return strings.Replace(srv.URL("site.git"), "://", "://"+userinfo+"@", 1)
	}
	_, err := git(t, "ls-remote", withUser("git:wrong"))
	require.Error(t, err)
	out, err := git(t, "ls-remote", withUser("git:right"))
	require.NoError(t, err, out)
	last := srv.Requests()[len(srv.Requests())-1]
	assert.True(t, last.Authorization)
	assert.Equal(t, "git", last.User)
	assert.Equal(t, http.StatusOK, last.Status)

	srv.SetAuth(gitserver.Token("fresh"))
	_, err = git(t, "ls-remote", withUser("git:right"))
	require.Error(t, err)
	out, err = git(t, "ls-remote", withUser("anybody:fresh"))
	require.NoError(t, err, out)
	out, err = git(t, "-c", "http.extraHeader=Authorization: Bearer fresh", "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)

	srv.SetAuth(nil)
	out, err = git(t, "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)
}

func TestTLSAuthority(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{TLS: true})
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, srv.CA(), 0o600))
	_, err := git(t, "ls-remote", srv.URL("site.git"))
	require.Error(t, err)
	out, err := git(t, "-c", "http.sslCAInfo="+ca, "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)
}

func TestCertificateForOtherAddress(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{Host: "127.0.0.2", TLS: true})
	assert.Contains(t, srv.URL(""), "https://127.0.0.2:")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, srv.CA(), 0o600))
	out, err := git(t, "-c", "http.sslCAInfo="+ca, "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)
}

func TestExpiredCertificate(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{TLS: true, NotAfter: time.Now().Add(-time.Hour)})
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(srv.CA()))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	res, err := client.Get(srv.URL("site.git") + "/info/refs?service=git-upload-pack")
	if err == nil {
		res.Body.Close()
	}
	var invalid x509.CertificateInvalidError
	require.ErrorAs(t, err, &invalid)
	assert.Equal(t, x509.Expired, invalid.Reason)
}

func TestCloseEndsHungGit(t *testing.T) {
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"))
	repo.Commit("first", gitserver.Write("a", "b"))
	// Git blocks forever when it opens a pipe without a writer.
	require.NoError(t, os.Remove(filepath.Join(repo.Dir, "HEAD")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(repo.Dir, "HEAD"), 0o600))
	srv, err := gitserver.Start(root, gitserver.Options{})
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() {
		res, err := http.Get(srv.URL("site.git") + "/info/refs?service=git-upload-pack")
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		ended <- err
	}()
	require.Eventually(t, func() bool { return backends(t, root) > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, srv.Close())
	assert.Zero(t, backends(t, root), "no git process may outlive the server")
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the client still waits")
	}
	require.NoError(t, srv.Close(), "a second Close must succeed")
}

// backends counts the git processes that serve root.
func backends(t *testing.T, root string) int {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	if len(environs) == 0 {
		t.Skip("no /proc to look for processes in")
	}
	n := 0
	for _, path := range environs {
		environ, err := os.ReadFile(path)
		if err == nil && bytes.Contains(environ, []byte("GIT_PROJECT_ROOT="+root+"\x00")) {
			n++
		}
	}
	return n
}

func TestStartWithMissingRoot(t *testing.T) {
	_, err := gitserver.Start(filepath.Join(t.TempDir(), "nothing"), gitserver.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}
