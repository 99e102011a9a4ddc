package sync_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const second = "projects/line/com.inductiveautomation.perspective/views/two"

func secondView(content string) []gitserver.Edit {
	return []gitserver.Edit{gitserver.Write(second+"/view.json", content), gitserver.Write(second+"/resource.json", listing("view.json"))}
}

// These tests use pair of standby_test.go: settled syncs both nodes, waits expects that the backup waits for the master, and standby that a node
// has the commit without config access.

// ofPairs skips the test in the runs of TestUnknowns, because it is slow, except in those that flip only an unknown that affects pairs.
func ofPairs(t *testing.T) {
	t.Helper()
	if name := os.Getenv(flipEnv); !slices.Contains([]string{"", "SignConfig", "ReplicateAllFiles"}, name) {
		t.Skip("a pair does not ask for " + name)
	}
}

// behind syncs both nodes to the first commit, which also has the edits base. The backup's agent misses the second commit (slept), which the
// pair replicates, and sees the third one (then).
func behind(t *testing.T, policy v1alpha1.ConflictPolicy, base, slept, then []gitserver.Edit) pair {
	t.Helper()
	p := newPair(t, simulator.Options{})
	for _, b := range p.both() {
		b.target.Profile.ConflictPolicy = policy
	}
	p.push(append(firstCommit(), base...)...)
	p.settled()
	p.push(slept...)
	p.master.synced()
	p.push(then...)
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "replicated files do not match "+p.backup.target.Commit.Short())
	return p
}

func TestTakeoverDuringRevert(t *testing.T) {
	ofPairs(t)
	p := behind(t, "", nil, []gitserver.Edit{gitserver.Write(view, `{"bad": 1}`)}, []gitserver.Edit{gitserver.Write(view, `{"one": 1}`)})
	p.Failover(true)
	r := p.backup.synced()
	assert.Equal(t, `{"one": 1}`, p.backup.read(view))
	assert.Equal(t, 2, r.Files.Saved, "the view, and its resource.json with it")
	p.master.standby()
	assert.Equal(t, `{"one": 1}`, p.master.read(view))
	assert.Zero(t, p.backup.synced().Files.Saved)
}

func TestReplicatedFileUnderConflictPolicy(t *testing.T) {
	ofPairs(t)
	edits := func(edits ...gitserver.Edit) []gitserver.Edit { return edits }
	for _, policy := range []v1alpha1.ConflictPolicy{v1alpha1.ConflictGitWins, v1alpha1.ConflictHold, v1alpha1.ConflictGatewayWins} {
		t.Run(string(policy), func(t *testing.T) {
			p := behind(t, policy,
				edits(gitserver.Write(second+"/view.json", `{}`), gitserver.Write(second+"/resource.json", listing("view.json")),
					gitserver.Write("config/resources/core/kept.txt", "keeps the source")),
				edits(gitserver.Write(view, `{"two": 2}`), gitserver.Write(db+"/config.json", `{"url": "other"}`),
					gitserver.Delete(second+"/view.json"), gitserver.Delete(second+"/resource.json")),
				edits(gitserver.Write(view, `{"three": 3}`), gitserver.Delete(db+"/config.json"), gitserver.Delete(db+"/resource.json"),
					gitserver.Write(second+"/view.json", `{"three": 3}`), gitserver.Write(second+"/resource.json", listing("view.json"))))
			p.Failover(true)
			assert.Zero(t, p.backup.synced().Files.Kept)
			p.master.standby()
			for _, b := range []*bench{p.backup, p.master} {
				assert.Equal(t, `{"three": 3}`, b.read(view))
				assert.Equal(t, `{"three": 3}`, b.read(second+"/view.json"))
				assert.Empty(t, b.read(db+"/config.json"))
			}
		})
	}
}

