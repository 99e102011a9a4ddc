package sync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
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

// F11: a tree bomb hits a limit, at the first sync and at later ones, and the files on the gateway stay. The next commit syncs.
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

// F11: canceling a sync during planning stops it before the rest of the commit is read.
func TestSyncStopsWhilePlanning(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	b.push(gitserver.Write(view, `{"two": 2}`))
	ctx, cancel := context.WithCancelCause(t.Context())
	b.engine.Progress = func(step string, _, _ int) {
		if step == "plan" {
			cancel(context.Canceled)
		}
	}
	r := b.engine.Sync(ctx, b.conn, b.target)
	require.ErrorIs(t, r.Err, context.Canceled)
	assert.Nil(t, r.Changes, "the commit was not planned")
	b.engine.Progress = func(string, int, int) {}
	b.synced()
	assert.JSONEq(t, `{"two": 2}`, b.read(view))
}

// F11: the error names a file above the size limit. A file outside the mappings does not count.
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

// F11: the list of new files is bounded, however many a program of the gateway writes.
func TestAddedFilesAreBounded(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	for i := range 4100 {
		b.put(fmt.Sprintf("projects/line/file-%04d", i), "")
	}
	b.engine.Watch(func(string) bool { return true })
	base, err := b.engine.Base(t.Context(), b.conn.Remote, b.target)
	require.NoError(t, err)
	added, err := b.engine.Added(t.Context(), base)
	require.NoError(t, err)
	assert.Len(t, added, 4000)
}

// The depth limit applies both in git and on disk.
func TestDeepPathsUpToMaxDepth(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.engine.Limits = plan.Limits{Depth: 1000, PathBytes: 1200}
	deep := "projects/line/" + strings.Repeat("d/", 200) + "code.py"
	b.push(append(firstCommit(), gitserver.Write(deep, "v = 1\n"))...)
	b.synced()
	assert.Equal(t, "v = 1\n", b.read(deep))
	drift, err := b.engine.Drift(t.Context(), true)
	require.NoError(t, err)
	assert.Zero(t, drift.Files)
	b.push(gitserver.Delete("projects/line/d"))
	b.synced()
	assert.Empty(t, b.read(deep))

	b.engine.Limits.PathBytes = 400
	b.push(gitserver.Write(deep, "v = 2\n"))
	assert.Contains(t, b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded).Message, "bytes, more than 400")
}
