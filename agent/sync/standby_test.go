package sync_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/record"
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
	// The clients start after the pair has replicated for the first time.
	p.connect()
	return p
}

// twin returns the other node of a pair: same repository, but its own gateway, store and engine.
func (b *bench) twin(o simulator.Options) *bench {
	b.t.Helper()
	two := &bench{t: b.t, repo: b.repo, target: b.target, conn: b.conn}
	o.Role = ignition.RoleBackup
	two.start(o)
	return two
}

// connect gives both agents a gateway client.
func (p pair) connect() {
	for _, b := range p.both() {
		b.connect(ignition.Config{})
	}
}

// both returns the nodes.
func (p pair) both() []*bench { return []*bench{p.master, p.backup} }

// delivered syncs the first commit.
func (p pair) delivered() pair {
	p.push(firstCommit()...)
	p.settled()
	return p
}

// settled syncs both nodes, the active master first.
func (p pair) settled() *sync.Report {
	p.master.t.Helper()
	p.master.synced()
	return p.backup.standby()
}

// waits expects that the backup waits for the active node, and returns what it says.
func (p pair) waits() string {
	p.master.t.Helper()
	return p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing).Message
}

// push creates a commit and makes it the target of both nodes.
func (p pair) push(edits ...gitserver.Edit) plan.ID {
	id := p.master.push(edits...)
	p.backup.target.Ref, p.backup.target.Name, p.backup.target.Commit = p.master.target.Ref, p.master.target.Name, id
	return id
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
	assert.Zero(t, p.backup.gw.Requests.Count(scanProjects))

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
	p.settled()
	p.push(gitserver.Write(view, `{"two": 2}`), gitserver.Delete(db+"/config.json"), gitserver.Delete(db+"/resource.json"))
	for range 2 {
		r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.Equal(t, good, r.Commit)
		assert.Equal(t, `{"one": 1}`, p.backup.read(view))
		assert.NotEmpty(t, p.backup.read(db+"/config.json"))
	}
	p.settled()
	assert.Empty(t, p.backup.read(db+"/config.json"))
}

func TestFailoverActivatesBackup(t *testing.T) {
	p := newPair(t, simulator.Options{}).delivered()

	p.push(gitserver.Write(view, `{"two": 2}`))
	p.waits()
	p.Failover(true)
	r := p.backup.synced()
	assert.Equal(t, 2, r.Files.Modified, "the view, and its resource.json with it")
	assert.Zero(t, r.Files.Saved, "replicated files were adopted, and are not a conflict")
	assert.Equal(t, 1, p.backup.gw.Requests.Count(scanProjects))
	p.master.standby()
	assert.Equal(t, `{"two": 2}`, p.master.read(view))

	// After failing back, the master, which had nothing to do on standby, syncs again.
	p.Failover(true)
	p.master.synced()
}

// conflictPolicy hold protects users' work on this gateway. On standby, differences come from replication, so they hold no sync.
func TestReplicatedChangesOnStandby(t *testing.T) {
	p := newPair(t, simulator.Options{})
	for _, b := range p.both() {
		b.target.Profile.ConflictPolicy = v1alpha1.ConflictHold
	}
	p.delivered()
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	p.push(gitserver.Write(view, `{"three": 3}`)) // the backup's agent did not see the second commit
	p.waits()
	p.settled()

	p.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
	p.waits()
	p.master.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
	p.master.target.ConfirmDeletion = p.master.target.Commit.String()
	p.settled()
}

// The backup deletes files that the pair does not replicate only if the active node may delete them, too.
func TestMassDeletionOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	for _, b := range p.both() {
		b.target.Profile.Mappings = append(b.target.Profile.Mappings, v1alpha1.Mapping{Source: "schedules", Destination: external})
	}
	p.push(append(firstCommit(), gitserver.Write("schedules/config.json", `{}`), gitserver.Write("schedules/resource.json", listing("config.json")))...)
	p.settled()
	p.push(gitserver.Rename("schedules", "calendar"))
	for _, b := range p.both() {
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
		assert.Contains(t, r.Message, "schedules")
		assert.NotEmpty(t, b.read(external+"/config.json"))
	}
	for _, b := range p.both() {
		b.target.ConfirmDeletion = b.target.Commit.String()
	}
	p.settled()
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
	p.settled()
	p.push(gitserver.Delete(beside))
	p.settled()
	assert.Empty(t, p.backup.read(beside))
}

