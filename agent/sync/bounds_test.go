package sync_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// treeBomb returns a tree with 10^levels paths to an empty directory. It needs only one object per level.
func (b *bench) treeBomb(levels int) string {
	b.t.Helper()
	tree := b.repo.RawTree()
	for range levels {
		var entries []gitserver.RawEntry
		for i := range 10 {
			entries = append(entries, gitserver.RawEntry{Mode: "40000", Name: fmt.Sprintf("d%d", i), ID: tree})
		}
		tree = b.repo.RawTree(entries...)
	}
	return tree
}

// F11 of docs/internals/threats.md: a tree bomb hits a limit, at the first sync and at later ones, and the files on the gateway stay. The next commit
// syncs.
func TestTreeBomb(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.engine.Limits = plan.Limits{Files: 1000}
	b.push(gitserver.Graft("projects/bomb", b.treeBomb(12)))
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
	assert.Contains(t, r.Message, "directories")
	b.push(append(firstCommit(), gitserver.Delete("projects/bomb"))...)
	b.synced()
	b.push(gitserver.Graft("projects/bomb", b.treeBomb(12)))
	r = b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
	assert.Contains(t, r.Message, "directories")
	assert.JSONEq(t, `{"one": 1}`, b.read(view))
	b.push(gitserver.Delete("projects/bomb"), gitserver.Write(view, `{"two": 2}`))
	b.synced()
}

// F11 of docs/internals/threats.md: canceling a sync during planning stops it before the rest of the commit is read.
func TestSyncStopsWhilePlanning(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	b.push(gitserver.Write(view, `{"two": 2}`))
	ctx, cancel := context.WithCancel(t.Context())
	b.at("plan", cancel)
	r := b.engine.Sync(ctx, b.conn, b.target)
	require.ErrorIs(t, r.Err, context.Canceled)
	assert.Nil(t, r.Changes, "the commit was not planned")
	b.at("", nil)
	b.synced()
	assert.JSONEq(t, `{"two": 2}`, b.read(view))
}

// F11 of docs/internals/threats.md: the error names a file above the size limit. A file outside the mappings does not count.
func TestLargeFile(t *testing.T) {
	b := newBench(t, simulator.Options{})
	large := strings.Repeat("0123456789abcdef", 1<<17) // twice MaxBlob
	b.push(append(firstCommit(), gitserver.Write("videos/tour.bin", large))...)
	b.synced()
	b.push(gitserver.Rename("videos/tour.bin", "projects/line/tour.bin"))
	r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
	assert.Contains(t, r.Message, "projects/line/tour.bin is larger than --max-blob")
	b.push(gitserver.Delete("projects/line/tour.bin"))
	b.synced()
}

// F11 of docs/internals/threats.md: the list of new files is bounded, however many a program of the gateway writes.
func TestAddedFilesAreBounded(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	for i := range 4100 { // more than maxAdded
		b.put(fmt.Sprintf("projects/line/file-%04d", i), "")
	}
	b.engine.Watch(func(string) bool { return true })
	base, err := b.engine.Base(t.Context(), b.conn.Remote, b.target)
	require.NoError(t, err)
	added, err := b.engine.Added(t.Context(), base)
	require.NoError(t, err)
	assert.Len(t, added, 4000, "maxAdded")
}

// A path of 200 folders within the limits is written, compared and deleted. One that is longer than the limit is refused.
func TestDeepPathsUpToMaxDepth(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.engine.Limits = plan.Limits{Depth: 1000, PathBytes: 1200}
	deep := "projects/line/" + strings.Repeat("d/", 200) + "code.py"
	b.push(append(firstCommit(), gitserver.Write(deep, "v = 1\n"))...)
	b.synced()
	assert.Equal(t, "v = 1\n", b.read(deep))
	assert.Zero(t, b.drift(true).Files)
	b.push(gitserver.Delete("projects/line/d"))
	b.synced()
	assert.Empty(t, b.read(deep))

	b.engine.Limits.PathBytes = 400
	b.push(gitserver.Write(deep, "v = 2\n"))
	assert.Contains(t, b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded).Message, "bytes, more than 400")
}

