package sync_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// loseStore gives the data directory to an engine whose store is empty.
func (b *bench) loseStore() {
	b.t.Helper()
	b.restart(filepath.Join(b.t.TempDir(), "objects"))
}

// restart makes a new engine with the store in dir.
func (b *bench) restart(dir string) {
	b.t.Helper()
	require.NoError(b.t, b.engine.Close())
	require.NoError(b.t, b.engine.Store.Close())
	store, err := repo.Open(dir, repo.StoreOptions{})
	require.NoError(b.t, err)
	b.engine = sync.New(sync.Config{DataDir: b.data, Store: store, Log: slog.New(slog.DiscardHandler), Disk: disk.Options{}, MaxBlob: 1 << 20})
	b.t.Cleanup(func() {
		assert.NoError(b.t, b.engine.Close())
		assert.NoError(b.t, store.Close())
	})
}

// views adds n more files that never change.
func views(n int) gitserver.Edit {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("projects/line/com.inductiveautomation.perspective/more/%d.json", i)] = fmt.Sprintf(`{"n": %d, "pad": "%0200d"}`, i, i)
	}
	return gitserver.Files(files)
}

func TestWithTheStoreLostACommitCostsItsTreesAndTheChangedFiles(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(append(first(), views(300))...)
	b.synced()
	b.loseStore()
	b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write(db+"/config.json", `{"url": "other"}`))
	r := b.synced()
	assert.Equal(t, string(repo.FetchedTrees), r.Fetch.Kind)
	assert.Less(t, r.Fetch.Objects, 20, "one commit, its trees and two blobs")
	assert.JSONEq(t, `{"one": 2}`, b.read(view))

	t.Run("the next commit too", func(t *testing.T) {
		b.push(gitserver.Write(view, `{"one": 3}`))
		r := b.synced()
		assert.Equal(t, string(repo.FetchedTrees), r.Fetch.Kind)
		assert.JSONEq(t, `{"one": 3}`, b.read(view))
	})
	t.Run("after a restart drift is still judged by what git has, without a fetch", func(t *testing.T) {
		const file = "projects/line/com.inductiveautomation.perspective/more/5.json"
		other := strings.Replace(b.read(file), ":", " : ", 1)
		require.NoError(t, os.WriteFile(filepath.Join(b.data, file), []byte(other), 0o644))
		b.restart(filepath.Dir(b.engine.Store.Dir()))
		r := b.synced()
		assert.Empty(t, r.Fetch.Kind, "the commit is there: nothing was asked for")
		drift, err := b.engine.Drift(t.Context(), true)
		require.NoError(t, err)
		assert.Empty(t, drift.Files, "it says the same in other words, and what git has was fetched to see it")
		assert.Positive(t, drift.Adopted)
	})
	t.Run("a file that the gateway changed is judged by what git has", func(t *testing.T) {
		b.loseStore()
		b.target.Repair = true
		require.NoError(t, os.WriteFile(filepath.Join(b.data, db, "config.json"), []byte(`{"url": "from the gateway"}`), 0o644))
		b.push(gitserver.Write(view, `{"one": 4}`))
		b.synced()
		b.target.Repair = false
		assert.JSONEq(t, `{"url": "other"}`, b.read(db+"/config.json"))
		assert.JSONEq(t, `{"one": 4}`, b.read(view))
	})
	t.Run("a resource with many files is signed anew from what lies on the disk", func(t *testing.T) {
		const dir = "projects/line/com.inductiveautomation.vision/templates/many"
		names := make([]string, 20)
		files := map[string]string{}
		for i := range names {
			names[i] = fmt.Sprintf("%d.bin", i)
			files[dir+"/"+names[i]] = fmt.Sprintf("part %d", i)
		}
		listed, err := json.Marshal(names)
		require.NoError(t, err)
		files[dir+"/resource.json"] = `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":` + string(listed) +
			`,"attributes":{"lastModificationSignature":"00ff"}}`
		b.push(gitserver.Files(files))
		b.synced()
		b.loseStore()
		b.push(gitserver.Write(dir+"/7.bin", "edited by hand"))
		r := b.synced()
		assert.Equal(t, string(repo.FetchedTrees), r.Fetch.Kind)
		assert.Less(t, r.Fetch.Objects, 20, "the commit, its trees and one blob")
		assert.Equal(t, 2, r.Files.Modified, "it and its resource.json")
		assert.NotContains(t, b.read(dir+"/resource.json"), "00ff")
	})
	t.Run("force-sync fetches everything", func(t *testing.T) {
		b.loseStore()
		b.target.ForceID = "now"
		b.push(gitserver.Write(view, `{"one": 5}`))
		r := b.synced()
		assert.Equal(t, string(repo.FetchFirst), r.Fetch.Kind)
	})
}

// A pod that is made anew has nothing in its store, and the commit is on the volume. What the gateway then signs by itself is
// no drift: the trees come when the first file is asked for, and not before.
func TestWithTheStoreLostWhatTheGatewaySignsIsNoDrift(t *testing.T) {
	const file = viewDir + "/resource.json"
	b := newBench(t, simulator.Options{})
	b.push(first()...)
	b.synced()
	year := 2030
	signs := func() {
		t.Helper()
		year++
		by := regexp.MustCompile(`"timestamp": *"[^"]*"`).ReplaceAllString(b.read(file), fmt.Sprintf(`"timestamp": "%d-01-01T00:00:00Z"`, year))
		require.NotEqual(t, b.read(file), by)
		require.NoError(t, os.WriteFile(filepath.Join(b.data, file), []byte(by), 0o644))
	}
	look := func() disk.Drift {
		t.Helper()
		d, err := b.engine.Drift(t.Context(), false)
		require.NoError(t, err)
		return d
	}
	assert.NotZero(t, look().Adopted, "it was signed at the first scan")
	b.loseStore()
	assert.Empty(t, b.synced().Fetch.Kind)
	assert.Zero(t, look().Files)
	assert.False(t, b.engine.Store.Has(b.target.Commit), "nothing is fetched for what nobody asks for")
	signs()
	d := look()
	assert.Empty(t, d.Paths)
	assert.Equal(t, 1, d.Adopted)

	t.Run("where git cannot be asked it is drift until it can", func(t *testing.T) {
		b.loseStore()
		b.synced()
		signs()
		away := b.repo.Dir + ".away"
		require.NoError(t, os.Rename(b.repo.Dir, away))
		assert.Equal(t, 1, look().Files)
		require.NoError(t, os.Rename(away, b.repo.Dir))
		assert.Zero(t, look().Files, "no sync is needed for that")
	})
}
