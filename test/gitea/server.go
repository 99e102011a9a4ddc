// Package gitea runs a real Gitea on loopback for tests: with SQLite, without mail, search and cron. Starting takes about a second.
package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Server is a running Gitea.
type Server struct {
	t     testing.TB
	url   string
	dir   string
	admin string // token
	built built
}

const password = "a-Password-of-Tests-1"

const config = `APP_NAME = test
RUN_MODE = prod
WORK_PATH = %[1]s
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
[server]
PROTOCOL = http
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %[2]d
ROOT_URL = http://127.0.0.1:%[2]d/
DISABLE_SSH = true
OFFLINE_MODE = true
LFS_START_SERVER = false
STATIC_ROOT_PATH = %[3]s
[database]
DB_TYPE = sqlite3
PATH = %[1]s/gitea.db
[security]
INSTALL_LOCK = true
SECRET_KEY = of-a-test
INTERNAL_TOKEN = of-a-test
DISABLE_GIT_HOOKS = false
[oauth2]
ENABLED = false
[log]
MODE = console
LEVEL = Warn
[indexer]
ISSUE_INDEXER_TYPE = db
REPO_INDEXER_ENABLED = false
[cron]
ENABLED = false
[service]
DISABLE_REGISTRATION = true
[repository]
ROOT = %[1]s/repositories
`

// Start starts a Gitea with an administrator. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	b, err := build(t.Context())
	require.NoError(t, err)
	s := &Server{t: t, dir: t.TempDir(), built: b}
	port := freePort(t)
	s.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	require.NoError(t, os.WriteFile(s.file(), fmt.Appendf(nil, config, s.dir, port, b.static), 0o600))
	s.run("migrate")
	s.run("admin", "user", "create", "--admin", "--username", "root", "--password", password, "--email", "root@example.com", "--must-change-password=false")

	var log bytes.Buffer
	cmd := s.command("web")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the log of Gitea:\n%s", log.String()[max(0, log.Len()-4000):])
		}
	})
	require.Eventually(t, func() bool {
		res, err := http.Get(s.url + "/api/healthz")
		if err == nil {
			_ = res.Body.Close()
		}
		return err == nil && res.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond, "Gitea does not answer")
	s.admin = s.Token("root", "write:repository", "write:issue", "write:user", "write:admin")
	return s
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *Server) file() string { return filepath.Join(s.dir, "app.ini") }

func (s *Server) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.built.program, append([]string{"--config", s.file()}, args...)...)
	cmd.Env = []string{"HOME=" + s.dir, "PATH=" + os.Getenv("PATH"), "GITEA_WORK_DIR=" + s.dir, "USER=root"}
	return cmd
}

func (s *Server) run(args ...string) {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	require.NoError(s.t, err, "gitea %s: %s", strings.Join(args, " "), out)
}

// Call calls the API as the administrator and returns the status and the answer.
func (s *Server) Call(method, path string, in any) (int, map[string]any) {
	s.t.Helper()
	return s.call(method, path, in, func(r *http.Request) { r.Header.Set("Authorization", "token "+s.admin) })
}

func (s *Server) call(method, path string, in any, login func(*http.Request)) (int, map[string]any) {
	s.t.Helper()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		require.NoError(s.t, err)
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, s.url+"/api/v1"+path, body)
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	login(req)
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	var out map[string]any
	_ = json.Unmarshal(b, &out) // some answers are lists or empty
	return res.StatusCode, out
}

// list gets a list from the API.
func (s *Server) list(path string) (out []map[string]any) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.url+"/api/v1"+path, nil)
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "token "+s.admin)
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	require.NoError(s.t, json.NewDecoder(res.Body).Decode(&out))
	return out
}

// must calls the API and fails the test unless it accepts the call.
func (s *Server) must(method, path string, in any) map[string]any {
	s.t.Helper()
	code, out := s.Call(method, path, in)
	require.Less(s.t, code, 300, "%s %s: %v", method, path, out)
	return out
}

// Token returns a new token of a user with the given scopes.
func (s *Server) Token(user string, scopes ...string) string {
	s.t.Helper()
	code, out := s.call(http.MethodPost, "/users/"+user+"/tokens", map[string]any{"name": fmt.Sprint(time.Now().UnixNano()), "scopes": scopes},
		func(r *http.Request) { r.SetBasicAuth(user, password) })
	require.Equal(s.t, http.StatusCreated, code, "%v", out)
	return out["sha1"].(string)
}