// A dry run must not report Synced for files that the gateway rejected.
func TestDryRunOfUnscannedFiles(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	b.push(gitserver.Write(view, `{"two": 2}`))
	b.fault(simulator.Fault{Route: scanProjects, Status: 400})
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	b.gw.Faults.Clear()

	b.gw.Requests.Reset()
	b.target.Profile.DryRun = true
	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonDryRun)
	assert.True(t, r.DryRun)
	assert.NoError(t, r.Err, "no retry, because it would change nothing")
	assert.Contains(t, r.Message, "no scan was requested")
	assert.Equal(t, b.target.Commit, r.Commit)
	assert.Empty(t, b.gw.Requests.List())

	b.target.Profile.DryRun = false
	b.synced()
	b.target.Profile.DryRun = true
	b.synced()
	assert.Equal(t, 1, b.gw.Requests.Count(scanProjects))
}

func TestDryRunBeforeGatewayStart(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.target.Start = "one"
	b.synced()
	b.set(simulator.Down)
	b.target.Start, b.target.Profile.DryRun = "two", true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.target.BeforeStart = false
	b.set(simulator.Running)
	b.gw.Requests.Reset()
	b.synced()
	assert.Equal(t, 1, b.gw.Requests.Count(pingRoute))
	assert.Len(t, b.gw.Requests.List(), 1)
	note, err := os.ReadFile(filepath.Join(b.data, ".stoker", "note-gateway-ran"))
	require.NoError(t, err)
	assert.Equal(t, "one", string(note), "a dry run writes no note")
}

// A pause does not change whether the gateway runs the target. If it does, it is Synced. If not, it is Held, or Applied if only its start
// is missing.
func TestPausedGatewayPhase(t *testing.T) {
	b := newBench(t, simulator.Options{})
	good := b.push(firstCommit()...)
	b.target.Start = "one"
	b.synced()
	paused := func(phase v1alpha1.GatewaySyncState, why string) *sync.Report {
		t.Helper()
		b.target.Profile.Paused = true
		defer func() { b.target.Profile.Paused = false }()
		r := b.sync()
		require.Equal(t, phase, r.Phase, "%s: %s", why, r)
		require.Equal(t, good, r.Commit, why)
		require.Equal(t, v1alpha1.ReasonPaused, r.Reason, why)
		return r
	}
	b.gw.Requests.Reset()
	r := paused(v1alpha1.GatewaySynced, "the gateway runs the target")
	require.NoError(t, r.Err)
	assert.Empty(t, b.gw.Requests.List())

	was := b.target
	b.target.Profile.ExcludePatterns = []string{"**/*.md"}
	paused(v1alpha1.GatewayHeld, "other rules")
	b.target = was
	b.target.Force = "again"
	paused(v1alpha1.GatewayHeld, "a forced sync that is not handled")
	b.target = was
	b.push(gitserver.Write(view, `{"two": 2}`))
	paused(v1alpha1.GatewayHeld, "another commit")

	b.fault(simulator.Fault{Route: scanProjects, Status: 400})
	b.ended(v1alpha1.GatewayError, v1alpha1.ReasonScanFailed)
	b.gw.Faults.Clear()
	good = b.target.Commit
	paused(v1alpha1.GatewayHeld, "the gateway has not confirmed the commit")
	b.set(simulator.Down)
	b.target.Start = "restarted"
	paused(v1alpha1.GatewayHeld, "the gateway has not confirmed the commit and is down")
	b.target.Start = "one"
	b.set(simulator.Running)
	b.synced()
	paused(v1alpha1.GatewaySynced, "the gateway has confirmed the commit")

	b.set(simulator.Down)
	b.target.Start, b.target.Profile.Paused = "two", true
	b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	b.set(simulator.Running)
	paused(v1alpha1.GatewaySynced, "the gateway runs after a restart")
}

func TestPausedNodeOfPair(t *testing.T) {
	p := newPair(t, simulator.Options{}).delivered()
	pause := func(on bool) { p.master.target.Profile.Paused, p.backup.target.Profile.Paused = on, on }
	pause(true)
	p.master.ended(v1alpha1.GatewaySynced, v1alpha1.ReasonPaused)
	p.backup.ended(v1alpha1.GatewayStandby, v1alpha1.ReasonPaused)

	// After a failover during the pause, the agents compare the replicated files only once they are resumed.
	p.Failover(true)
	for range 2 {
		p.backup.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonPaused)
		p.master.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonPaused)
	}
	pause(false)
	p.backup.synced()
	p.master.standby()
	pause(true)
	p.backup.ended(v1alpha1.GatewaySynced, v1alpha1.ReasonPaused)
	p.master.ended(v1alpha1.GatewayStandby, v1alpha1.ReasonPaused)

	// A backup that took over keeps its access if the gateway fails to answer once.
	p.backup.fault(simulator.Fault{Route: "GET /data/api/v1/redundancy*", Status: 500, Times: 1})
	p.backup.ended(v1alpha1.GatewaySynced, v1alpha1.ReasonPaused)
	assert.Empty(t, p.backup.gw.Faults.List(), "the agent has polled the gateway")
}

