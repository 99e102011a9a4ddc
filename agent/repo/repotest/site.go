// Package repotest has repositories and checks for the tests of package repo and of the packages below it.
package repotest

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// Repo is a repository with methods for tests.
type Repo struct {
	*gitserver.Repo
	t testing.TB
}

// Push adds a commit to the current branch, and returns its id.
func (r Repo) Push(message string, edits ...gitserver.Edit) plan.ID {
	r.t.Helper()
	return ParseID(r.t, r.Commit(message, edits...))
}

// History adds n commits to main. Commit i, from 0 on, writes content(i) to the file path(i). It returns the last commit.
func (r Repo) History(n int, path func(int) string, content func(int) string) plan.ID {
	r.t.Helper()
	var b bytes.Buffer
	head := r.Git("rev-parse", "refs/heads/main")
	for i := range n {
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter Test <test@example.com> %d +0000\ndata 1\nx\n", 1800000000+i)
		if i == 0 {
			fmt.Fprintf(&b, "from %s\n", head)
		}
		text := content(i)
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path(i), len(text), text)
	}
	RunGit(r.t, r.Dir, b.Bytes(), "fast-import", "--quiet")
	return ParseID(r.t, r.Git("rev-parse", "refs/heads/main"))
}

// Site is a repository behind a real git server, which can fail on demand.
type Site struct {
	Repo
	Server *gitserver.Server
}

// NewSite starts a server with an empty repository.
func NewSite(t testing.TB, o gitserver.Options, initArgs ...string) *Site {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"), initArgs...)
	srv, err := gitserver.Start(root, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return &Site{Repo{repo, t}, srv}
}

// Address returns the URL of the repository.
func (s *Site) Address() string { return s.Server.URL("site.git") }

// Served waits until the server has finished every request, and returns what it did since the last Forget.
func (s *Site) Served() gitserver.Stats {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.Server.InFlight() == 0 }, time.Minute, time.Millisecond)
	return s.Server.Stats()
}

// ShellSite is a repository behind a real ssh server.
type ShellSite struct {
	Repo
	Server *gitserver.SSHServer
	Key    string // private key of the user git, in PEM
	Public ssh.PublicKey
}

// NewShellSite starts an ssh server with an empty repository.
func NewShellSite(t testing.TB, o gitserver.SSHOptions, initArgs ...string) *ShellSite {
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
	return &ShellSite{Repo{repo, t}, srv, text, signer.PublicKey()}
}

// Address returns the URL of the repository.
func (s *ShellSite) Address() string { return s.Server.URL("git", "site.git") }

// KnownHosts returns the lines of known_hosts for the server.
func (s *ShellSite) KnownHosts() ([]byte, error) { return []byte(s.Server.KnownHosts()), nil }

// Views returns an edit that writes n views with their resource.json, in several projects, and a README.md.
func Views(n int) gitserver.Edit {
	files := map[string]string{"README.md": "site\n"}
	for i := range n {
		files[ViewPath(i)] = View(i, 0)
		files[filepath.Dir(ViewPath(i))+"/resource.json"] = fmt.Sprintf(`{"scope":"G","version":%d}`, i)
	}
	return gitserver.Files(files)
}

// ViewPath returns the path of view i of Views.
func ViewPath(i int) string { return fmt.Sprintf("projects/p%d/views/v%04d/view.json", i%7, i) }

// View returns the content of view i. rev changes one line of it.
func View(i, rev int) string {
	var b strings.Builder
	for k := range 30 {
		fmt.Fprintf(&b, "{\"name\":\"label %d %d\",\"x\":%d,\"y\":%d}\n", i, k, i*k, k+i)
	}
	fmt.Fprintf(&b, "{\"rev\":%d}\n", rev)
	return b.String()
}

// EditView returns an edit that writes revision rev of view i.
func EditView(i, rev int) gitserver.Edit { return gitserver.Write(ViewPath(i), View(i, rev)) }

// Token returns a function that returns a credential.
func Token(value string) func() (secret.String, error) {
	return func() (secret.String, error) { return secret.New(value), nil }
}

// ReverseProxy returns a handler that forwards every request to a server. Without full duplex, the body of a request is closed with the first byte
// of the answer, and forwarding fails if the end of the body was not read before.
func ReverseProxy(to *url.URL) http.Handler {
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			_ = http.NewResponseController(w).EnableFullDuplex() // fails if w wraps another writer
		}
		forward.ServeHTTP(w, r)
	})
}