// A node at the target commit is overwritten by replication from a node that is behind. It must report this on standby and restore
// the commit at the next failover.
func TestTakeoverAfterReplication(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{}).delivered()
	p.Pause(true)
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	p.Failover(true)
	p.Pause(false)
	require.NoError(t, p.Replicate())
	require.Equal(t, `{"one": 1}`, p.master.read(view))
	r := p.master.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.True(t, r.Paired)
	p.Failover(true)
	r = p.master.synced()
	assert.True(t, r.Paired, "the agent polls the role again")
	assert.Equal(t, `{"two": 2}`, p.master.read(view))
}

// The pair replicates a user's edit from the active node. The standby first waits, because the edit could be part of a commit, and
// then reports drift. A failover restores the commit.
func TestReplicatedDriftIsReported(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	p.push(append(firstCommit(), night()...)...)
	p.settled()
	p.master.put(view, `{"mine": 1}`)
	require.NoError(t, p.Replicate())
	require.Equal(t, `{"mine": 1}`, p.backup.read(view))

	p.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	p.master.synced()
	p.waits()
	*now = now.Add(4 * time.Minute)
	r := p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, viewDir)
	*now = now.Add(time.Minute)
	r = p.backup.standby()
	assert.Contains(t, r.Message, "that were changed on the gateway ("+viewDir)
	assert.Contains(t, p.backup.standby().Message, "changed on the gateway", "also from a sync without changes")

	p.push(gitserver.Write(db+"/config.json", `{"url": "third"}`))
	p.waits()
	p.master.synced()
	assert.Contains(t, p.backup.standby().Message, "changed on the gateway", "the standby waits only once")
	p.master.put(view, `{"mine": 2}`)
	require.NoError(t, p.Replicate())
	p.push(gitserver.Write(db+"/config.json", `{"url": "fourth"}`))
	p.master.synced()
	p.waits()

	p.Failover(true)
	assert.NotZero(t, p.backup.synced().Files.Saved)
	assert.Equal(t, `{"one": 1}`, p.backup.read(view))
}

// A node that loses its config access again waits for the other one again, although it once waited for the same commit.
func TestSecondStepDownWaits(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{}).delivered()
	now := p.backup.clock()
	p.master.put(view, `{"mine": 1}`)
	require.NoError(t, p.Replicate())
	p.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	p.waits()
	p.master.target.Force = "now"
	p.settled()
	p.Failover(true)
	p.backup.synced()
	*now = now.Add(time.Hour)
	p.Failover(true)
	p.master.synced()
	p.master.put(view, `{"mine": 2}`)
	require.NoError(t, p.Replicate())
	assert.Contains(t, p.waits(), viewDir)
	*now = now.Add(5 * time.Minute)
	assert.Contains(t, p.backup.standby().Message, "that were changed on the gateway ("+viewDir)
}

// The backup's agent misses a commit that adds a view and the next one that removes it. The agent must not delete the view, and
// reports it while it exists.
func TestReplicatedFileIsReported(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	p.push(append(firstCommit(), gitserver.Write("config/resources/core/kept.txt", "keeps the source"))...)
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, "the pair copied", "the first files are not replicated files")
	p.push(secondView(`{"bad": 1}`)...)
	p.master.synced()
	p.push(gitserver.Delete(second+"/view.json"), gitserver.Delete(second+"/resource.json"))
	assert.Contains(t, p.backup.standby().Message, "the pair copied 1 resources that are in no commit of this node ("+second)
	p.Failover(true)
	for range 2 {
		assert.Contains(t, p.backup.synced().Message, second+" first")
	}
	r := p.master.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, second, "the message names the view to be deleted")

	require.NoError(t, os.RemoveAll(filepath.Join(p.backup.data, second)))
	require.NoError(t, p.Replicate())
	assert.NotContains(t, p.backup.synced().Message, second)
	p.master.standby()

	p.push(secondView(`{"good": 1}`)...)
	assert.NotContains(t, p.backup.synced().Message, "the pair copied")
	assert.NotContains(t, p.master.standby().Message, "the pair copied")
}

