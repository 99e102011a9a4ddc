//go:build !race

// The tests of this file enumerate cases and are not concurrent. `make test` runs them without the race detector, which would
// only slow them down.

package repo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
)

func TestStoreSizeAfterThousandCommits(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a thousand commits")
	}
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commits := 1000
		if !r.URL().Local() {
			commits = 110 // over HTTP, each fetch costs a git process
		}
		g.Push("first", repotest.Views(40))
		s := openStore(t, t.TempDir())
		pull(t, s, r, "main")
		first := packBytes(t, s)
		last := g.History(commits, func(i int) string { return fmt.Sprintf("projects/p%d/views/v%04d/view.json", i%7, i%40) },
			func(i int) string { return repotest.View(i%40, i+1) })
		ids := strings.Fields(g.Git("rev-list", "--reverse", last.String()))[1:]
		require.Len(t, ids, commits)
		kinds := map[FetchKind]int{}
		var largest int64
		for _, id := range ids {
			stats, err := s.Fetch(t.Context(), r, repotest.ParseID(t, id), "main")
			require.NoError(t, err)
			kinds[stats.Kind]++
			largest = max(largest, packBytes(t, s))
		}
		assert.Equal(t, map[FetchKind]int{FetchRenewed: commits / 51, FetchIncremental: commits - commits/51}, kinds)
		assert.Less(t, largest, first+51*8_000)
		repotest.RequireSame(t, g, s, last)
	})
}
