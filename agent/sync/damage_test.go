package sync_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// flip flips one bit in an object's data in the cache, after the header of its pack entry.
func (b *bench) flip(object string) {
	b.t.Helper()
	packs, err := filepath.Glob(filepath.Join(b.engine.Store.Dir(), "objects/pack/*.pack"))
	require.NoError(b.t, err)
	for _, pack := range packs {
		for line := range strings.Lines(b.repo.Git("verify-pack", "-v", strings.TrimSuffix(pack, ".pack")+".idx")) {
			fields := strings.Fields(line)
			if fields[0] != object {
				continue
			}
			size, err := strconv.Atoi(fields[3])
			require.NoError(b.t, err)
			at, err := strconv.Atoi(fields[4])
			require.NoError(b.t, err)
			raw, err := os.ReadFile(pack)
			require.NoError(b.t, err)
			raw[at+size/2] ^= 4
			require.NoError(b.t, os.WriteFile(pack, raw, 0o600))
			return
		}
	}
	require.Fail(b.t, "the cache does not have the object")
}

// F12: a flipped bit in the cache costs another fetch, but the sync succeeds.
func TestDamagedCache(t *testing.T) {
	for name, object := range map[string]string{"a file": ":" + view, "a directory": ":" + viewDir, "a commit": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			b.push(firstCommit()...)
			b.synced()
			b.flip(b.repo.Git("rev-parse", "main"+object))
			require.NoError(t, os.Remove(filepath.Join(b.data, view)))
			b.target.Repair = true
			r := b.synced()
			assert.Equal(t, "repaired", r.Fetch.Kind)
			assert.JSONEq(t, `{"one": 1}`, b.read(view))

			b.push(gitserver.Write(view, `{"two": 2}`))
			r = b.synced()
			assert.Equal(t, "incremental", r.Fetch.Kind)
		})
	}
}
