package sync_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const (
	viewDir = "projects/line/com.inductiveautomation.perspective/views/main"
	view    = viewDir + "/view.json"
	db      = "config/resources/core/ignition/database-connection/db"
)

// bench is an engine with a real repository and a simulated gateway.
type bench struct {
	t      *testing.T
	repo   *gitserver.Repo
	gw     *simulator.Gateway
	data   string
	engine *sync.Engine
	conn   sync.Connections
	target sync.Task
}

func newBench(t *testing.T, o simulator.Options) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, data: filepath.Join(dir, "data"), repo: gitserver.NewRepo(t, filepath.Join(dir, "git"))}
	require.NoError(t, os.MkdirAll(b.data, 0o755))
	o.Data, o.Strict, o.Unknowns = b.data, true, unknowns(t, o.Unknowns)
	var err error
	b.gw, err = simulator.Start(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.gw.Close()) })
	u, err := repo.ParseURL(b.repo.Dir)
	require.NoError(t, err)
	b.conn.Remote, err = repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	b.connect(ignition.Config{})
	store, err := repo.Open(filepath.Join(dir, "objects"), repo.StoreOptions{})
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	b.engine = sync.New(sync.Config{DataDir: b.data, Store: store, Log: log, Disk: disk.Options{Log: log}, MaxBlob: 1 << 20, DriftFetchTimeout: time.Minute})
	t.Cleanup(func() {
		assert.NoError(t, b.engine.Close())
		assert.NoError(t, store.Close())
	})
	b.target.Profile = effective.Settings{Mappings: []v1alpha1.Mapping{
		{Source: "projects", Destination: "projects"}, {Source: "config", Destination: "config"}}}
	return b
}

// connect creates the client of the gateway from c.
func (b *bench) connect(c ignition.Config) {
	b.t.Helper()
	if c.URL == "" {
		c.URL = b.gw.URL()
	}
	c.Key = func() (secret.String, error) { return secret.New(b.gw.Token()), nil }
	c.PollInterval, c.LockWait = 5*time.Millisecond, time.Second
	client, err := ignition.New(c)
	require.NoError(b.t, err)
	b.conn.Gateway, b.conn.HasAPIToken = client, true
}

// push creates a commit and makes it the target.
func (b *bench) push(edits ...gitserver.Edit) plan.ID {
	b.t.Helper()
	id, err := plan.ParseID(b.repo.Commit("c", edits...))
	require.NoError(b.t, err)
	b.target.Ref, b.target.Name, b.target.Commit = "main", "refs/heads/main", id
	return id
}

