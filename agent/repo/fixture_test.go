package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// gitRepo is a bare repository with a work tree beside it, driven by the real git.
type gitRepo struct {
	t    testing.TB
	bare string
	work string
}

func newGitRepo(t testing.TB) *gitRepo {
	t.Helper()
	dir := t.TempDir()
	g := &gitRepo{t: t, bare: filepath.Join(dir, "plant.git"), work: filepath.Join(dir, "work")}
	require.NoError(t, os.Mkdir(g.work, 0o755))
	g.git("init", "-q", "--bare", "-b", "main", g.bare)
	g.git("config", "http.receivepack", "false")
	return g
}

func gitCommand(t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.com",
		"GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z",
	}
	return cmd
}

// git runs git on the bare repository, with the work tree.
func (g *gitRepo) git(args ...string) string {
	g.t.Helper()
	var stderr bytes.Buffer
	if args[0] != "init" {
		args = append([]string{"--git-dir", g.bare, "--work-tree", g.work}, args...)
	}
	cmd := gitCommand(g.t, g.work, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(g.t, err, "git %v: %s", args, stderr.String())
	return strings.TrimSpace(string(out))
}

func (g *gitRepo) write(path, content string) {
	g.t.Helper()
	full := filepath.Join(g.work, path)
	require.NoError(g.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(g.t, os.WriteFile(full, []byte(content), 0o644))
}

// commit commits all of the work tree to the current branch.
func (g *gitRepo) commit(message string) plan.ID {
	g.t.Helper()
	g.git("add", "-A")
	g.git("commit", "-q", "--allow-empty", "-m", message)
	return g.id("HEAD")
}

func (g *gitRepo) id(rev string) plan.ID {
	g.t.Helper()
	id, err := plan.ParseID(g.git("rev-parse", rev))
	require.NoError(g.t, err)
	return id
}

// plant fills the work tree with n files that look like a project's.
func (g *gitRepo) plant(n int) {
	for i := range n {
		g.write(fmt.Sprintf("projects/p%d/views/v%03d/view.json", i%7, i), viewJSON(i, 0))
		g.write(fmt.Sprintf("projects/p%d/views/v%03d/resource.json", i%7, i), fmt.Sprintf(`{"scope":"G","version":%d}`, i))
	}
	g.write("README.md", "plant\n")
}

func viewJSON(i, rev int) string {
	var b strings.Builder
	for k := range 30 {
		fmt.Fprintf(&b, "{\"name\":\"label %d %d\",\"x\":%d,\"y\":%d}\n", i, k, i*k, k+i)
	}
	fmt.Fprintf(&b, "{\"rev\":%d}\n", rev)
	return b.String()
}

// serve serves the repository over HTTP with git's own backend. wrap may put something in front of it.
func (g *gitRepo) serve(wrap func(http.Handler) http.Handler) URL {
	g.t.Helper()
	out, err := gitCommand(g.t, g.work, "--exec-path").Output()
	require.NoError(g.t, err)
	var h http.Handler = &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/",
		Env:    []string{"GIT_PROJECT_ROOT=" + filepath.Dir(g.bare), "GIT_HTTP_EXPORT_ALL=1", "HOME=" + g.work},
		Stderr: io.Discard,
	}
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	g.t.Cleanup(srv.Close)
	return parseURL(g.t, srv.URL+"/plant.git")
}

func parseURL(t testing.TB, s string) URL {
	t.Helper()
	u, err := ParseURL(s)
	require.NoError(t, err)
	return u
}

func parseRef(t testing.TB, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	require.NoError(t, err)
	return r
}

func newRemote(t testing.TB, u URL) *Remote {
	t.Helper()
	r, err := NewRemote(u, Auth{}, RemoteOptions{})
	require.NoError(t, err)
	return r
}

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, StoreOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// pull resolves and fetches, as one sync does.
func pull(t testing.TB, s *Store, r *Remote, ref string) (Resolution, FetchStats) {
	t.Helper()
	res, err := r.Resolve(context.Background(), parseRef(t, ref))
	require.NoError(t, err)
	stats, err := s.Fetch(context.Background(), r, res.Commit, res.Ref)
	require.NoError(t, err)
	return res, stats
}

// requireSame compares every object of a commit with what git says of it, and lets git verify the store's packs.
func requireSame(t testing.TB, g *gitRepo, s *Store, commit plan.ID) {
	t.Helper()
	root, err := s.RootTree(commit)
	require.NoError(t, err)
	require.Equal(t, g.id(commit.String()+"^{tree}"), root)
	var got []string
	var walk func(id plan.ID, prefix string)
	walk = func(id plan.ID, prefix string) {
		entries, err := s.Tree(id)
		require.NoError(t, err)
		for _, e := range entries {
			got = append(got, fmt.Sprintf("%s %s%s", e.ID, prefix, e.Name))
			if e.Mode == plan.Directory {
				walk(e.ID, prefix+e.Name+"/")
			} else if e.Mode != plan.Submodule {
				require.GreaterOrEqual(t, s.SortKey(e.ID), int64(0))
			}
		}
	}
	walk(root, "")
	want := g.git("ls-tree", "-r", "-t", "-z", "--format=%(objectname) %(path)", commit.String())
	require.Equal(t, strings.Split(strings.TrimSuffix(want, "\x00"), "\x00"), got)
	requireContent(t, s, got)
	verifyWithGit(t, s)
}

// requireContent compares what WriteBlob writes with what git reads from the store itself.
func requireContent(t testing.TB, s *Store, lines []string) {
	t.Helper()
	var in bytes.Buffer
	for _, l := range lines {
		in.WriteString(l[:40] + "\n")
	}
	cmd := gitCommand(t, s.Dir(), "--git-dir", s.Dir(), "cat-file", "--batch")
	cmd.Stdin = &in
	out, err := cmd.Output()
	require.NoError(t, err)
	for _, l := range lines {
		id, err := plan.ParseID(l[:40])
		require.NoError(t, err)
		head, rest, _ := bytes.Cut(out, []byte("\n"))
		var name, kind string
		var size int
		_, err = fmt.Sscanf(string(head), "%s %s %d", &name, &kind, &size)
		require.NoError(t, err, "%s", head)
		if kind == "blob" {
			var b bytes.Buffer
			n, err := s.WriteBlob(&b, id)
			require.NoError(t, err)
			require.Equal(t, int64(size), n)
			require.True(t, bytes.Equal(rest[:size], b.Bytes()), "blob %s", id)
		}
		out = rest[size+1:]
	}
}

func verifyWithGit(t testing.TB, s *Store) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(s.Dir(), "objects/pack/*.idx"))
	require.NoError(t, err)
	require.NotEmpty(t, packs)
	out, err := gitCommand(t, s.Dir(), append([]string{"--git-dir", s.Dir(), "verify-pack"}, packs...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