// A gateway whose API fails for a moment keeps its role.
func TestActiveBackupWithoutRole(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	p.push(firstCommit()...)
	p.Failover(true)
	p.backup.synced()
	p.backup.put(view, `{"mine": 1}`)
	p.backup.fault(simulator.Fault{Route: "GET /data/api/v1/redundancy", Status: 500})
	r := p.backup.synced()
	assert.True(t, r.Paired)
	p.backup.synced()
	assert.Equal(t, `{"mine": 1}`, p.backup.read(view), "the edit is drift, because no node took over")
}

// The role on the disk says that a master has config access, but after a failover it has none.
func TestStandbyMasterWithoutAnswer(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	p.push(firstCommit()...)
	p.master.synced()
	p.Failover(true)
	p.master.standby()
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.fault(simulator.Fault{Route: "GET /data/api/v1/redundancy", Status: 500, Times: 1})
	for range 2 { // without an answer, and with one
		r := p.master.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.True(t, r.Paired)
		assert.Equal(t, `{"one": 1}`, p.master.read(view))
	}
	p.backup.synced()
	p.master.standby()
}

// F17 of docs/internals/threats.md: a path that the gateway wrote into a note of the agent stops no sync.
func TestForgedNoteOfReplicatedFiles(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{}).delivered()
	for _, path := range []string{"../x", ".stoker/x", strings.Repeat("x", 1000)} {
		p.master.put(".stoker/note-pair-brought", path)
		p.backup.put(".stoker/note-pair-brought", path)
		p.settled()
	}
}

// A user edits a file in git without updating the signature in resource.json. A gateway that compares only resource.json would keep
// the old file, and no API would show that.
func TestHandEditedResource(t *testing.T) {
	signed := func(file string) string {
		return `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["` + file + `"],"attributes":{` +
			`"lastModification":{"actor":"maria","timestamp":"2026-01-01T00:00:00Z"},"lastModificationSignature":"00ff"}}`
	}
	b := newBench(t, simulator.Options{Unknowns: simulator.Unknowns{SkipUnchanged: true}})
	b.push(append(firstCommit(), gitserver.Write(viewDir+"/resource.json", signed("view.json")), gitserver.Write(db+"/resource.json", signed("config.json")))...)
	b.synced()
	// sequence: one edit after the other
	for _, edited := range []string{`{"two": 2}`, `{"three": 3}`} {
		b.push(gitserver.Write(view, edited), gitserver.Write(db+"/config.json", edited))
		b.synced()
		sum := sha256.Sum256([]byte(edited))
		assert.Equal(t, hex.EncodeToString(sum[:]), b.gw.Data.Loaded(viewDir)["view.json"])
		assert.Equal(t, hex.EncodeToString(sum[:]), b.gw.Data.Loaded(db)["config.json"])
	}
	assert.Zero(t, b.drift(true).Files)
	b.gw.Requests.Reset()
	b.target.Force = "again"
	r := b.synced()
	assert.Zero(t, r.Files.Modified, "a forced sync changes nothing: %s", r)
}

// edit writes a file on the active node, as a user would, and lets the pair replicate it.
func (p pair) edit(path, content string) {
	p.master.t.Helper()
	p.master.put(path, content)
	require.NoError(p.master.t, p.Replicate())
	require.Equal(p.master.t, content, p.backup.read(path))
}

