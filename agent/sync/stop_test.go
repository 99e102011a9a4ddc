package sync_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// stopAt makes Task.Stop stop the sync at its nth call.
func (b *bench) stopAt(n int) {
	b.target.Stop = func(context.Context) error {
		if n--; n == 0 {
			return sync.PausedError()
		}
		return nil
	}
}

// assertNothingChanged checks that the gateway has its first commit, without staged files and locks.
func (b *bench) assertNothingChanged() {
	b.t.Helper()
	assert.Equal(b.t, `{"one": 1}`, b.read(view))
	assert.NoDirExists(b.t, filepath.Join(b.data, ".stoker", "staging"))
}

// An operator pauses syncing while a sync fetches, makes a backup or waits for the lock.
func TestStoppedSyncChangesNothing(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	b.push(gitserver.Write(view, `{"one": 2}`))
	b.gw.Requests.Reset()
	b.stopAt(1)
	r := b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Contains(t, r.Message, "paused")
	b.assertNothingChanged()
	for _, request := range b.gw.Requests.List() {
		assert.Equal(t, "GET", request.Method, "a paused agent sends no scan")
	}
	b.stopAt(2) // under the lock
	b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	b.assertNothingChanged()
	b.target.Stop = nil
	b.synced()
	assert.Equal(t, `{"one": 2}`, b.read(view))
}

func TestStoppedRestoreChangesNothing(t *testing.T) {
	b := newSnapshotBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	b.push(gitserver.Write(view, `{"one": 2}`))
	r := b.synced()
	require.NotEmpty(t, r.Snapshots)
	b.target.Restore = r.Snapshots[len(r.Snapshots)-1].ID
	b.stopAt(1)
	b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
	assert.Equal(t, `{"one": 2}`, b.read(view))
	b.target.Stop = nil
	b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
	assert.Equal(t, `{"one": 1}`, b.read(view))
}
