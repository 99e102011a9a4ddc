package sync_test

import (
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
	scans := func(b *bench) int { return b.gw.Requests.Count("POST /data/api/v1/scan/projects") }
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
