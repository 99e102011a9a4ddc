// Package storage tests the packages below agent/archive, and agents that use them, against real servers of object storage.
package storage

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program"
)

// line is a gateway with its agent.
type line struct {
	t         *testing.T
	gw        *simulator.Gateway
	repo      *gitserver.Repo
	dir, data string
	health    string
	storage   string
	agent     *program.Process
}

type state struct {
	Phase, Reason, Message, Commit string
	Snapshots                      []struct{ ID, Stored string }
}

const view = "projects/line/com.inductiveautomation.perspective/views/overview/"

func start(t *testing.T, storage, secretText string) *line {
	t.Helper()
	dir := t.TempDir()
	l := &line{t: t, dir: dir, storage: storage, repo: gitserver.NewRepo(t, filepath.Join(dir, "git"))}
	for name, text := range map[string]string{"gateway/apiKey": "", "storage/key": secretText} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, "secrets", name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "secrets", name), []byte(text), 0o600))
	}
	l.volume("first")
	return l
}

// volume starts a gateway with a new data volume.
func (l *line) volume(name string) {
	l.t.Helper()
	l.data = filepath.Join(l.dir, name)
	require.NoError(l.t, os.MkdirAll(l.data, 0o755))
	var err error
	l.gw, err = simulator.Start(simulator.Options{Data: l.data, Strict: true})
	require.NoError(l.t, err)
	l.t.Cleanup(func() { assert.NoError(l.t, l.gw.Close()) })
	require.NoError(l.t, os.WriteFile(filepath.Join(l.dir, "secrets", "gateway", "apiKey"), []byte(l.gw.Token()), 0o600))
}

// spec writes the GatewaySync.
func (l *line) spec(annotations string) {
	l.t.Helper()
	text := fmt.Sprintf(`apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line, annotations: {%s}}
spec:
  git: {repo: %q, ref: main}
  polling: {interval: 1s}
  gateway: {api: {secretName: gateway}}
  snapshots: {enabled: true, retentionCount: 2, storage: %s}
  sync:
    defaults: {syncPeriod: 5}
    profiles: {default: {mappings: [{source: projects, destination: projects}]}}
`, annotations, l.repo.Dir, l.storage)
	require.NoError(l.t, os.WriteFile(filepath.Join(l.dir, "line.yaml"), []byte(text), 0o600))
}

func (l *line) run() {
	l.t.Helper()
	cmd := exec.Command(program.Build(l.t, "agent"), "--file", filepath.Join(l.dir, "line.yaml"), "--data-dir", l.data, "--gateway-name", "line",
		"--repo-dir", filepath.Join(l.dir, "objects"),
		"--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--gateway-url", l.gw.URL())
	cmd.Env = []string{"HOME=" + l.dir}
	l.agent = program.Start(l.t, "agent", cmd)
	l.health = ""
	require.Eventually(l.t, func() bool { l.health = l.agent.Log.Address("health"); return l.health != "" }, time.Minute, 20*time.Millisecond)
}

func (l *line) await(what string, ok func(state) bool) (s state) {
	l.t.Helper()
	require.Eventually(l.t, func() bool {
		res, err := http.Get("http://" + l.health + "/state")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		s = state{}
		return json.NewDecoder(res.Body).Decode(&s) == nil && ok(s)
	}, time.Minute, 20*time.Millisecond, "%s: %+v", what, &s)
	return s
}