func TestPairRendersTheSame(t *testing.T) {
	p := newPair(t, simulator.Options{})
	for _, b := range p.both() {
		b.target.Profile.Mappings = []v1alpha1.Mapping{{Source: "projects", Destination: "projects", Template: true}}
		b.target.Profile.Vars = map[string]string{"site": "042"}
	}
	p.push(gitserver.Write("projects/line/project.json", project("", false)),
		gitserver.Write(view, `{"title":"{{.Vars.site}}"}`),
		gitserver.Write(viewDir+"/resource.json", sealedJSON(t, "view.json", `{"title":"{{.Vars.site}}"}`)))
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "3 replicated files")
	p.settled()
	assert.JSONEq(t, `{"title":"042"}`, p.backup.read(view))
	p.backup.target.Profile.Vars = map[string]string{"site": "043"}
	assert.Contains(t, p.waits(), viewDir, "a file with the node's own value never matches the other node")
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
	p.backup.set(simulator.Down)
	p.backup.target.BeforeStart = true
	p.backup.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	assert.Empty(t, p.backup.read(view))
	assert.Equal(t, `{"at":"22:00"}`, p.backup.read(external+"/config.json"))

	p.backup.target.BeforeStart = false
	p.backup.set(simulator.Running)
	p.settled()
	assert.NotNil(t, p.backup.gw.Data.Loaded(external))
}

func TestUnreadableRedundancyFile(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.put("redundancy.xml", "<properties><entry")
	require.NoError(t, b.gw.Canaries.Record())
	b.set(simulator.Down)
	b.target.BeforeStart = true
	b.push(firstCommit()...)
	r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
	require.Len(t, r.Notes, 1)
	assert.Contains(t, r.Notes[0], "redundancy.xml")
	assert.NotEmpty(t, b.read(view))
}

// Commits, syncs, failovers and pauses of the replication occur in random order, without manual edits. A node that reports Synced
// or Standby must have the files of that commit and name any resource that is not in git. No sync may fail or be held.
//
// The second group adds volumes that lose the agent's records or all files, users who edit files and create views, and prune
// mirror. A file may differ from git only because of a user's edit, never because it is an older version. No node may wait forever.
func TestPairSyncedHasCommit(t *testing.T) {
	t.Parallel() // it waits for the gateway most of the time
	if os.Getenv(flipEnv) != "" {
		t.Skip("takes long, and runs without flipped unknowns")
	}
	policies := []v1alpha1.ConflictPolicy{v1alpha1.ConflictGitWins, v1alpha1.ConflictHold, v1alpha1.ConflictGatewayWins}
	alone, among := []uint64{2, 14, 15, 28, 34, 58}, []uint64{0, 1, 2, 3, 4, 5}
	if testing.Short() { // one of each policy
		alone, among = []uint64{14, 15, 28}, []uint64{0, 4, 5}
	}
	for _, seed := range alone {
		policy := policies[seed%3]
		t.Run(fmt.Sprintf("%d %s", seed, policy), func(t *testing.T) { newHistory(t, seed, policy).run(40) })
	}
	for _, seed := range among {
		policy := policies[seed%3]
		t.Run(fmt.Sprintf("%d %s with users", seed, policy), func(t *testing.T) {
			h := newHistory(t, seed, policy)
			h.invite(seed >= 3)
			h.run(40)
			h.settle()
		})
	}
}

// history makes random steps with a pair, and checks each sync.
type history struct {
	pair
	t      *testing.T
	dice   *rand.Rand
	nodes  [2]*bench
	looked [2]bool // synced since the last failover
	want   map[string]string
	log    []string

	people *people // nil without users
	active int     // the node with config access
}

func newHistory(t *testing.T, seed uint64, policy v1alpha1.ConflictPolicy) *history {
	h := &history{pair: newPair(t, simulator.Options{}), t: t, dice: rand.New(rand.NewPCG(seed, 7)), looked: [2]bool{true, true}, want: map[string]string{}}
	h.nodes = [2]*bench{h.master, h.backup}
	for _, b := range h.nodes {
		b.target.Profile.ConflictPolicy = policy
	}
	h.commit(map[string]string{
		"projects/line/project.json":         project("", false),
		"config/resources/core/kept.txt":     "keeps the source",
		"config/resources/external/kept.txt": "keeps this source, too",
		view:                                 `{"n":0}`,
		viewDir + "/resource.json":           listing("view.json"),
	})
	h.master.synced()
	h.backup.standby()
	return h
}

