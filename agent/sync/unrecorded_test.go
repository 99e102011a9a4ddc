package sync_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// clocked gives the backup's agent a clock that the test controls.
func (p pair) clocked() *time.Time {
	now := time.Now()
	p.backup.engine.Now = func() time.Time { return now }
	return &now
}

func (p pair) edit(path, content string) {
	p.master.t.Helper()
	require.NoError(p.master.t, os.MkdirAll(filepath.Dir(filepath.Join(p.master.data, path)), 0o755))
	p.master.put(path, content)
	require.NoError(p.master.t, p.Replicate())
	require.Equal(p.master.t, content, p.backup.read(path))
}

func waiting(b *bench) *sync.Report {
	b.t.Helper()
	return b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
}

// The backup's volume is new or lost its .stoker. The agent has no record of a file that was edited on the active node.
func TestNewBackupBesideDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	assert.Contains(t, waiting(p.backup).Message, viewDir)
	*now = now.Add(4 * time.Minute)
	assert.True(t, waiting(p.backup).Commit.IsZero(), "the reported commit is never ahead of the disk")
	*now = now.Add(time.Minute)
	assert.Contains(t, p.backup.standby().Message, "that were changed on the gateway ("+viewDir)
	assert.Equal(t, `{"mine": 1}`, p.backup.read(view))

	p.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	waiting(p.backup)
	p.master.synced()
	assert.Contains(t, p.backup.standby().Message, "changed on the gateway", "the standby waits only once")

	p.push(gitserver.Write(view, `{"two": 2}`))
	waiting(p.backup)
	p.master.synced()
	assert.NotContains(t, p.backup.standby().Message, "changed on the gateway")
	assert.Equal(t, `{"two": 2}`, p.backup.read(view))
}

// A commit adds a view, and a user edits it on the active node before the backup's agent sees it.
func TestEditedViewIsDriftOnStandby(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(second+"/view.json", `{"two": 2}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	p.master.synced()
	p.edit(second+"/view.json", `{"mine": 1}`)
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()

	p.Failover(true)
	p.backup.synced()
	assert.Equal(t, `{"two": 2}`, p.backup.read(second+"/view.json"))
}

// A file without a record may belong to the commit of the other node. The time until it counts as drift runs only while all other
// files match and no replication is pending.
func TestUnrecordedFileOfPairIsNotDrift(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	look := func(why string) {
		t.Helper()
		for range 2 {
			assert.Contains(t, waiting(p.backup).Message, "replicated files do not match", why)
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
	waiting(p.backup)
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
	now := p.clocked()
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.ConflictPolicy = v1alpha1.ConflictGatewayWins
		require.NoError(t, os.MkdirAll(filepath.Join(b.data, viewDir), 0o755))
		b.put("projects/line/project.json", project("", false))
		b.put(view, `{"of": "the plant"}`)
		b.put(viewDir+"/resource.json", listing("view.json"))
	}
	p.push(firstCommit()...)
	p.master.synced()
	assert.Equal(t, `{"of": "the plant"}`, p.master.read(view))
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()
}

// With prune mirror, the next sync of the active node deletes the view. Until then the backup need not wait, because no file is
// missing.
func TestLateViewUnderMirror(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	for _, b := range []*bench{p.master, p.backup} {
		b.target.Profile.Prune = v1alpha1.PruneMirror
		b.target.Profile.Mappings = []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}
	}
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
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

func TestDriftWaitsTogether(t *testing.T) {
	ofPairs(t)
	p := newPair(t, simulator.Options{})
	now := p.clocked()
	p.push(firstCommit()...)
	p.master.synced()
	p.backup.standby()
	p.push(gitserver.Write(second+"/view.json", `{"two": 2}`), gitserver.Write(second+"/resource.json", listing("view.json")))
	p.master.synced()
	p.edit(view, `{"mine": 1}`)
	p.edit(second+"/view.json", `{"mine": 2}`)
	waiting(p.backup)
	*now = now.Add(5 * time.Minute)
	p.backup.standby()
}