// push makes a commit with a text in a view.
func (l *line) push(text string) string {
	l.t.Helper()
	return l.repo.Commit(text, gitserver.Write("projects/line/project.json", `{"title":"Line","description":"","parent":"","enabled":true,"inheritable":false}`),
		gitserver.Write(view+"view.json", fmt.Sprintf(`{"text": %q}`, text)),
		gitserver.Write(view+"resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["view.json"],"attributes":{}}`))
}

func (l *line) read(path string) string {
	b, err := os.ReadFile(filepath.Join(l.data, path))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// stored waits for a number of snapshots that are all on the volume and in object storage.
func (l *line) stored(commit string, n int) state {
	l.t.Helper()
	return l.await(fmt.Sprintf("%d stored snapshots at %s", n, commit), func(s state) bool {
		both := 0
		for _, x := range s.Snapshots {
			if x.Stored == "both" {
				both++
			}
		}
		return s.Phase == "Synced" && s.Commit == commit && both == n && len(s.Snapshots) == n
	})
}

// lose removes the agent's object store, gives the gateway a new data volume, and restores a snapshot with the real agent.
func (l *line) lose(id, want string) {
	l.t.Helper()
	l.agent.End(l.t, syscall.SIGTERM)
	require.NoError(l.t, os.RemoveAll(filepath.Join(l.dir, "objects")))
	l.volume("second")
	l.spec(fmt.Sprintf("stoker.io/restore: %q", id+" "+time.Now().UTC().Format(time.RFC3339)))
	l.run()
	s := l.await("the restored snapshot", func(s state) bool { return s.Reason == "Restored" })
	assert.Contains(l.t, s.Message, id)
	assert.Equal(l.t, fmt.Sprintf(`{"text": %q}`, want), l.read(view+"view.json"))
	assert.NotNil(l.t, l.gw.Data.Loaded(strings.TrimSuffix(view, "/")))
}

// comesBack checks that a gateway whose volume was lost gets a snapshot back from object storage.
func comesBack(t *testing.T, c lost) {
	t.Helper()
	l := start(t, c.spec, c.wrong)
	l.push("one")
	l.spec("")
	l.run()
	l.await("the first commit", func(s state) bool { return s.Phase == "Synced" })
	second := l.push("two")
	s := l.await("a sync that does not wait for storage", func(s state) bool { return s.Phase == "Synced" && s.Commit == second })
	l.await("a local snapshot", func(s state) bool { return len(s.Snapshots) == 1 && s.Snapshots[0].Stored == "local" })
	require.Eventually(t, func() bool { return strings.Contains(l.agent.Log.String(), c.refusal) }, time.Minute, 50*time.Millisecond)
	assert.Empty(t, objects(t, c.store))
	l.agent.End(t, syscall.SIGKILL)

	// With the right key, the next start uploads what its own syncs make, and not what it finds on the volume.
	require.NoError(t, os.WriteFile(filepath.Join(l.dir, "secrets", "storage", "key"), []byte(c.right), 0o600))
	l.run()
	l.push("three")
	s = l.await("a stored snapshot", func(s state) bool {
		return len(s.Snapshots) == 2 && s.Snapshots[0].Stored == "local" && s.Snapshots[1].Stored == "both"
	})
	key := "plant/standalone/line/line/" + s.Snapshots[1].ID
	assert.ElementsMatch(t, []string{key + ".json", key + ".tar.gz"}, objects(t, c.store))

	// Only the newest two are kept on the volume. The bucket keeps all that are younger than a day.
	fourth := l.push("four")
	s = l.stored(fourth, 2)
	assert.Len(t, objects(t, c.store), 4)
	assert.NotContains(t, l.agent.Log.String(), "S3CR3T")

	l.lose(s.Snapshots[0].ID, "two")
	assert.Len(t, l.await("the list", func(s state) bool { return len(s.Snapshots) == 2 }).Snapshots, 2)
}

// objects returns the keys in object storage.
func objects(t *testing.T, s archive.Store) []string {
	t.Helper()
	keys, err := s.List(t.Context(), "")
	require.NoError(t, err)
	return keys
}

// servers has the programs that build has built, by package.
var servers struct {
	sync.Mutex
	dir   string
	files map[string]string
}

func TestMain(m *testing.M) {
	var err error
	if servers.dir, err = os.MkdirTemp("", "stoker-storage-"); err != nil {
		panic(err)
	}
	servers.files = map[string]string{}
	code := program.M{Tests: m}.Run()
	_ = os.RemoveAll(servers.dir)
	os.Exit(code)
}

// build builds a server of this module's tools, once.
func build(t *testing.T, pkg string) string {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	file, ok := servers.files[pkg]
	if ok {
		return file
	}
	file = filepath.Join(servers.dir, filepath.Base(pkg))
	out, err := exec.Command("go", "build", "-o", file, pkg).CombinedOutput()
	require.NoError(t, err, "%s", out)
	servers.files[pkg] = file
	return file
}

// free returns a free address.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// listens waits until a server accepts connections.
func listens(t *testing.T, address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
}

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "S3CR3T-KEY"
)

// credentials are those of the S3 server, as its Secret has them.
func credentials(secretKey string) string {
	return fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key=%s\n", accessKey, secretKey)
}

// startS3 starts an S3 server with a bucket, and returns its endpoint.
func startS3(t *testing.T) string {
	t.Helper()
	dir, address := t.TempDir(), free(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data", "backups"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "meta"), 0o755))
	cmd := exec.Command(build(t, "github.com/versity/versitygw/cmd/versitygw"), "--access", accessKey, "--secret", secretKey, "--port", address,
		"posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Env = []string{"HOME=" + dir}
	program.Start(t, "versitygw", cmd)
	listens(t, address)
	return "http://" + address
}

func text(s string) func() (secret.String, error) {
	return func() (secret.String, error) { return secret.New(s), nil }
}