const envInside = "SYNC_TEST_INSIDE"

// inside reruns the test in its own process, in namespaces that allow mounts. It returns true in that process and false in the
// parent.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) == t.Name() {
		return true
	}
	if err := exec.Command("unshare", "-rm", "true").Run(); err != nil {
		t.Skipf("unshare -rm does not work here: %v", err)
	}
	cmd := exec.Command("unshare", "-rm", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), envInside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// container is a process with its own mount that no other process sees, like the container of the gateway.
type container struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// mountsOver starts a container that mounts what over a file and ends with the test.
func mountsOver(t *testing.T, what, file string) *container {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "sh", "-c",
		`mount --make-rprivate / && mount --bind "$0" "$1" && while read line; do cat "$1" 2>&1; echo; done`, what, file)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, in.Close())
		assert.NoError(t, cmd.Wait())
	})
	return &container{t, in, bufio.NewReader(out)}
}

// sees returns the content of the file as the container sees it.
func (c *container) sees() string {
	c.t.Helper()
	_, err := io.WriteString(c.in, "\n")
	require.NoError(c.t, err)
	line, err := c.out.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSuffix(line, "\n")
}

// Users keep a password out of git with a placeholder in git and a Secret mounted over it. The agent sees only the file below.
// Renaming a new file over it would remove the Secret from the gateway's container.
func TestMountedSecretOverGitFile(t *testing.T) {
	if !inside(t) {
		return
	}
	b := newBench(t, simulator.Options{}).delivered()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	gateway := mountsOver(t, secret, filepath.Join(b.data, db, "config.json"))
	require.Equal(t, "SECRET", gateway.sees())

	b.engine.Mounts = []string{db + "/config.json"} // from the injector; the agent itself sees no mount
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`), gitserver.Write(view, `{"two": 2}`))
	r := b.synced()
	assert.Equal(t, "SECRET", gateway.sees())
	assert.Equal(t, `{"url": "jdbc"}`, b.read(db+"/config.json"), "the file below the mount is unchanged")
	assert.Equal(t, `{"two": 2}`, b.read(view))
	assert.Contains(t, r.Message, "not synced because the gateway has mounts there: "+db+"/config.json")
	assert.Contains(t, strings.Join(r.Notes, "\n"), "remove it from git")

	b.push(gitserver.Delete(db + "/config.json"))
	b.synced()
	assert.Equal(t, "SECRET", gateway.sees())
	assert.Zero(t, b.drift(true).Files)
}

// A file mounted from a ConfigMap in the agent's container, too, cannot be replaced. It must not block the rest of the commit.
func TestMountedFileDoesNotBlock(t *testing.T) {
	if !inside(t) {
		return
	}
	b := newBench(t, simulator.Options{}).delivered()
	given, file := filepath.Join(t.TempDir(), "given"), filepath.Join(b.data, db, "config.json")
	require.NoError(t, os.WriteFile(given, []byte(`{"url": "of the ConfigMap"}`), 0o600))
	require.NoError(t, unix.Mount(given, file, "", unix.MS_BIND, ""))
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`), gitserver.Write(view, `{"two": 2}`))
	r := b.synced()
	assert.Equal(t, `{"two": 2}`, b.read(view))
	assert.Equal(t, `{"url": "of the ConfigMap"}`, b.read(db+"/config.json"))
	assert.Contains(t, r.Message, "not synced because the gateway has mounts there: "+db+"/config.json")

	require.NoError(t, unix.Unmount(file, 0))
	b.target.Profile.ConflictPolicy = v1alpha1.ConflictGitWins
	require.Equal(t, v1alpha1.GatewaySynced, b.sync().Phase)
	assert.Equal(t, `{"url": "other"}`, b.read(db+"/config.json"), "without the mount, the same commit replaces the file")
}
