package repo

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/test/gitserver"
)

// site is a repository behind a real git server, which can be told to fail.
type site struct {
	*gitserver.Repo
	t   testing.TB
	srv *gitserver.Server
}

func newSite(t testing.TB) *site {
	t.Helper()
	return newSiteWith(t, gitserver.Options{})
}

func newSiteWith(t testing.TB, o gitserver.Options, initArgs ...string) *site {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"), initArgs...)
	srv, err := gitserver.Start(root, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return &site{repo, t, srv}
}

func (s *site) url() URL { return parseURL(s.t, s.srv.URL("site.git")) }

func (s *site) remote() *Remote { return newRemote(s.t, s.url(), Auth{}, RemoteOptions{}) }

// commit adds a commit to the current branch.
func (s *site) commit(message string, edits ...gitserver.Edit) plan.ID {
	s.t.Helper()
	return parseID(s.t, s.Commit(message, edits...))
}

// views returns n files that look like those of a project.
func views(n int) gitserver.Edit {
	files := map[string]string{"README.md": "site\n"}
	for i := range n {
		dir := fmt.Sprintf("projects/p%d/views/v%04d/", i%7, i)
		files[dir+"view.json"] = view(i, 0)
		files[dir+"resource.json"] = fmt.Sprintf(`{"scope":"G","version":%d}`, i)
	}
	return gitserver.Files(files)
}

func view(i, rev int) string {
	var b strings.Builder
	for k := range 30 {
		fmt.Fprintf(&b, "{\"name\":\"label %d %d\",\"x\":%d,\"y\":%d}\n", i, k, i*k, k+i)
	}
	fmt.Fprintf(&b, "{\"rev\":%d}\n", rev)
	return b.String()
}

// editView changes one file.
func editView(i, rev int) gitserver.Edit {
	return gitserver.Write(fmt.Sprintf("projects/p%d/views/v%04d/view.json", i%7, i), view(i, rev))
}

func parseID(t testing.TB, s string) plan.ID {
	t.Helper()
	id, err := plan.ParseID(s)
	require.NoError(t, err)
	return id
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

func newRemote(t testing.TB, u URL, a Auth, o RemoteOptions) *Remote {
	t.Helper()
	r, err := NewRemote(u, a, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func openStore(t testing.TB, dir string) *Store { return openStoreWith(t, dir, StoreOptions{}) }

func openStoreWith(t testing.TB, dir string, o StoreOptions) *Store {
	t.Helper()
	s, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// pull resolves and fetches, as one sync does.
func pull(t testing.TB, s *Store, r *Remote, ref string) (Resolution, FetchStats) {
	t.Helper()
	res, err := r.Resolve(t.Context(), parseRef(t, ref))
	require.NoError(t, err)
	stats, err := s.Fetch(t.Context(), r, res.Commit, res.Ref)
	require.NoError(t, err)
	return res, stats
}

// requireSame compares every object of a commit with what git says of it, and lets git verify the store's packs.
func requireSame(t testing.TB, g *site, s *Store, commit plan.ID) {
	t.Helper()
	root, err := s.RootTree(commit)
	require.NoError(t, err)
	require.Equal(t, g.Git("rev-parse", commit.String()+"^{tree}"), root.String())
	got := walkTree(t, s, root, "")
	want := g.Git("ls-tree", "-r", "-t", "-z", "--format=%(objectname) %(path)", commit.String())
	require.Equal(t, strings.Split(strings.TrimSuffix(want, "\x00"), "\x00"), got)
	requireContent(t, s, got)
	requireVerified(t, s)
}

// walkTree lists "id path" of everything below a tree, as git ls-tree -r -t does.
func walkTree(t testing.TB, s *Store, id plan.ID, prefix string) []string {
	t.Helper()
	entries, err := s.Tree(id)
	require.NoError(t, err)
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.ID.String()+" "+prefix+e.Name)
		switch e.Mode {
		case plan.Directory:
			lines = append(lines, walkTree(t, s, e.ID, prefix+e.Name+"/")...)
		case plan.Submodule:
		default:
			require.GreaterOrEqual(t, s.SortKey(e.ID), int64(0))
		}
	}
	return lines
}

// requireContent compares what WriteBlob writes with what git itself reads from the store.
func requireContent(t testing.TB, s *Store, lines []string) {
	t.Helper()
	var in bytes.Buffer
	for _, l := range lines {
		in.WriteString(l[:40] + "\n")
	}
	out := runGit(t, s.Dir(), in.Bytes(), "cat-file", "--batch")
	for _, l := range lines {
		head, rest, _ := bytes.Cut(out, []byte("\n"))
		if bytes.HasSuffix(head, []byte(" missing")) { // the commit of a submodule
			out = rest
			continue
		}
		var name, kind string
		var size int
		_, err := fmt.Sscanf(string(head), "%s %s %d", &name, &kind, &size)
		require.NoError(t, err, "%s", head)
		if kind == "blob" {
			var b bytes.Buffer
			n, err := s.WriteBlob(&b, parseID(t, l[:40]))
			require.NoError(t, err)
			require.Equal(t, int64(size), n)
			require.True(t, bytes.Equal(rest[:size], b.Bytes()), "blob %s", name)
		}
		out = rest[size+1:]
	}
}

// requireVerified lets git check every pack and index of the store.
func requireVerified(t testing.TB, s *Store) {
	t.Helper()
	packs := slices.DeleteFunc(packFiles(t, s, indexExt), func(p string) bool { return !strings.HasPrefix(filepath.Base(p), "pack-") })
	require.NotEmpty(t, packs)
	runGit(t, s.Dir(), nil, append([]string{"verify-pack"}, packs...)...)
}

func packFiles(t testing.TB, s *Store, ext string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir(), packDir, "*"+ext))
	require.NoError(t, err)
	return files
}

func runGit(t testing.TB, dir string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gitserver.Env(), bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "git %v: %s", args, stderr.String())
	return out
}

// history adds n commits to main at once; each rewrites one file with what content returns.
func (s *site) history(n int, path func(int) string, content func(int) string) plan.ID {
	s.t.Helper()
	var b bytes.Buffer
	head := s.Git("rev-parse", "refs/heads/main")
	for i := range n {
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter Test <test@example.com> %d +0000\ndata 1\nx\n", 1800000000+i)
		if i == 0 {
			fmt.Fprintf(&b, "from %s\n", head)
		}
		text := content(i)
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path(i), len(text), text)
	}
	runGit(s.t, s.Dir, b.Bytes(), "fast-import", "--quiet")
	return parseID(s.t, s.Git("rev-parse", "refs/heads/main"))
}

func reverseProxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
}

// served sums up what the server did since the last Forget, once it is done with it.
func (s *site) served() gitserver.Stats {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.srv.InFlight() == 0 }, time.Minute, time.Millisecond)
	return s.srv.Stats()
}
