package sync_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

func TestScanOnlyChangedTrees(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.gw.Requests.Reset()
	r := b.synced()
	assert.Equal(t, []string{"line"}, r.Projects)
	assert.Empty(t, r.Notes)
	var order []string
	for _, q := range b.gw.Requests.List() {
		if q.Method == http.MethodPost {
			order = append(order, strings.TrimPrefix(q.Path, "/data/api/v1/"))
		}
	}
	assert.Equal(t, []string{"scan-lock/config", "scan-lock/projects", "scan/config", "scan/projects"}, order, "files move under the lock")
	assert.NotNil(t, b.gw.Data.Loaded(viewDir))
	assert.NotNil(t, b.gw.Data.Loaded(db))

	b.gw.Requests.Reset()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "a sync without changes sends no request")

	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	b.synced()
	assert.Equal(t, [2]int{0, 1}, b.scans())

	b.gw.Requests.Reset()
	b.push(gitserver.Write("README.md", "outside of the mappings"))
	b.synced()
	assert.Empty(t, b.gw.Requests.Violations())
	assert.Zero(t, b.scans())
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
	b.at("apply", func() { // a file replaces the project
		require.NoError(t, os.Rename(line, away))
		b.put("projects/line", "")
	})
	b.gw.Requests.Reset()
	r := b.sync()
	b.at("", nil)
	assert.Equal(t, v1alpha1.GatewayError, r.Phase, r.String())
	assert.Equal(t, good, r.Commit)
	assert.Equal(t, `{"url": "jdbc"}`, b.read(db+"/config.json"), "replaced files are restored")
	assert.Equal(t, 1, b.gw.Requests.Count("POST /data/api/v1/scan-lock/projects"))
	assert.Equal(t, 1, b.scans()[0], "the scan releases the lock")

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
			b.at("apply", func() { b.put(view, `{"mine": 1}`) })
			r := b.sync()
			b.at("", nil)
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
	b := newBench(t, simulator.Options{}).delivered()
	require.NoError(t, os.Rename(b.data, b.data+".old"))
	require.NoError(t, os.MkdirAll(filepath.Join(b.data, "config/resources/core"), 0o755))
	b.conn.Gateway = nil
	r := b.sync()
	require.Equal(t, v1alpha1.GatewaySynced, r.Phase, r.String())
	assert.Equal(t, `{"one": 1}`, b.read(view), "the new directory is synced")
	b.remove(".stoker")
	r = b.sync()
	require.Equal(t, v1alpha1.GatewaySynced, r.Phase, r.String())
	assert.FileExists(t, filepath.Join(b.data, ".stoker/manifest"))
}

func TestSyncBeforeGatewayStart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.set(simulator.Down)
	b.push(firstCommit()...)
	b.beforeStart()
	assert.Equal(t, `{"one": 1}`, b.read(view))
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
			b.set(state)
			b.push(firstCommit()...)
			b.ended(v1alpha1.GatewayPending, reason)
			assert.Empty(t, b.read(view))
			b.set(simulator.Running)
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
	b.fault(simulator.Fault{Route: scanProjects, Status: 400})
	r := b.sync()
	assert.Equal(t, v1alpha1.GatewayError, r.Phase, r.String())
	assert.Equal(t, commit, r.Commit, "the report names the commit on the disk")
	assert.Contains(t, r.Message, "the gateway has not loaded them")
	require.NoError(t, b.engine.Close())

	b.gw.Faults.Clear()
	b.gw.Requests.Reset()
	b.synced()
	assert.Equal(t, [2]int{1, 0}, b.scans(), "a successful scan is not repeated")
}

func TestMissingConfigResourceIsNotSynced(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.fault(simulator.Fault{Route: "GET /data/api/v1/resources/names/ignition/database-connection", Status: 200, Body: `{"items":[],"metadata":{"total":0,"matching":0}}`})
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
	b.at("verify", func() {
		for i := range 12 {
			b.gw.Logs.Error("Some.Logger", fmt.Sprintf("error number %d", i))
		}
	})
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the gateway's clock in its responses has whole seconds
	r := b.synced()
	notes := strings.Join(r.Notes, "\n")
	assert.Contains(t, notes, "the gateway logged: Some.Logger: error number 0")
	assert.Contains(t, notes, "more errors", "the report has at most ten errors")
	assert.NotContains(t, notes, "from before")
}

