package repo

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFetchTransports(t *testing.T) {
	for _, transport := range []string{"http", "directory"} {
		t.Run("every object equals git's after first, incremental and merge: "+transport, func(t *testing.T) {
			g := newGitRepo(t)
			g.plant(60)
			first := g.commit("first")
			u := parseURL(t, g.bare)
			if transport == "http" {
				u = g.serve(nil)
			}
			r, dir := newRemote(t, u), t.TempDir()
			s := openStore(t, dir)

			res, stats := pull(t, s, r, "main")
			assert.Equal(t, Resolution{"refs/heads/main", first}, res)
			assert.Equal(t, FetchFirst, stats.Kind)
			requireSame(t, g, s, first)

			_, stats = pull(t, s, r, "main")
			assert.Equal(t, FetchStats{Kind: FetchNone}, stats)

			g.write("projects/p3/views/v003/view.json", viewJSON(3, 1))
			second := g.commit("second")
			_, stats = pull(t, s, r, "main")
			assert.Equal(t, FetchIncremental, stats.Kind)
			assert.Less(t, stats.Bytes, int64(1500))
			requireSame(t, g, s, second)
			requireSame(t, g, s, first)

			require.NoError(t, s.Close())
			s = openStore(t, dir)
			requireSame(t, g, s, second)
			_, stats = pull(t, s, r, "main")
			assert.Equal(t, FetchStats{Kind: FetchNone}, stats)
		})
	}
}