// The backup's volume is new or lost its .stoker. The agent has no record of a file that was edited on the active node.
func TestNewBackupBesideDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	p.push(firstCommit()...)
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	assert.Contains(t, p.waits(), viewDir)
	*now = now.Add(4 * time.Minute)
	assert.True(t, p.backup.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing).Commit.IsZero(), "the reported commit is never ahead of the disk")
	*now = now.Add(time.Minute)
	assert.Contains(t, p.backup.standby().Message, "that were changed on the gateway ("+viewDir)
	assert.Equal(t, `{"mine": 1}`, p.backup.read(view))

	p.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	p.waits()
	p.master.synced()
	assert.Contains(t, p.backup.standby().Message, "changed on the gateway", "the standby waits only once")

	p.push(gitserver.Write(view, `{"two": 2}`))
	p.waits()
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, "changed on the gateway")
	assert.Equal(t, `{"two": 2}`, p.backup.read(view))
}

// A commit adds a view, and a user edits it and another one on the active node before the backup's agent sees it. The agent waits for both
// together.
func TestEditedViewIsDriftOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	p.delivered()
	p.push(secondView(`{"two": 2}`)...)
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	p.edit(second+"/view.json", `{"mine": 2}`)
	p.waits()
	*now = now.Add(5 * time.Minute)
	p.backup.standby()

	p.Failover(true)
	p.backup.synced()
	assert.Equal(t, `{"two": 2}`, p.backup.read(second+"/view.json"))
	assert.Equal(t, `{"one": 1}`, p.backup.read(view))
}

// A file without a record may belong to the commit of the other node. The time until it counts as drift runs only while all other
// files match and no replication is pending.
func TestUnrecordedFileOfPairIsNotDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	look := func(why string) {
		t.Helper()
		for range 2 {
			assert.Contains(t, p.waits(), "replicated files do not match", why)
			*now = now.Add(4 * time.Minute)
		}
	}
	p.push(firstCommit()...)
	p.master.synced() // the backup's agent misses this commit
	p.push(gitserver.Write(view, `{"two": 2}`), gitserver.Write(second+"/view.json", `{}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	look("the second view is missing")
	p.Pause(true)
	p.master.synced()
	look("the replication is pending")
	p.backup.gw.Redundancy.SetConfigAccess(false, false)
	p.backup.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonNoConfigAccess)
	*now = now.Add(4 * time.Minute)
	p.backup.gw.Redundancy.SetConfigAccess(false, true)
	p.Pause(false)
	require.NoError(t, p.Replicate())
	p.edit(view, `{"mine": 1}`)
	p.waits()
	*now = now.Add(4 * time.Minute)
	p.edit(view, `{"mine": 2}`)
	look("the file was edited again")
	p.backup.standby()
	assert.Equal(t, `{}`, p.backup.read(second+"/view.json"))

	p.push(gitserver.Write(view, `{"three": 3}`))
	look("a new commit changes the file")
}

func TestActiveNodeFileIsDriftOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.backup.clock()
	for _, b := range p.both() {
		b.target.Profile.ConflictPolicy = v1alpha1.ConflictGatewayWins
		b.put("projects/line/project.json", project("", false))
		b.put(view, `{"of": "the plant"}`)
		b.put(viewDir+"/resource.json", listing("view.json"))
	}
	p.push(firstCommit()...)
	p.master.synced()
	assert.Equal(t, `{"of": "the plant"}`, p.master.read(view))
	p.waits()
	*now = now.Add(5 * time.Minute)
	p.backup.standby()
}

// A user creates a view on the active node. With prune mirror, the next sync of that node deletes the view. Until then the backup need not
// wait, because no file is missing.
func TestLateViewUnderMirror(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	for _, b := range p.both() {
		b.target.Profile.Prune = v1alpha1.PruneMirror
		b.target.Profile.Mappings = []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}
	}
	p.delivered()
	p.push(gitserver.Write(view, `{"two": 2}`))
	p.master.synced()
	p.edit(second+"/resource.json", listing("view.json"))
	p.edit(second+"/view.json", `{"mine": 1}`)
	assert.Contains(t, p.backup.standby().Message, second, "the message names the view")

	p.push(gitserver.Write(view, `{"three": 3}`))
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, second)
	assert.Empty(t, p.backup.read(second+"/view.json"))
}