func TestDryRunWritesNothing(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.remove(".ignition-seed-complete")
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
	b.at("scan", stop)
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

// A commit with an invalid file must fail even if that file is already on the gateway, for example through a copy.
func TestExistingFilesAreValidated(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		reason        v1alpha1.Reason
	}{
		"an LFS pointer": {"image.png", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n", v1alpha1.ReasonLFSPointer},
		"broken JSON":    {"other.json", `{"broken": `, v1alpha1.ReasonConfigSyntaxError},
		"a bad shape":    {"in/resource.json", `{"scope":"G","version":1,"files":[]}`, v1alpha1.ReasonConfigSyntaxError},
		"a large file":   {"large.json", `"` + strings.Repeat("x", 1<<20) + `"`, v1alpha1.ReasonLimitExceeded},
		"a good file":    {"good.json", `{}`, v1alpha1.ReasonSynced},
	} {
		t.Run(name, func(t *testing.T) {
			path := viewDir + "/" + c.file
			for place, before := range map[string]func(*bench) (owned int){
				"on the gateway": func(b *bench) int {
					b.put(path, c.content)
					return 0
				},
				"only in git": func(*bench) int { return 0 },
				"in place of an owned file": func(b *bench) int {
					b.push(append(firstCommit(), gitserver.Write(path, `{"scope":"G","version":1,"files":[],"attributes":{}}`))...)
					owned := b.synced().Files.Total
					b.put(path, c.content)
					return owned
				},
			} {
				t.Run(place, func(t *testing.T) {
					b := newBench(t, simulator.Options{})
					owned := before(b)
					b.push(append(firstCommit(), gitserver.Write(path, c.content))...)
					b.target.Profile.DryRun = true
					planned := b.sync()
					b.target.Profile.DryRun = false
					r := b.sync()
					assert.Equal(t, c.reason, r.Reason, "%s", r)
					if c.reason == v1alpha1.ReasonSynced {
						assert.Equal(t, v1alpha1.GatewaySynced, r.Phase, "%s", r)
						return
					}
					assert.Equal(t, c.reason, planned.Reason, "dry run: %s", planned)
					assert.Equal(t, owned, planned.Files.Total)
					assert.Equal(t, owned, r.Files.Total, "the agent owns no more files")
				})
			}
		})
	}
}

// Another program may bring the files of a commit to a gateway that runs. That they are on the disk does not mean that it has loaded them.
func TestExistingFilesAreLoaded(t *testing.T) {
	const changed, config = "projects/line/project.json", db + "/config.json"
	const next = `{"title":"Next","description":"","parent":"","enabled":true,"inheritable":false}`
	start := func(t *testing.T) *bench {
		b := newBench(t, simulator.Options{}).delivered()
		b.gw.Requests.Reset()
		return b
	}
	t.Run("of the next commit", func(t *testing.T) {
		b := start(t)
		b.put(changed, next)
		b.push(gitserver.Write(changed, next))
		r := b.synced()
		assert.Equal(t, [2]int{1, 0}, b.scans())
		assert.Equal(t, []string{"line"}, r.Projects)
	})
	t.Run("a failed scan", func(t *testing.T) {
		b := start(t)
		b.put(config, `{"url": "other"}`)
		b.push(gitserver.Write(config, `{"url": "other"}`))
		require.NoError(t, b.gw.Scans.Fault("config", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, b.gw.Scans.Fault("config", simulator.ScanFault{}))
		b.synced()
	})
	t.Run("a deleted project", func(t *testing.T) {
		b := start(t)
		b.remove("projects/line")
		b.push(gitserver.Delete(changed), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
		b.target.ConfirmDeletion = b.target.Commit.String()
		b.synced()
		assert.Equal(t, [2]int{1, 0}, b.scans())
	})
	t.Run("a lost manifest while a scan is pending", func(t *testing.T) {
		b := start(t)
		b.push(gitserver.Write(changed, next))
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		b.remove(".stoker")
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{}))
		b.synced()
	})
	t.Run("a removed note while a scan is pending", func(t *testing.T) {
		b := start(t)
		b.push(gitserver.Write(changed, next))
		require.NoError(t, b.gw.Scans.Fault("projects", simulator.ScanFault{Fails: 99}))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
		b.remove(".stoker/note-unloaded")
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)

		// Another lock file makes the agent open the directory again.
		lock := filepath.Join(b.data, ".stoker/lock")
		content, err := os.ReadFile(lock)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(lock+".new", content, 0o600))
		require.NoError(t, os.Rename(lock+".new", lock))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	})
	t.Run("of the same meaning", func(t *testing.T) {
		b := start(t)
		b.put(config, "{\n  \"url\": \"other\"\n}")
		b.push(gitserver.Write(config, `{"url": "other"}`))
		b.synced()
		assert.Equal(t, [2]int{0, 1}, b.scans())
	})
	t.Run("only the time of a file is new", func(t *testing.T) {
		b := start(t)
		b.put(view, `{"one": 1}`)
		b.target.Force = "again"
		b.synced()
		b.gw.Requests.Reset()
		b.put(view, `{"one": 1}`)
		b.push(gitserver.Write(config, `{"url": "other"}`))
		b.synced()
		assert.Equal(t, [2]int{0, 1}, b.scans())
	})
}
