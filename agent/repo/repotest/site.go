// Package repotest has the repositories and the checks that the tests of package repo and of the packages below it share.
package repotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// Site is a repository behind a real git server, which can be told to fail.
type Site struct {
	*gitserver.Repo
	Server *gitserver.Server
	t      testing.TB
}

// NewSite starts a server with an empty repository.
func NewSite(t testing.TB, o gitserver.Options, initArgs ...string) *Site {
	t.Helper()
	root := t.TempDir()
	repo := gitserver.NewRepo(t, filepath.Join(root, "site.git"), initArgs...)
	srv, err := gitserver.Start(root, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return &Site{repo, srv, t}
}

// Address returns the URL of the repository.
func (s *Site) Address() string { return s.Server.URL("site.git") }

// Push adds a commit to the current branch.
func (s *Site) Push(message string, edits ...gitserver.Edit) plan.ID {
	s.t.Helper()
	return ParseID(s.t, s.Commit(message, edits...))
}

// Served sums up what the server did since the last Forget, once it has finished every request.
func (s *Site) Served() gitserver.Stats {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.Server.InFlight() == 0 }, time.Minute, time.Millisecond)
	return s.Server.Stats()
}

// History adds n commits to main at once; each rewrites one file with what content returns.
func (s *Site) History(n int, path func(int) string, content func(int) string) plan.ID {
	s.t.Helper()
	return history(s.t, s.Repo, n, path, content)
}

func history(t testing.TB, g *gitserver.Repo, n int, path func(int) string, content func(int) string) plan.ID {
	t.Helper()
	var b bytes.Buffer
	head := g.Git("rev-parse", "refs/heads/main")
	for i := range n {
		fmt.Fprintf(&b, "commit refs/heads/main\ncommitter Test <test@example.com> %d +0000\ndata 1\nx\n", 1800000000+i)
		if i == 0 {
			fmt.Fprintf(&b, "from %s\n", head)
		}
		text := content(i)
		fmt.Fprintf(&b, "M 100644 inline %s\ndata %d\n%s\n", path(i), len(text), text)
	}
	RunGit(t, g.Dir, b.Bytes(), "fast-import", "--quiet")
	return ParseID(t, g.Git("rev-parse", "refs/heads/main"))
}

// ShellSite is a repository behind a real ssh server.
type ShellSite struct {
	*gitserver.Repo
	Server *gitserver.SSHServer
	Key    string // of the user git, in PEM
	Public ssh.PublicKey
	t      testing.TB
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
	return &ShellSite{repo, srv, text, signer.PublicKey(), t}
}

// Address returns the URL of the repository.
func (s *ShellSite) Address() string { return s.Server.URL("git", "site.git") }

// KnownHosts returns the lines of known_hosts for the server.
func (s *ShellSite) KnownHosts() ([]byte, error) { return []byte(s.Server.KnownHosts()), nil }

// Push adds a commit to the current branch.
func (s *ShellSite) Push(message string, edits ...gitserver.Edit) plan.ID {
	s.t.Helper()
	return ParseID(s.t, s.Commit(message, edits...))
}

// History adds n commits to main at once; each rewrites one file with what content returns.
func (s *ShellSite) History(n int, path func(int) string, content func(int) string) plan.ID {
	s.t.Helper()
	return history(s.t, s.Repo, n, path, content)
}

// Views returns n files that look like those of a project.
func Views(n int) gitserver.Edit {
	files := map[string]string{"README.md": "site\n"}
	for i := range n {
		files[ViewPath(i)] = View(i, 0)
		files[filepath.Dir(ViewPath(i))+"/resource.json"] = fmt.Sprintf(`{"scope":"G","version":%d}`, i)
	}
	return gitserver.Files(files)
}

// ViewPath returns the path of a view of Views.
func ViewPath(i int) string { return fmt.Sprintf("projects/p%d/views/v%04d/view.json", i%7, i) }

// View returns the content of a view.
func View(i, rev int) string {
	var b strings.Builder
	for k := range 30 {
		fmt.Fprintf(&b, "{\"name\":\"label %d %d\",\"x\":%d,\"y\":%d}\n", i, k, i*k, k+i)
	}
	fmt.Fprintf(&b, "{\"rev\":%d}\n", rev)
	return b.String()
}

// EditView changes one view.
func EditView(i, rev int) gitserver.Edit { return gitserver.Write(ViewPath(i), View(i, rev)) }

// Token returns a credential as a function.
func Token(value string) func() (secret.String, error) {
	return func() (secret.String, error) { return secret.New(value), nil }
}

// ReverseProxy forwards every request to a server.
func ReverseProxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
}

// ProxyEnvironment sets the variables of proxies, and unsets those that vars does not have.
func ProxyEnvironment(t *testing.T, vars map[string]string) {
	t.Helper()
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(k, vars[k])
	}
}

// Main runs the tests of a package without a name server: a name that this machine does not know by itself is unknown at once.
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
