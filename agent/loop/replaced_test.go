package loop

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// delivered is a loop that has delivered two commits to a data directory, each with its own title.
type delivered struct {
	t             *testing.T
	loop          *Loop
	src           *wants
	now           *time.Time
	data          string
	first, second plan.ID
	// push makes the next iteration deliver a new commit, with an order that edit may change. commit also delivers it.
	push, commit func(title string) plan.ID
	git          *gitserver.Repo
	edit         func(o *Order)
}

const titled = "projects/line/project.json"

// deliveredTwice returns a loop that has delivered a commit with the title one, and then one with the title two. It calls between in between.
func deliveredTwice(t *testing.T, between func(data string)) *delivered {
	t.Helper()
	dir := t.TempDir()
	d := &delivered{t: t, data: filepath.Join(dir, "data"), src: &wants{}, edit: func(*Order) {}}
	require.NoError(t, os.MkdirAll(filepath.Join(d.data, "config/resources/core"), 0o755))
	git := gitserver.NewRepo(t, filepath.Join(dir, "git"))
	d.git = git
	url, err := repo.ParseURL(git.Dir)
	require.NoError(t, err)
	remote, err := repo.NewRemote(url, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	store, err := repo.Open(filepath.Join(dir, "objects"), repo.StoreOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	d.loop, d.now = newLoop(t, sync.Config{DataDir: d.data, Store: store, Limits: plan.DefaultLimits}, Config{})
	d.push = func(title string) plan.ID {
		id, err := plan.ParseID(git.Commit(title, gitserver.Write(titled, `{"title": "`+title+`"}`)))
		require.NoError(t, err)
		d.src.decision.Order = &Order{Connections: sync.Connections{Remote: remote}, Task: sync.Task{
			Target:  sync.Target{Commit: id, Ref: "main", Name: "refs/heads/main"},
			Profile: effective.Settings{Mappings: []v1alpha1.Mapping{{Source: "projects", Destination: "projects"}}},
		}}
		d.edit(d.src.decision.Order)
		return id
	}
	d.commit = func(title string) plan.ID {
		id := d.push(title)
		d.turn()
		d.runs(id, title)
		return id
	}
	d.first = d.commit("one")
	between(d.data)
	d.second = d.commit("two")
	return d
}

// turn runs one iteration, then lets a period pass.
func (d *delivered) turn() State {
	d.t.Helper()
	d.loop.Iterate(d.t.Context(), d.src, false)
	*d.now = d.now.Add(d.loop.Period)
	return d.loop.State()
}

// save writes the delivered file as the gateway does.
func (d *delivered) save(content string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(filepath.Join(d.data, titled), []byte(content), 0o644))
}

func (d *delivered) has(content string) {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.data, titled))
	require.NoError(d.t, err)
	assert.Equal(d.t, content, string(b))
}

// compare makes a comparison due.
func (d *delivered) compare() { d.loop.drift.due = *d.now }

// note sets the record of the proposal.
func (d *delivered) note(content string) {
	d.t.Helper()
	require.NoError(d.t, d.loop.Engine.Dir().SetNote("proposal", []byte(content)))
}

func (d *delivered) runs(commit plan.ID, title string) {
	d.t.Helper()
	s := d.loop.State()
	require.Equal(d.t, v1alpha1.GatewaySynced, s.Phase, s.Line())
	assert.Equal(d.t, commit, s.Commit)
	d.has(`{"title": "` + title + `"}`) // the state is never ahead of the disk
}

func remove(t *testing.T, data string, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.RemoveAll(filepath.Join(data, name)))
	}
}

func copied(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(to, 0o755))
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestGatewayBackupRestored(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	remove(t, d.data, ".stoker")
	d.save(`{"title": "of a backup"}`)
	d.turn()
	d.runs(d.second, "two")
}

