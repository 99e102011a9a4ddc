package gitserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start serves a repository with two commits and returns the server, the repository and the second commit.
func start(t *testing.T, opts Options) (*Server, *Repo, string) {
	t.Helper()
	root := t.TempDir()
	repo := NewRepo(t, filepath.Join(root, "site.git"))
	repo.Commit("first", Write("projects/a/project.json", "{}"), Write("big.txt", bigText()))
	second := repo.Commit("second", Write("projects/a/view.json", `{"root":{}}`))
	srv, err := Start(root, opts)
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
	cmd.Env = Env()
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestClone(t *testing.T) {
	srv, repo, second := start(t, Options{})
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

	third := repo.Commit("third", Write("projects/a/view.json", `{}`))
	srv.Forget()
	out, err = git(t, "-C", clone, "pull", "-q", "--ff-only")
	require.NoError(t, err, out)
	out, err = git(t, "-C", clone, "rev-parse", "HEAD")
	require.NoError(t, err, out)
	assert.Equal(t, third, strings.TrimSpace(out))
	assert.Less(t, srv.Stats().PackBytes, int64(2000), "an incremental fetch must be small")
}

func TestAuthReload(t *testing.T) {
	srv, _, _ := start(t, Options{Auth: Basic("git", "right")})
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

	srv.SetAuth(Token("fresh"))
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

func TestCommitsAsGit(t *testing.T) {
	commits := [][]Edit{
		{Write("a/b/c.txt", "c"), Write("a.txt", "file"), Write("a-b", "sorted before a/"), Script("run", "#!"), Symlink("link", "a.txt")},
		{Write("a/b/c.txt", "other"), Write("a/b/d.txt", ""), Delete("a.txt")},
		{Rename("a/b", "moved/deep"), Write("run/is/a/directory", "now")},
		{Delete("moved/deep/c.txt"), Delete("nothing/here"), Delete("run/nothing")},
		{Delete("moved/deep/d.txt"), Submodule("sub", strings.Repeat("ab", 20)), Write("é\n\"", "odd name")},
		{Chmod("link", false), Chmod("a-b", true)},
		{},
	}
	own, git := NewRepo(t, t.TempDir()), NewRepo(t, t.TempDir(), "--quiet")
	for i, edits := range commits { // each commit follows the one before it
		message := fmt.Sprintf("commit %d\n\nwith a body", i)
		t.Run(message[:8], func(t *testing.T) {
			var parents []string
			if head := git.Head(); head != "" {
				parents = []string{head}
			}
			c := &change{repo: git}
			for _, edit := range edits {
				edit(c)
			}
			want := git.fastImport(message, parents, 0, c.ops)
			git.commitTime += 60
			require.Equal(t, want, own.Commit(message, edits...), own.Git("ls-tree", "-r", "main"))
		})
	}
	own.Checkout("side")
	own.Branch("side", own.Git("rev-parse", "main~2"))
	own.Commit("side", Write("side.txt", "x"))
	own.Repack() // what this Repo wrote is read from a pack now
	again := &Repo{Dir: own.Dir, t: t, branch: "main", commitTime: own.commitTime, newHash: own.newHash, trees: map[string][]byte{}, roots: map[string]string{}}
	merge := again.Merge("merge", "side")
	assert.Equal(t, 2, strings.Count(own.Git("cat-file", "commit", merge), "parent "))
	assert.Equal(t, "x", own.Content("main", "side.txt"))
	assert.Empty(t, own.Git("fsck", "--strict", "--no-dangling"))
}

// The answers must be those of git http-backend, which the server runs only for what is rare.
func TestSameAsHTTPBackend(t *testing.T) {
	root := t.TempDir()
	repo := NewRepo(t, filepath.Join(root, "site.git"))
	commit := repo.Commit("first", Write("a", "b"))
	repo.AnnotatedTag("v1", commit)
	s, err := Start(root, Options{Pushes: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	want := string(pktLine("want "+commit+" ofs-delta no-progress\n")) + "0000" + string(pktLine("done\n"))
	v2 := string(pktLine("command=ls-refs\n")) + "0001" + string(pktLine("peel\n")) + "0000"
	requests := map[string]struct{ method, path, protocol, kind, body string }{
		"advertisement":        {"GET", "/site.git/info/refs?service=git-upload-pack", "", "", ""},
		"capabilities of v2":   {"GET", "/site.git/info/refs?service=git-upload-pack", "version=2", "", ""},
		"advertisement of v1":  {"GET", "/site.git/info/refs?service=git-upload-pack", "version=1", "", ""},
		"push advertisement":   {"GET", "/site.git/info/refs?service=git-receive-pack", "", "", ""},
		"refs of v2":           {"POST", "/site.git/git-upload-pack", "version=2", "application/x-git-upload-pack-request", v2},
		"fetch":                {"POST", "/site.git/git-upload-pack", "", "application/x-git-upload-pack-request", want},
		"nothing is wanted":    {"POST", "/site.git/git-upload-pack", "", "application/x-git-upload-pack-request", "0000"},
		"garbage":              {"POST", "/site.git/git-upload-pack", "", "application/x-git-upload-pack-request", "zzzz"},
		"another content type": {"POST", "/site.git/git-upload-pack", "", "text/plain", want},
		"another method":       {"POST", "/site.git/info/refs?service=git-upload-pack", "", "", ""},
		"no such repository":   {"GET", "/none.git/info/refs?service=git-upload-pack", "", "", ""},
		"a file":               {"GET", "/site.git/HEAD", "", "", ""},
		"outside":              {"GET", "/../site.git/info/refs?service=git-upload-pack", "", "", ""},
	}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		t.Run(name, func(t *testing.T) {
			r := requests[name]
			answer := func(handler http.Handler) (int, http.Header, string) {
				request := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
				request.Header.Set("Content-Type", r.kind)
				if r.protocol != "" {
					request.Header.Set("Git-Protocol", r.protocol)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, request)
				w.Header().Del("Content-Length") // http-backend gives it with its own errors
				return w.Code, w.Header(), w.Body.String()
			}
			backend := &cgi.Handler{Path: s.backend, Dir: root, Stderr: os.Stderr, Env: append(Env(),
				append(configEnv([2]string{"uploadpack.allowFilter", "true"}, [2]string{"uploadpack.allowAnySHA1InWant", "true"},
					[2]string{"http.getanyfile", "false"}, [2]string{"http.receivepack", "true"}, [2]string{"safe.directory", "*"}),
					"GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1")...)}
			wantStatus, wantHeader, wantBody := answer(backend)
			status, header, body := answer(http.HandlerFunc(s.serve))
			assert.Equal(t, wantStatus, status)
			assert.Equal(t, wantHeader, header)
			assert.Equal(t, wantBody, body)
		})
	}
}

// A poll of the refs must not find a file that is being written.
func TestCommitWritesNoOtherRef(t *testing.T) {
	repo := NewRepo(t, filepath.Join(t.TempDir(), "site.git"))
	w, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	heads := filepath.Join(repo.Dir, "refs", "heads")
	require.NoError(t, w.Add(heads))
	repo.Commit("first", Write("a", "a"))
	select {
	case e := <-w.Events:
		assert.Equal(t, filepath.Join(heads, "main"), e.Name)
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
	}
}