func listing(file string) string {
	return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{}}`
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) run(steps int) {
	for range steps {
		if h.people != nil && h.dice.IntN(3) == 0 {
			h.live()
			continue
		}
		switch k := h.dice.IntN(12); {
		case k < 4:
			h.change()
		case k < 10:
			h.sync(h.dice.IntN(2))
		case k < 11 && h.looked == [2]bool{true, true}:
			h.Failover(true)
			h.looked = [2]bool{}
			h.active = 1 - h.active
			h.say("failover")
		case k == 11:
			paused := h.dice.IntN(2) == 0
			h.Pause(paused)
			require.NoError(h.t, h.Replicate())
			h.say("copying paused: %t", paused)
		}
	}
}

// resources maps the resources that come and go to their data file.
var resources = map[string]string{
	viewDir: "view.json",
	"projects/line/com.inductiveautomation.perspective/views/two": "view.json",
	db: "config.json", external: "config.json",
}

// change creates, changes or deletes one of the resources in git.
func (h *history) change() {
	dir := slices.Sorted(maps.Keys(resources))[h.dice.IntN(len(resources))]
	file := resources[dir]
	edits := map[string]string{dir + "/" + file: "", dir + "/resource.json": ""}
	if h.dice.IntN(4) > 0 {
		edits[dir+"/"+file], edits[dir+"/resource.json"] = fmt.Sprintf(`{"n":%d}`, h.dice.IntN(4)), listing(file)
	}
	if h.dice.IntN(3) == 0 {
		edits["projects/line/README.md"] = fmt.Sprint(len(h.log))
	}
	h.commit(edits)
}

// commit pushes contents; "" deletes the file.
func (h *history) commit(edits map[string]string) {
	var list []gitserver.Edit
	for _, path := range slices.Sorted(maps.Keys(edits)) {
		content := edits[path]
		_, there := h.want[path]
		switch {
		case content != "":
			h.want[path] = content
			list = append(list, gitserver.Write(path, content))
		case there:
			delete(h.want, path)
			list = append(list, gitserver.Delete(path))
		}
	}
	if len(list) == 0 {
		return
	}
	id := h.push(list...)
	h.say("%s: %v", id.Short(), edits)
}

func (h *history) sync(node int) *sync.Report {
	b := h.nodes[node]
	b.target.Repair = h.dice.IntN(5) == 0
	r := b.sync()
	h.looked[node] = true
	h.say("node %d (repair %t): %s", node, b.target.Repair, r)
	if r.Phase == v1alpha1.GatewayPending {
		return r
	}
	require.Contains(h.t, []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby}, r.Phase, h)
	require.Equal(h.t, b.target.Commit, r.Commit, h)
	for path, content := range h.want {
		got := b.read(path)
		if strings.HasSuffix(path, "resource.json") && got != "" {
			continue // the gateway signs this file
		}
		if h.edited(got) {
			continue
		}
		require.Equal(h.t, content, got, "node %d, %s\n%s", node, path, h)
	}
	for dir, file := range resources {
		path := dir + "/" + file
		if got := b.read(path); h.want[path] == "" && got != "" && !h.edited(got) && !h.inherited(node, dir) {
			require.Contains(h.t, r.Message, dir, "node %d does not report %s, which is not in git\n%s", node, path, h)
		}
	}
	h.met(node)
	return r
}

func (h *history) String() string { return strings.Join(h.log, "\n") }

// C14 of docs/internals/threats.md: a standby that waits keeps the commit of its manifest. If no sync has written that commit, git still has to
// confirm it.
func TestStandbyKeepsUnconfirmedCommit(t *testing.T) {
	p := newPair(t, simulator.Options{}).delivered()
	second := p.push(gitserver.Write(view, `{"two": 2}`))
	p.push(gitserver.Write(view, `{"three": 3}`))
	require.NoError(t, p.backup.engine.SetRecord(record.Record{Ref: "main", Commit: second}))
	p.waits()
	asked := 0
	p.backup.target.Commit, p.backup.target.Admit = second, func(context.Context) (string, error) {
		asked++
		return p.backup.target.Name, nil
	}
	p.waits()
	assert.Equal(t, 1, asked)
}
