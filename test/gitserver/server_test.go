package gitserver_test

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
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