// ProxyEnvironment sets the environment variables for proxies. Those that vars lacks become empty.
func ProxyEnvironment(t *testing.T, vars map[string]string) {
	t.Helper()
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(k, vars[k])
	}
}

// Main runs the tests of a package without a name server, so that look-ups of unknown names fail at once.
func Main(m *testing.M) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("tests have no name server")
	}}
	os.Exit(m.Run())
}

// RunGit runs git in a directory and returns its output.
func RunGit(t testing.TB, dir string, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gitserver.Env(), bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "git %v: %s", args, stderr.String())
	return out
}

// Objects is a store of objects in a bare repository.
type Objects interface {
	plan.Objects
	Dir() string
	RootTree(commit plan.ID) (plan.ID, error)
	SortKey(id plan.ID) int64
}

// Git runs git in a repository.
type Git interface {
	Git(args ...string) string
}

// RequireSame compares the ids and the paths of everything in a commit with those in g, and each blob with what git reads from the store.
// It lets git verify the packs.
func RequireSame(t testing.TB, g Git, s Objects, commit plan.ID) {
	t.Helper()
	root, err := s.RootTree(commit)
	require.NoError(t, err)
	require.Equal(t, g.Git("rev-parse", commit.String()+"^{tree}"), root.String())
	got := WalkTree(t, s, root, "")
	want := g.Git("ls-tree", "-r", "-t", "-z", "--format=%(objectname) %(path)", commit.String())
	require.Equal(t, strings.Split(strings.TrimSuffix(want, "\x00"), "\x00"), got)
	requireContent(t, s, got)
	RequireVerified(t, s)
}

// WalkTree returns "id path" of everything below a tree, in the order of git ls-tree -r -t. It fails the test if the store lacks an object.
func WalkTree(t testing.TB, s Objects, id plan.ID, prefix string) []string {
	t.Helper()
	entries, err := s.Tree(id)
	require.NoError(t, err)
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.ID.String()+" "+prefix+e.Name)
		switch e.Mode {
		case plan.Directory:
			lines = append(lines, WalkTree(t, s, e.ID, prefix+e.Name+"/")...)
		case plan.Submodule:
		default:
			require.GreaterOrEqual(t, s.SortKey(e.ID), int64(0))
		}
	}
	return lines
}

// requireContent compares what WriteBlob writes with what git reads from the store.
func requireContent(t testing.TB, s Objects, lines []string) {
	t.Helper()
	var in bytes.Buffer
	for _, l := range lines {
		in.WriteString(l[:40] + "\n")
	}
	out := RunGit(t, s.Dir(), in.Bytes(), "cat-file", "--batch")
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
			n, err := s.WriteBlob(&b, ParseID(t, l[:40]))
			require.NoError(t, err)
			require.Equal(t, int64(size), n)
			require.True(t, bytes.Equal(rest[:size], b.Bytes()), "blob %s", name)
		}
		out = rest[size+1:]
	}
}

// RequireVerified lets git check every pack and index of the store.
func RequireVerified(t testing.TB, s Objects) {
	t.Helper()
	packs := slices.DeleteFunc(PackFiles(t, s, ".idx"), func(p string) bool { return !strings.HasPrefix(filepath.Base(p), "pack-") })
	require.NotEmpty(t, packs)
	RunGit(t, s.Dir(), nil, append([]string{"verify-pack"}, packs...)...)
}

// PackFiles returns the files of the pack directory with an extension.
func PackFiles(t testing.TB, s interface{ Dir() string }, ext string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Dir(), "objects/pack", "*"+ext))
	require.NoError(t, err)
	return files
}

// ReadBlob returns the content of a blob.
func ReadBlob(t testing.TB, s plan.Objects, id plan.ID) string {
	t.Helper()
	var b bytes.Buffer
	_, err := s.WriteBlob(&b, id)
	require.NoError(t, err)
	return b.String()
}

// BlobID returns the id of a blob.
func BlobID(content string) plan.ID {
	return sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content))
}

// ParseID reads an id.
func ParseID(t testing.TB, s string) plan.ID {
	t.Helper()
	id, err := plan.ParseID(s)
	require.NoError(t, err)
	return id
}

// RequireReason checks the reason of an error, and that its text has no secret.
func RequireReason(t testing.TB, want v1alpha1.Reason, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, want, failure.Reason(err, "none"), "%v", err)
	for e := err; e != nil; e = errors.Unwrap(e) {
		require.NotContains(t, e.Error(), "S3CR3T")
		require.NotContains(t, fmt.Sprintf("%+v", e), "S3CR3T")
	}
}
