package sync_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const external = "config/resources/external/ignition/schedule/night"

// pair is a redundant pair. Each node has its own agent, and both have the same target commit.
type pair struct {
	*simulator.Pair
	master, backup *bench
}

func newPair(t *testing.T, o simulator.Options) pair {
	t.Helper()
	o.Role = ignition.RoleMaster
	p := pair{master: newBench(t, o)}
	p.backup = p.master.twin(o)
	var err error
	p.Pair, err = simulator.NewPair(p.master.gw, p.backup.gw)
	require.NoError(t, err)
	// Ignore files that the pair replicated before the agents started.
	p.connect()
	return p
}

// twin returns the other node of a pair: same repository, but its own gateway, store and engine.
func (b *bench) twin(o simulator.Options) *bench {
	b.t.Helper()
	dir := b.t.TempDir()
	two := &bench{t: b.t, repo: b.repo, data: filepath.Join(dir, "data"), target: b.target, conn: b.conn}
	require.NoError(b.t, os.MkdirAll(two.data, 0o755))
	o.Data, o.Strict, o.Role, o.Unknowns = two.data, true, ignition.RoleBackup, unknowns(b.t, o.Unknowns)
	var err error
	two.gw, err = simulator.Start(o)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, two.gw.Close()) })
	store, err := repo.Open(filepath.Join(dir, "objects"), repo.StoreOptions{})
	require.NoError(b.t, err)
	log := slog.New(slog.DiscardHandler)
	two.engine = sync.New(sync.Config{DataDir: two.data, Store: store, Log: log, Disk: disk.Options{Log: log}, MaxBlob: 1 << 20})
	b.t.Cleanup(func() {
		assert.NoError(b.t, two.engine.Close())
		assert.NoError(b.t, store.Close())
	})
	return two
}

// connect gives both agents a gateway client.
func (p pair) connect() {
	for _, b := range []*bench{p.master, p.backup} {
		b.connect(ignition.Config{})
	}
}

// push creates a commit and makes it the target of both nodes.
func (p pair) push(edits ...gitserver.Edit) plan.ID {
	id := p.master.push(edits...)
	p.backup.target.Ref, p.backup.target.Name, p.backup.target.Commit = p.master.target.Ref, p.master.target.Name, id
	return id
}

// put writes a file as a user on the gateway would.
func (b *bench) put(path, content string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(filepath.Join(b.data, path), []byte(content), 0o644))
}

func (b *bench) standby() *sync.Report {
	b.t.Helper()
	r := b.ended(v1alpha1.GatewayStandby, v1alpha1.ReasonStandby)
	require.Equal(b.t, b.target.Commit, r.Commit)
	require.NoError(b.t, b.gw.Canaries.Check())
	return r
}

func night() []gitserver.Edit {
	return []gitserver.Edit{
		gitserver.Write(external+"/config.json", `{"at":"22:00"}`),
		gitserver.Write(external+"/resource.json", `{"scope":"A","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`),
	}
}

func TestBackupWritesUnreplicatedFiles(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(append(firstCommit(), night()...)...)
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "5 replicated files")
	assert.True(t, r.Commit.IsZero(), "the reported commit is never ahead of the disk")
	assert.Empty(t, p.backup.read(view))
	assert.Equal(t, `{"at":"22:00"}`, p.backup.read(external+"/config.json"))

	p.master.synced()
	assert.Equal(t, `{"one": 1}`, p.backup.read(view), "the pair replicated the file")
	p.backup.gw.Requests.Reset()
	p.backup.standby()
	assert.Zero(t, p.backup.gw.Requests.Count("POST /data/api/v1/scan/projects"))

	// Adopted files are owned: the next commit is an ordinary change on both nodes.
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	r = p.backup.standby()
	assert.Zero(t, r.Files.Kept+r.Files.Saved)
	r = p.backup.standby()
	assert.Nil(t, r.Changes, "no plan without changes")
}

func TestBackupSyncsAfterMaster(t *testing.T) {
	p := newPair(t, simulator.Options{})
	good := p.push(append(firstCommit(), gitserver.Write("config/resources/core/kept.txt", "keeps the source"))...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(view, `{"two": 2}`), gitserver.Delete(db+"/config.json"), gitserver.Delete(db+"/resource.json"))
	for range 2 {
		r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.Equal(t, good, r.Commit)
		assert.Equal(t, `{"one": 1}`, p.backup.read(view))
		assert.NotEmpty(t, p.backup.read(db+"/config.json"))
	}
	p.master.synced()
	p.backup.standby()
	assert.Empty(t, p.backup.read(db+"/config.json"))
}

func TestFailoverActivatesBackup(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()

	p.push(gitserver.Write(view, `{"two": 2}`))
	p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	p.Failover(true)
	r := p.backup.synced()
	assert.Equal(t, 2, r.Files.Modified, "the view, and its resource.json with it")
	assert.Zero(t, r.Files.Saved, "replicated files were adopted, and are not a conflict")
	assert.Equal(t, 1, p.backup.gw.Requests.Count("POST /data/api/v1/scan/projects"))
	p.master.standby()
	assert.Equal(t, `{"two": 2}`, p.master.read(view))

	// After failing back, the master, which had nothing to do on standby, syncs again.
	p.Failover(true)
	p.master.synced()
}