// firstCommit returns the edits of the first commit of most tests: a project with a view, and a database connection.
func firstCommit() []gitserver.Edit {
	resource := func(file string) string {
		return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{}}`
	}
	return []gitserver.Edit{
		gitserver.Write("projects/line/project.json", `{"title":"Line","description":"","parent":"","enabled":true,"inheritable":false}`),
		gitserver.Write(view, `{"one": 1}`),
		gitserver.Write(viewDir+"/resource.json", resource("view.json")),
		gitserver.Write(db+"/config.json", `{"url": "jdbc"}`),
		gitserver.Write(db+"/resource.json", resource("config.json")),
	}
}

func (b *bench) sync() *sync.Report { return b.engine.Sync(b.t.Context(), b.conn, b.target) }

// synced runs a sync and expects it to succeed.
func (b *bench) synced() *sync.Report {
	b.t.Helper()
	r := b.sync()
	require.Equal(b.t, v1alpha1.GatewaySynced, r.Phase, r.String())
	require.Equal(b.t, b.target.Commit, r.Commit)
	require.NoError(b.t, b.gw.Canaries.Check())
	return r
}

// ended runs a sync and expects a phase and a reason.
func (b *bench) ended(phase v1alpha1.GatewaySyncState, reason v1alpha1.Reason) *sync.Report {
	b.t.Helper()
	r := b.sync()
	require.Equal(b.t, phase, r.Phase, r.String())
	require.Equal(b.t, reason, r.Reason, r.String())
	return r
}

func (b *bench) read(path string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.data, path))
	if os.IsNotExist(err) {
		return ""
	}
	require.NoError(b.t, err)
	return string(raw)
}

func TestScanOnlyChangedTrees(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.gw.Requests.Reset()
	r := b.synced()
	assert.Equal(t, []string{"line"}, r.Projects)
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan/projects"))
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan/config"))
	assert.NotNil(t, b.gw.Data.Loaded(viewDir))
	assert.NotNil(t, b.gw.Data.Loaded(db))

	b.gw.Requests.Reset()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "a sync without changes sends no request")

	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	b.synced()
	assert.Zero(t, b.gw.Requests.Count("POST /data/api/v1/scan/projects"))
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan/config"))

	b.gw.Requests.Reset()
	b.push(gitserver.Write("README.md", "outside of the mappings"))
	b.synced()
	assert.Empty(t, b.gw.Requests.Violations())
	assert.Zero(t, b.gw.Requests.Count("POST /data/api/v1/scan/config")+b.gw.Requests.Count("POST /data/api/v1/scan/projects"))
}

func TestFilesMoveUnderScanLock(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.gw.Requests.Reset()
	r := b.synced()
	assert.Empty(t, r.Notes)
	var order []string
	for _, q := range b.gw.Requests.List() {
		if q.Method == http.MethodPost {
			order = append(order, strings.TrimPrefix(q.Path, "/data/api/v1/"))
		}
	}
	assert.Equal(t, []string{"scan-lock/config", "scan-lock/projects", "scan/config", "scan/projects"}, order)
}

func TestForeignScanLock(t *testing.T) {
	for name, o := range map[string]simulator.Options{"refused": {}, "timeout": {Unknowns: simulator.Unknowns{LockWaits: true}}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, o)
			require.NoError(t, b.gw.Locks.Hold("projects", "Designer of Maria", time.Minute))
			b.push(firstCommit()...)
			r := b.synced()
			require.Len(t, r.Notes, 1)
			assert.Contains(t, r.Notes[0], "without the gateway's projects scan lock")
		})
	}
}

// A failed apply is rolled back and followed by the scan that releases the lock.
func TestFailedApplyIsRolledBack(t *testing.T) {
	b := newBench(t, simulator.Options{})
	good := b.push(firstCommit()...)
	b.synced()
	b.push(gitserver.Write(db+"/config.json", `{"url": "new"}`), gitserver.Write("projects/line/zz.json", "{}"))
	line, away := filepath.Join(b.data, "projects/line"), filepath.Join(b.data, "projects/away")
	b.engine.Progress = func(step string, _, _ int) {
		if step == "apply" { // after the plan, a file replaces the project
			require.NoError(t, os.Rename(line, away))
			require.NoError(t, os.WriteFile(line, nil, 0o644))
		}
	}
	b.gw.Requests.Reset()
	r := b.sync()
	b.engine.Progress = func(string, int, int) {}
	assert.Equal(t, v1alpha1.GatewayError, r.Phase, r.String())
	assert.Equal(t, good, r.Commit)
	assert.Equal(t, `{"url": "jdbc"}`, b.read(db+"/config.json"), "replaced files are restored")
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"))
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan/projects"), "the scan releases the lock")

	require.NoError(t, os.Remove(line))
	require.NoError(t, os.Rename(away, line))
	b.synced()
	assert.Equal(t, `{"url": "new"}`, b.read(db+"/config.json"))
	assert.Equal(t, "{}", b.read("projects/line/zz.json"))
}

// A write by the gateway between plan and apply is a conflict and follows the conflict policy.
func TestWriteDuringSync(t *testing.T) {
	for policy, c := range map[v1alpha1.ConflictPolicy]struct {
		live  string
		phase v1alpha1.GatewaySyncState
	}{
		v1alpha1.ConflictGitWins:     {`{"two": 2}`, v1alpha1.GatewaySynced},
		v1alpha1.ConflictHold:        {`{"mine": 1}`, v1alpha1.GatewayHeld},
		v1alpha1.ConflictGatewayWins: {`{"mine": 1}`, v1alpha1.GatewayHeld},
	} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			b.target.Profile.ConflictPolicy = policy
			good := b.push(firstCommit()...)
			b.synced()
			b.push(gitserver.Write(view, `{"two": 2}`), gitserver.Write("projects/line/zz.json", "{}"))
			b.engine.Progress = func(step string, _, _ int) {
				if step == "apply" {
					require.NoError(t, os.WriteFile(filepath.Join(b.data, view), []byte(`{"mine": 1}`), 0o644))
				}
			}
			r := b.sync()
			b.engine.Progress = func(string, int, int) {}
			assert.Equal(t, c.phase, r.Phase, r.String())
			assert.Equal(t, c.live, b.read(view))
			if c.phase == v1alpha1.GatewayHeld {
				assert.Equal(t, good, r.Commit)
				assert.Empty(t, b.read("projects/line/zz.json"))
			} else {
				assert.Contains(t, r.Message, "to lost+found")
			}
			if policy == v1alpha1.ConflictGatewayWins {
				assert.Equal(t, 1, b.synced().Files.Kept)
			}
		})
	}
}

// A data directory restored from a backup is a different directory, so the agent must open it again.
func TestReplacedDataDirectoryIsReopened(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	require.NoError(t, os.Rename(b.data, b.data+".old"))
	require.NoError(t, os.MkdirAll(filepath.Join(b.data, "config/resources/core"), 0o755))
	b.conn.Gateway = nil
	r := b.sync()
	require.Equal(t, v1alpha1.GatewaySynced, r.Phase, r.String())
	assert.Equal(t, `{"one": 1}`, b.read(view), "the new directory is synced")
	require.NoError(t, os.RemoveAll(filepath.Join(b.data, ".stoker")))
	r = b.sync()
	require.Equal(t, v1alpha1.GatewaySynced, r.Phase, r.String())
	assert.FileExists(t, filepath.Join(b.data, ".stoker/manifest"))
}

func TestSyncBeforeGatewayStart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.push(firstCommit()...)
	b.target.BeforeStart = true
	b.gw.Requests.Reset()
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	assert.Equal(t, `{"one": 1}`, b.read(view))

	b.target.BeforeStart = false
	require.NoError(t, b.gw.SetState(simulator.Running))
	r := b.synced()
	assert.Empty(t, r.Scans, "the gateway read the files when it started")
	assert.Equal(t, []string{"line"}, r.Projects, "the projects are verified")
}

func TestStartingGatewayIsNotScanned(t *testing.T) {
	for state, reason := range map[simulator.State]v1alpha1.Reason{
		simulator.Starting:      v1alpha1.ReasonWaitingForGateway,
		simulator.Commissioning: v1alpha1.ReasonWaitingForCommissioning,
	} {
		t.Run(string(state), func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			require.NoError(t, b.gw.SetState(state))
			b.push(firstCommit()...)
			b.ended(v1alpha1.GatewayPending, reason)
			assert.Empty(t, b.read(view))
			require.NoError(t, b.gw.SetState(simulator.Running))
			b.synced()
		})
	}
}

// If the agent cannot connect to a gateway, the gateway may still run. The agent must not treat it as stopped.
func TestUntrustedGatewayCertificate(t *testing.T) {
	b := newBench(t, simulator.Options{TLS: &simulator.TLSOptions{Names: []string{"gw.example"}}})
	b.connect(ignition.Config{URL: b.gw.TLSURL()})
	b.push(firstCommit()...)
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGatewayUntrusted)
	assert.Empty(t, b.read(view))
	b.connect(ignition.Config{URL: b.gw.TLSURL(), TLS: ignition.TLS{ServerName: "gw.example", CA: func() ([]byte, error) { return b.gw.CA(), nil }}})
	b.synced()
}

func TestFailedScanStaysPending(t *testing.T) {
	b := newBench(t, simulator.Options{})
	commit := b.push(firstCommit()...)
	require.NoError(t, b.gw.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: 400}))
	r := b.sync()
	assert.Equal(t, v1alpha1.GatewayError, r.Phase, r.String())
	assert.Equal(t, commit, r.Commit, "the report names the commit on the disk")
	assert.Contains(t, r.Message, "the gateway has not loaded them")
	require.NoError(t, b.engine.Close())

	b.gw.Faults.Clear()
	b.gw.Requests.Reset()
	b.synced()
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan/projects"))
	assert.Zero(t, b.gw.Requests.Count("POST /data/api/v1/scan/config"), "a successful scan is not repeated")
}

func TestMissingConfigResourceIsNotSynced(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	require.NoError(t, b.gw.Faults.Add(simulator.Fault{Route: "GET /data/api/v1/resources/names/ignition/database-connection", Status: 200, Body: `{"items":[],"metadata":{"total":0,"matching":0}}`}))
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonVerificationFailed)
	assert.Contains(t, r.Message, "does not show these config resources (see its log for the reason): ignition/database-connection/db")
	b.gw.Faults.Clear()
	b.synced()
}

// Errors that the gateway logs during the sync are added to the report but do not change its result.
func TestGatewayLogErrorsInReport(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.gw.Logs.Error("Old.Logger", "from before")
	b.push(firstCommit()...)
	b.engine.Progress = func(step string, _, _ int) {
		if step == "verify" {
			for i := range 12 {
				b.gw.Logs.Error("Some.Logger", fmt.Sprintf("error number %d", i))
			}
		}
	}
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the gateway's clock in its responses has whole seconds
	r := b.synced()
	notes := strings.Join(r.Notes, "\n")
	assert.Contains(t, notes, "the gateway logged: Some.Logger: error number 0")
	assert.Contains(t, notes, "more errors", "the report has at most ten errors")
	assert.NotContains(t, notes, "from before")
}

func TestFileSizeLimit(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(append(firstCommit(), gitserver.Write("projects/line/big.bin", strings.Repeat("x", 1<<20+1)))...)
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
	assert.Contains(t, r.Message, "big.bin")
	assert.Contains(t, r.Message, "max-blob")
	assert.Empty(t, b.read(view))
}

func TestDryRunWritesNothing(t *testing.T) {
	b := newBench(t, simulator.Options{})
	require.NoError(t, os.RemoveAll(filepath.Join(b.data, ".ignition-seed-complete")))
	before := list(t, b.data)
	b.push(firstCommit()...)
	b.target.Profile.DryRun = true
	r := b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonDryRun)
	assert.True(t, r.DryRun)
	assert.Equal(t, 5, r.Changes.Counts().Added)
	assert.Equal(t, before, list(t, b.data), "a dry run writes no file, lock or directory")
	assert.Empty(t, r.Notes)

	b.engine.DataDir = t.TempDir()
	r = b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonDryRun)
	require.Len(t, r.Notes, 1, "a note says that a sync would wait")
	assert.Contains(t, r.Notes[0], "a sync would wait: the data directory is not seeded yet")
	assert.Len(t, list(t, b.engine.DataDir), 1)
}

// Once files are written, the agent finishes the scan even if it is stopped, because the scan releases the gateway's lock.
func TestStopBeforeScan(t *testing.T) {
	b := newBench(t, simulator.Options{ScanDelay: 200 * time.Millisecond})
	b.push(firstCommit()...)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b.engine.Progress = func(step string, _, _ int) {
		if step == "scan" {
			stop()
		}
	}
	r := b.engine.Sync(ctx, b.conn, b.target)
	assert.Equal(t, v1alpha1.GatewaySynced, r.Phase, r.String())
	assert.NotNil(t, b.gw.Data.Loaded(viewDir))
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, path)
		return err
	}))
	return out
}
