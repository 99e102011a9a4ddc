package scenario

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// An agent that starts before its ref exists does not wait for the next poll.
func TestFirstSyncFollowsItsRef(t *testing.T) {
	t.Run("repository created later", func(t *testing.T) {
		p := newPlant(t, withoutGateway)
		p.spec.slow = true
		commit := p.repo.Commit("first", site()...)
		away := p.repo.Dir + ".away"
		require.NoError(t, os.Rename(p.repo.Dir, away))
		p.start()
		p.reason("RefNotFound")
		require.NoError(t, os.Rename(away, p.repo.Dir))
		p.synced(commit)
	})
	t.Run("branch pushed later", func(t *testing.T) {
		p := newPlant(t, withoutGateway)
		p.spec.slow, p.spec.ref = true, "later"
		commit := p.repo.Commit("first", site()...)
		p.start()
		p.reason("RefNotFound")
		p.repo.Branch("later", commit)
		p.synced(commit)
	})
}
