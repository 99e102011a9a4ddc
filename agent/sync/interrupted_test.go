package sync_test

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// failing is a data volume on which steps fail; nil: none.
type failing func(e safe.Effect) bool

func (f *failing) around(e safe.Effect, do func() error) error {
	if *f != nil && (*f)(e) {
		return syscall.EIO
	}
	return do()
}

// from makes a step and all later ones fail.
func from(first failing) failing {
	fails := false
	return func(e safe.Effect) bool {
		fails = fails || first(e)
		return fails
	}
}

// A volume fails while files move, or after the manifest is written, and works again later.
func TestInterruptedSync(t *testing.T) {
	begin := func(t *testing.T) (b *bench, volume *failing, one, two plan.ID) {
		b, volume = newSnapshotBench(t, simulator.Options{}), new(failing)
		b.engine.Disk.Around = volume.around
		one = b.push(firstCommit()...)
		b.synced()
		two = b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write(viewDir+"/z.txt", "new"))
		b.gw.Requests.Reset()
		return b, volume, one, two
	}
	moves := func(e safe.Effect) bool { return e.Op == "syncdir" && strings.HasPrefix(e.Path, viewDir) } // all files have moved
	committed := func(e safe.Effect) bool { return e.Op == "remove" && e.Path == ".stoker/journal" }
	scans := func(b *bench) int { return b.gw.Requests.Count(scanProjects) }
	whole := audit.Files{Added: 1, Modified: 2} // the view and its resource.json

	t.Run("the gateway loads no mixture", func(t *testing.T) {
		b, volume, one, two := begin(t)
		*volume = from(moves)
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonWriteFailed)
		require.Contains(t, r.Message, "the rollback failed")
		assert.Equal(t, one, r.Commit)
		assert.Zero(t, scans(b), "files of two commits may be live")
		*volume = nil
		b.synced()
		assert.Equal(t, `{"one": 2}`, b.read(view))
		assert.Positive(t, scans(b))
		var list []plan.ID
		for _, e := range b.audited() {
			list = append(list, e.To)
		}
		assert.Equal(t, []plan.ID{one, two}, list, "the volume could not record the failure")
	})
	t.Run("the end could not be recorded", func(t *testing.T) {
		b, volume, one, two := begin(t)
		*volume = committed
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonWriteFailed)
		assert.Equal(t, sync.Counts{Added: 1, Modified: 2, Total: r.Files.Total}, r.Files)
		require.Len(t, r.Snapshots, 1)
		assert.Equal(t, []string{r.Snapshots[0].ID}, r.NewSnapshots)
		*volume = nil
		require.NoError(t, b.engine.Close()) // as after a restart
		b.synced()
		list := b.audited()
		require.Len(t, list, 2, "the recovery is no sync of its own")
		assert.Equal(t, []plan.ID{one, two}, []plan.ID{list[1].From, list[1].To})
		assert.Equal(t, whole, list[1].Files)
		assert.Equal(t, v1alpha1.ReasonWriteFailed, list[1].Reason)
	})
	t.Run("finished after a crash", func(t *testing.T) {
		b, volume, one, two := begin(t)
		*volume = from(moves)
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonWriteFailed)
		*volume = nil
		require.NoError(t, b.engine.Close())
		b.synced()
		b.synced()
		list := b.audited()
		require.Len(t, list, 2, "the crash left no record")
		got := list[1]
		assert.Equal(t, []plan.ID{one, two, two}, []plan.ID{got.From, got.To, got.Target})
		assert.Equal(t, "main", got.Ref)
		assert.Equal(t, whole, got.Files)
		assert.Equal(t, v1alpha1.GatewayApplied, got.Result)
		assert.Contains(t, got.Message, "interrupted")
	})
}

// If files are written while no gateway is configured, a gateway configured later still gets a scan.
func TestLateGatewayAddressScans(t *testing.T) {
	b := newBench(t, simulator.Options{})
	gateway := b.conn.Gateway
	b.push(firstCommit()...)
	b.conn.Gateway = nil
	assert.Contains(t, b.synced().Message, "nothing was scanned or verified")
	assert.Nil(t, b.gw.Data.Loaded(db))
	b.conn.Gateway = gateway
	r := b.synced()
	assert.Len(t, r.Scans, 2)
	assert.NotNil(t, b.gw.Data.Loaded(db))
	b.gw.Requests.Reset()
	b.synced()
	assert.Empty(t, b.gw.Requests.List(), "one scan only")
}

// A gateway that starts during staging gets no file without its lock, its scan and the check of its Designers.
func TestGatewayStartsDuringStaging(t *testing.T) {
	for _, state := range []simulator.State{simulator.Starting, simulator.Running} {
		t.Run(string(state), func(t *testing.T) {
			b := newBench(t, simulator.Options{}).delivered()
			b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
			b.push(gitserver.Write(view, `{"one": 2}`))
			b.set(simulator.Down)
			starts := true
			b.engine.Progress = func(step string, _, _ int) {
				if step == "stage" && starts {
					starts = false
					assert.NoError(t, b.gw.SetState(state))
				}
			}
			b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonWaitingForGateway)
			assert.False(t, starts)
			assert.Equal(t, `{"one": 1}`, b.read(view))

			b.set(simulator.Running)
			_, err := b.gw.Designers.Open("anna", "line")
			require.NoError(t, err)
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
			assert.Equal(t, `{"one": 1}`, b.read(view))
		})
	}
}

// stopAt makes Task.Stop stop the sync at its nth call.
func (b *bench) stopAt(n int) {
	b.target.Stop = func(context.Context) error {
		if n--; n == 0 {
			return sync.PausedError()
		}
		return nil
	}
}

// An operator pauses syncing while a sync fetches, makes a backup or waits for the lock.
func TestStoppedSyncChangesNothing(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	b.push(gitserver.Write(view, `{"one": 2}`))
	b.gw.Requests.Reset()
	b.stopAt(1)
	r := b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "paused")
	assert.Equal(t, `{"one": 1}`, b.read(view))
	assert.NoDirExists(t, filepath.Join(b.data, ".stoker/staging"))
	for _, request := range b.gw.Requests.List() {
		assert.Equal(t, "GET", request.Method, "a paused agent sends no scan")
	}
	b.stopAt(2) // under the lock
	b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Equal(t, `{"one": 1}`, b.read(view))
	assert.NoDirExists(t, filepath.Join(b.data, ".stoker/staging"))
	b.target.Stop = nil
	b.synced()
	assert.Equal(t, `{"one": 2}`, b.read(view))
}