func TestOlderVolumeRestored(t *testing.T) {
	older := filepath.Join(t.TempDir(), "older")
	d := deliveredTwice(t, func(data string) { copied(t, data, older) })
	remove(t, d.data, ".stoker", "projects", "config")
	copied(t, older, d.data)
	d.turn()
	d.runs(d.second, "two")

	// If the loop may not write, it reports the commit that is on the disk now.
	remove(t, d.data, ".stoker", "projects", "config")
	copied(t, older, d.data)
	d.src.decision.DoNotTouch = true
	d.src.decision.Problems = []Problem{{v1alpha1.ReasonWaitingForLead, "the target is gone"}}
	s := d.turn()
	assert.Equal(t, d.first, s.Commit, s.Line())
	assert.Nil(t, s.Report, "the report of the sync to the other commit is dropped")
}

// The volume is replaced after an iteration has opened it, and before its sync.
func TestVolumeReplacedDuringIteration(t *testing.T) {
	change := func(d *delivered) {
		t.Helper()
		d.edit = func(o *Order) { proposes(o, v1alpha1.StrategyGitWins, time.Hour, nil) }
		d.commit("three")
		d.save(`{"title": "mine"}`)
		d.compare()
		require.Equal(t, 1, d.turn().Drift.Files)
	}
	t.Run("older volume", func(t *testing.T) {
		older := filepath.Join(t.TempDir(), "older")
		d := deliveredTwice(t, func(data string) { copied(t, data, older) })
		change(d)
		d.push("four")
		d.src.decision.Order.Admit = func(context.Context) (string, error) { return "", errors.New("not now") }
		d.src.then = func() {
			remove(t, d.data, ".stoker", "projects", "config")
			copied(t, older, d.data)
		}
		s := d.turn()
		require.Error(t, s.Report.Err)
		assert.Equal(t, d.first, s.Commit)
		assert.Nil(t, s.Drift, "drift of the other volume")
		assert.Nil(t, d.loop.proposal)
	})
	t.Run("emptied volume", func(t *testing.T) {
		d := deliveredTwice(t, func(string) {})
		change(d)
		d.push("four")
		d.src.then = func() { remove(t, d.data, ".stoker", "projects", "config") }
		s := d.turn()
		assert.Equal(t, v1alpha1.ReasonWaitingForGateway, s.Reason, s.Line())
		assert.Nil(t, s.Drift)
	})
	t.Run("emptied volume, found by a comparison", func(t *testing.T) {
		d := deliveredTwice(t, func(string) {})
		change(d)
		d.compare()
		d.src.then = func() { remove(t, d.data, ".stoker", "projects", "config") }
		assert.Nil(t, d.turn().Drift)
	})
}

// A copy over existing files keeps every inode.
func TestOlderVolumeCopiedOver(t *testing.T) {
	older := filepath.Join(t.TempDir(), "older")
	d := deliveredTwice(t, func(data string) { copied(t, data, older) })
	copied(t, older, d.data)
	d.turn()
	d.runs(d.second, "two")
	d.commit("three")
}

func TestDamagedManifest(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	path := filepath.Join(d.data, ".stoker/manifest")
	fi, err := os.Stat(path)
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[20] ^= 1 // any byte
	require.NoError(t, os.WriteFile(path, b, 0o600))
	require.NoError(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
	d.save(`{"title": "of an unknown writer"}`)
	d.turn() // detects the damage
	d.turn() // starts a new sync
	d.runs(d.second, "two")
	d.commit("three")
}

// The loop must not keep reporting Synced if it cannot check the files.
func TestUnreadableFilesAreNotSynced(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	d.loop.Period = time.Hour
	look := func(err error) State {
		d.loop.recordComparison(err)
		d.loop.publish()
		return d.loop.State()
	}
	denied := errors.New("look at projects: permission denied")
	assert.Equal(t, v1alpha1.GatewaySynced, look(denied).Phase, "only two failures in a row count, because a file may vanish during a comparison")
	assert.Less(t, d.loop.drift.due.Sub(*d.now), 2*time.Second, "the next check is soon")
	s := look(denied)
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, v1alpha1.ReasonWriteFailed, s.Reason)
	assert.Contains(t, s.Message, denied.Error())
	assert.Equal(t, d.second, s.Commit)
	assert.Equal(t, v1alpha1.ReasonNoSpace, look(failure.New(v1alpha1.ReasonNoSpace, "no room")).Reason)
	d.loop.decision.Problems = []Problem{{v1alpha1.ReasonWaitingForLead, "no agent leads"}}
	assert.Equal(t, v1alpha1.ReasonWaitingForLead, look(denied).Reason, "the problem of the target takes precedence")
	d.loop.decision.Problems = nil
	assert.Equal(t, v1alpha1.GatewaySynced, look(nil).Phase)
	assert.Equal(t, time.Hour, d.loop.drift.due.Sub(*d.now))
	assert.Equal(t, v1alpha1.GatewaySynced, look(denied).Phase, "a success resets the count")
}