// User creates a user.
func (s *Server) User(name string) {
	s.t.Helper()
	s.must(http.MethodPost, "/admin/users", map[string]any{"username": name, "email": name + "@example.com", "password": password, "must_change_password": false})
}

// Repository creates a repository of the administrator with a commit of files on the branch main. It returns the address
// and the commit.
func (s *Server) Repository(name string, files map[string]string) (at, commit string) {
	s.t.Helper()
	s.must(http.MethodPost, "/user/repos", map[string]any{"name": name, "default_branch": "main"})
	at = s.url + "/root/" + name + ".git"
	return at, s.Push(at, "main", "", files)
}

// Push commits files to a branch, which begins at the branch from if it is new, and returns the commit.
func (s *Server) Push(at, branch, from string, files map[string]string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com", "GIT_CONFIG_NOSYSTEM=1"}
		out, err := cmd.CombinedOutput()
		require.NoError(s.t, err, "git %v: %s", args, out)
		return strings.TrimSpace(string(out))
	}
	auth := strings.Replace(at, "http://", "http://root:"+s.admin+"@", 1)
	git("init", "-q", "-b", branch)
	if from != "" {
		git("fetch", "-q", auth, from)
		git("reset", "-q", "--hard", "FETCH_HEAD")
	}
	for name, content := range files {
		file := filepath.Join(dir, name)
		require.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(s.t, os.WriteFile(file, []byte(content), 0o600))
	}
	git("add", "-A")
	git("commit", "-q", "-m", "files of "+branch)
	git("push", "-q", auth, branch+":"+branch)
	return git("rev-parse", "HEAD")
}

// Merge merges a pull request: merge, squash or rebase.
func (s *Server) Merge(name string, number int64, style string) {
	s.t.Helper()
	path := fmt.Sprintf("/repos/root/%s/pulls/%d/merge", name, number)
	require.Eventually(s.t, func() bool { // Gitea first checks in the background whether it can be merged
		code, _ := s.Call(http.MethodPost, path, map[string]any{"Do": style})
		return code == http.StatusOK
	}, time.Minute, 200*time.Millisecond, "%s does not merge", style)
}

// Version is the version of Gitea. Later versions require modules that are not published.
const Version = "1.26.0"

// built has the paths of the program and of the directory with the files that it reads at run time.
type built struct{ program, static string }

// build builds Gitea from its module into the user's cache directory. It does so once for each version of Go. A build takes
// about three minutes and needs a C compiler, for SQLite.
func build(ctx context.Context) (built, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return built{}, err
	}
	parent := filepath.Join(cache, "stoker-gitea")
	dir := filepath.Join(parent, Version+"-"+runtime.Version())
	b := built{filepath.Join(dir, "gitea"), filepath.Join(dir, "src")}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return b, err
	}
	lock, err := os.OpenFile(filepath.Join(parent, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return b, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.program); err == nil {
		return b, nil
	}
	temp, err := os.MkdirTemp(parent, "build-")
	if err != nil {
		return b, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := compile(ctx, temp); err != nil {
		return b, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return b, err
	}
	return b, os.Rename(temp, dir)
}

// compile builds the program in dir. Gitea must be built with the versions of its own go.mod, not with ours. So it is built as
// the main module, from a copy, because modules in Go's cache are read-only.
func compile(ctx context.Context, dir string) error {
	get := exec.CommandContext(ctx, "go", "mod", "download", "-json", "code.gitea.io/gitea@v"+Version)
	get.Dir, get.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw=false")
	out, err := get.Output()
	if err != nil {
		return fmt.Errorf("download Gitea %s: %w: %s", Version, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	source := filepath.Join(dir, "src")
	if err := os.CopyFS(source, os.DirFS(module.Dir)); err != nil { //nolint:forbidigo // a module has no symbolic links
		return err
	}
	compiler := exec.CommandContext(ctx, "go", "build", "-tags", "sqlite sqlite_unlock_notify", "-ldflags", "-s -w", "-o", filepath.Join(dir, "gitea"), ".")
	compiler.Dir, compiler.Env = source, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=1")
	if out, err := compiler.CombinedOutput(); err != nil {
		return fmt.Errorf("build Gitea %s: %w: %s", Version, err, out)
	}
	// Of the source, keep only the folders that Gitea reads at run time.
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); n != "templates" && n != "options" && n != "public" {
			if err := os.RemoveAll(filepath.Join(source, n)); err != nil {
				return err
			}
		}
	}
	return nil
}
