package gitserver_test

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gitserver"
)

func advertisement(srv *gitserver.Server) string {
	return srv.URL("site.git") + "/info/refs?service=git-upload-pack"
}

func TestTruncateOnce(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Truncate(5000).On(gitserver.UploadPack).Times(1))
	clone := filepath.Join(t.TempDir(), "clone")
	_, err := git(t, "-c", "protocol.version=0", "clone", "-q", srv.URL("site.git"), clone)
	require.Error(t, err)
	requests := srv.Requests()
	last := requests[len(requests)-1]
	assert.Equal(t, gitserver.UploadPack, last.Service)
	assert.Equal(t, int64(5000), last.Out)

	out, err := git(t, "-c", "protocol.version=0", "clone", "-q", srv.URL("site.git"), clone)
	require.NoError(t, err, out)
}

func TestTruncatedAnswer(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Truncate(10))
	res, err := http.Get(advertisement(srv))
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Len(t, body, 10)
}

func TestStall(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Stall(20))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, advertisement(srv), nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, 20))
	require.NoError(t, err)
	assert.Equal(t, 1, srv.InFlight())
	assert.Equal(t, int64(20), srv.Stats().Out, "the server counts what the client has before the request ends")
	cancel()
	require.Eventually(t, func() bool { return srv.InFlight() == 0 }, 30*time.Second, time.Millisecond)
	assert.Equal(t, int64(20), srv.Requests()[0].Out)
}

func TestCloseEndsStalledFetch(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Stall(0).On(gitserver.UploadPack))
	cmd := exec.CommandContext(t.Context(), "git", "clone", "-q", srv.URL("site.git"), filepath.Join(t.TempDir(), "clone"))
	cmd.Env = gitserver.Env()
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return srv.Stats().UploadPacks > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, srv.Close())
	require.Error(t, cmd.Wait())
}

func TestSlowAnswer(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Slow(40_000).On(gitserver.UploadPack))
	began := time.Now()
	out, err := git(t, "clone", "-q", srv.URL("site.git"), filepath.Join(t.TempDir(), "clone"))
	require.NoError(t, err, out)
	want := time.Duration(srv.Stats().PackBytes) * time.Second / 40_000
	assert.GreaterOrEqual(t, time.Since(began), want)
}

func TestStatusFault(t *testing.T) {
	for _, code := range []int{401, 403, 404, 429, 500, 503} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			srv, _, _ := start(t, gitserver.Options{})
			srv.Inject(gitserver.Status(code).For("site.git").On(gitserver.Advertisement).Times(1))
			res, err := http.Get(advertisement(srv))
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			assert.Equal(t, code, res.StatusCode)
			assert.Equal(t, code == 401, res.Header.Get("WWW-Authenticate") != "")

			res, err = http.Get(advertisement(srv))
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			assert.Equal(t, http.StatusOK, res.StatusCode, "the fault must apply to one request")
		})
	}
}

func TestThrottleRetryAfter(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	remove := srv.Inject(gitserver.Throttle(7 * time.Second))
	res, err := http.Get(advertisement(srv))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	assert.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	assert.Equal(t, "7", res.Header.Get("Retry-After"))
	remove()
	out, err := git(t, "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)
}

func TestFaultsArePerRepository(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Status(500).For("other.git"))
	out, err := git(t, "ls-remote", srv.URL("site.git"))
	require.NoError(t, err, out)
}

func TestHealClearsFaults(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Status(500))
	srv.Refuse(gitserver.Shallow)
	srv.Heal()
	out, err := git(t, "clone", "-q", "--depth=1", srv.URL("site.git"), filepath.Join(t.TempDir(), "clone"))
	require.NoError(t, err, out)
}

func TestRedirect(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	other, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Redirect(other.URL("")))
	out, err := git(t, "clone", "-q", srv.URL("site.git"), filepath.Join(t.TempDir(), "clone"))
	require.NoError(t, err, out) // git itself follows the first redirect
	assert.Equal(t, 1, srv.Stats().Requests)
	assert.Positive(t, other.Stats().UploadPacks)
	assert.Equal(t, "site.git", other.Requests()[0].Repo)
}

func TestRewriteAnswer(t *testing.T) {
	srv, _, _ := start(t, gitserver.Options{})
	srv.Inject(gitserver.Rewrite(func([]byte) []byte { return []byte("hello") }).On(gitserver.Advertisement))
	res, err := http.Get(advertisement(srv))
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(body))
}