func TestEmptiedVolumeIsNotSynced(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	remove(t, d.data, ".stoker", "projects", "config")
	for range 3 {
		s := d.turn()
		assert.Equal(t, v1alpha1.ReasonWaitingForGateway, s.Reason, s.Line())
		assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
		assert.True(t, s.Commit.IsZero(), s.Line())
	}
	require.NoError(t, os.MkdirAll(filepath.Join(d.data, "config/resources/core"), 0o755))
	d.turn()
	d.runs(d.second, "two")
}

func TestUnchangedDirectory(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	was := d.loop.State().Report
	for range 10 {
		assert.Same(t, was, d.turn().Report)
	}
}

// The retry of a failed repair is still that repair, so the state keeps reporting an error.
func TestFailedRepairIsReported(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	o := *d.src.decision.Order
	o.Profile.DriftPolicy = v1alpha1.DriftRepair
	d.src.decision.Order = &o
	d.turn()
	d.runs(d.second, "two")
	file := filepath.Join(d.data, titled)
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(file, "of-the-gateway"), nil, 0o600))
	var said []v1alpha1.GatewaySyncState
	for range 60 {
		if s := d.turn(); len(said) == 0 || said[len(said)-1] != s.Phase {
			said = append(said, s.Phase)
		}
	}
	assert.Equal(t, []v1alpha1.GatewaySyncState{v1alpha1.GatewayError}, said)
	assert.Zero(t, d.loop.drift.repairs, "a failed repair does not count")

	require.NoError(t, os.RemoveAll(file))
	require.NoError(t, os.WriteFile(file, []byte(`{"title": "by hand"}`), 0o600))
	for range 60 {
		if d.turn().Phase == v1alpha1.GatewaySynced {
			break
		}
	}
	d.runs(d.second, "two")
	assert.Equal(t, 1, d.loop.drift.repairs)
	assert.Greater(t, d.loop.drift.due.Sub(*d.now), -d.loop.Period, "the next comparison is due a period after the repair; turn has advanced the clock by one since")
	for range 3 {
		d.turn()
	}
	assert.Zero(t, d.loop.drift.repairs, "no file has changed since")
}

// A repair after a delivery has a report of its own: the report of the delivery must not be lost.
func TestRepairAfterDelivery(t *testing.T) {
	bucket := &archivetest.Memory{}
	d := deliveredTwice(t, func(string) {})
	const other = "projects/line/other.json"
	d.git.Commit("other", gitserver.Write(other, "{}"))
	d.commit("three")
	d.edit = func(o *Order) {
		o.Profile.DriftPolicy = v1alpha1.DriftRepair
		o.Profile.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 5, MaxSize: "1Gi",
			Storage: &v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3, Bucket: "b"}}
		o.Facts.Namespace, o.Facts.CRName, o.Facts.GatewayName = "plant", "line", "g"
		o.Connections.Storage = bucket
	}
	d.loop.Once = true
	require.NoError(t, os.WriteFile(filepath.Join(d.data, other), []byte(`{"a": 1}`), 0o644))
	id := d.push("four")
	s := d.turn()
	require.Equal(t, v1alpha1.GatewaySynced, s.Phase, s.Line())
	require.Len(t, s.History, 5, "three deliveries, the fourth, and its repair")
	assert.Equal(t, id, s.History[1].Commit)
	var stored []v1alpha1.SnapshotStored
	for _, snapshot := range s.Snapshots {
		stored = append(stored, snapshot.Stored)
	}
	assert.Equal(t, []v1alpha1.SnapshotStored{v1alpha1.StoredBoth, v1alpha1.StoredLocal}, stored, "repairs stay on the volume")
}