// conflictPolicy hold protects users' work on this gateway. On standby, differences come from replication.
func TestReplicatedChangesOnStandby(t *testing.T) {
	p := newPair(t, simulator.Options{})
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.ConflictPolicy = v1alpha1.ConflictHold
	}
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	p.push(gitserver.Write(view, `{"three": 3}`)) // the backup's agent did not see the second commit
	p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	p.master.synced()
	p.backup.standby()

	p.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	p.master.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	p.master.target.ConfirmDeletion = p.master.target.Commit.String()
	p.master.synced()
	p.backup.standby()
}

// The backup deletes files that the pair does not replicate only if the active node may delete them, too.
func TestMassDeletionOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.Mappings = append(b.target.Profile.Mappings, v1alpha1.Mapping{Source: "schedules", Destination: external})
	}
	p.push(append(firstCommit(), gitserver.Write("schedules/config.json", `{}`), gitserver.Write("schedules/resource.json", listing("config.json")))...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Rename("schedules", "calendar"))
	for _, b := range []*bench{p.master, p.backup} {
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
		assert.Contains(t, r.Message, "schedules")
		assert.NotEmpty(t, b.read(external+"/config.json"))
	}
	for _, b := range []*bench{p.master, p.backup} {
		b.target.ConfirmDeletion = b.target.Commit.String()
	}
	p.master.synced()
	p.backup.standby()
	assert.Empty(t, p.backup.read(external+"/config.json"))
}

func TestLoneBackupReportsNoWriter(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(firstCommit()...)
	p.backup.gw.Redundancy.SetConfigAccess(false, false)
	r := p.backup.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonNoConfigAccess)
	assert.Contains(t, r.Message, "backup")
	assert.Contains(t, r.Message, "peer is not connected")
	p.backup.gw.Redundancy.SetConfigAccess(true, false)
	p.backup.synced()
}

// It is unknown whether a pair replicates files outside of resources, so both agents write them.
func TestUnreplicatedFileOnBothNodes(t *testing.T) {
	p := newPair(t, simulator.Options{})
	const note, beside = "projects/line/README.md", viewDir + "/notes.txt"
	p.push(append(firstCommit(), gitserver.Write(note, "hello"), gitserver.Write(beside, "b"))...)
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "5 replicated files")
	assert.Equal(t, "hello", p.backup.read(note))
	assert.Equal(t, "b", p.backup.read(beside))
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Delete(beside))
	p.master.synced()
	p.backup.standby()
	assert.Empty(t, p.backup.read(beside))
}

func TestPairRendersTheSame(t *testing.T) {
	p := newPair(t, simulator.Options{})
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.Mappings = []v1alpha1.Mapping{{Source: "projects", Destination: "projects", Template: true}}
		b.target.Profile.Vars = map[string]string{"site": "042"}
	}
	p.push(gitserver.Write("projects/line/project.json", project("", false)),
		gitserver.Write(view, `{"title":"{{.Vars.site}}"}`),
		gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", `{"title":"{{.Vars.site}}"}`)))
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "3 replicated files")
	p.master.synced()
	p.backup.standby()
	assert.JSONEq(t, `{"title":"042"}`, p.backup.read(view))
	p.backup.target.Profile.Vars = map[string]string{"site": "043"}
	r = p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, viewDir, "a file with the node's own value never matches the other node")
	p.backup.target.Profile.DryRun = true
	p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonDryRun)
}

// A change on the standby node is drift, even with driftPolicy repair. The agent does not wait, because no replication will
// overwrite it.
func TestDriftOnStandbyIsReported(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(append(firstCommit(), night()...)...)
	p.master.synced()
	p.backup.ended(v1alpha1.GatewayStandby, v1alpha1.ReasonStandby)
	p.backup.put(view, `{"mine": 1}`)
	p.backup.put(external+"/config.json", `{"at":"23:00"}`)
	p.backup.target.Repair = true
	r := p.backup.standby()
	assert.Equal(t, `{"mine": 1}`, p.backup.read(view))
	assert.Equal(t, `{"at":"22:00"}`, p.backup.read(external+"/config.json"), "the agent repairs files that it writes on this node")
	require.NotEmpty(t, r.Notes)
	assert.Contains(t, r.Notes[0], "not restored")
	p.backup.target.Repair, p.backup.target.Force = false, "again"
	p.backup.standby()
}

// The API is not available before the gateway starts, so the agent reads the role from redundancy.xml.
func TestStoppedBackupByFile(t *testing.T) {
	p := newPair(t, simulator.Options{})
	p.push(append(firstCommit(), night()...)...)
	require.NoError(t, p.backup.gw.SetState(simulator.Down))
	p.backup.target.BeforeStart = true
	p.backup.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	assert.Empty(t, p.backup.read(view))
	assert.Equal(t, `{"at":"22:00"}`, p.backup.read(external+"/config.json"))

	p.backup.target.BeforeStart = false
	require.NoError(t, p.backup.gw.SetState(simulator.Running))
	p.master.synced()
	p.backup.standby()
	assert.NotNil(t, p.backup.gw.Data.Loaded(external))
}

func TestUnreadableRedundancyFile(t *testing.T) {
	b := newBench(t, simulator.Options{})
	require.NoError(t, os.WriteFile(filepath.Join(b.data, "redundancy.xml"), []byte("<properties><entry"), 0o644))
	require.NoError(t, b.gw.Canaries.Record())
	require.NoError(t, b.gw.SetState(simulator.Down))
	b.target.BeforeStart = true
	b.push(firstCommit()...)
	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.Len(t, r.Notes, 1)
	assert.Contains(t, r.Notes[0], "redundancy.xml")
	assert.NotEmpty(t, b.read(view))
}
