package sync_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// loseStore restarts the engine with an empty store.
func (b *bench) loseStore() {
	b.t.Helper()
	b.restart(filepath.Join(b.t.TempDir(), "objects"))
}

// views adds n files that never change.
func views(n int) gitserver.Edit {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("projects/line/com.inductiveautomation.perspective/more/%d.json", i)] = fmt.Sprintf(`{"n": %d, "pad": "%0200d"}`, i, i)
	}
	return gitserver.Files(files)
}

func TestLostStoreFetchesTreesAndChanges(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(append(firstCommit(), views(300))...)
	b.synced()
	b.loseStore()
	b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write(db+"/config.json", `{"url": "other"}`))
	r := b.synced()
	assert.Equal(t, string(repo.FetchTreesOnly), r.Fetch.Kind)
	assert.Less(t, r.Fetch.Objects, 20, "one commit, its trees and two blobs")
	assert.JSONEq(t, `{"one": 2}`, b.read(view))

	t.Run("next commit", func(t *testing.T) {
		b.push(gitserver.Write(view, `{"one": 3}`))
		r := b.synced()
		assert.Equal(t, string(repo.FetchTreesOnly), r.Fetch.Kind)
		assert.JSONEq(t, `{"one": 3}`, b.read(view))
	})
	t.Run("drift after a restart, without a fetch", func(t *testing.T) {
		const file = "projects/line/com.inductiveautomation.perspective/more/5.json"
		other := strings.Replace(b.read(file), ":", " : ", 1)
		b.put(file, other)
		b.restart(filepath.Dir(b.engine.Store.Dir()))
		r := b.synced()
		assert.Empty(t, r.Fetch.Kind, "no fetch of a commit that the store has")
		drift := b.drift(true)
		assert.Empty(t, drift.Files, "the file is equivalent JSON; the agent fetched the blob to compare")
		assert.Positive(t, drift.Adopted)
	})
	t.Run("a file that the gateway changed", func(t *testing.T) {
		b.loseStore()
		b.target.Repair = true
		b.put(db+"/config.json", `{"url": "from the gateway"}`)
		b.push(gitserver.Write(view, `{"one": 4}`))
		b.synced()
		b.target.Repair = false
		assert.JSONEq(t, `{"url": "other"}`, b.read(db+"/config.json"))
		assert.JSONEq(t, `{"one": 4}`, b.read(view))
	})
	t.Run("a resource with many files is signed from the disk", func(t *testing.T) {
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
		assert.Equal(t, string(repo.FetchTreesOnly), r.Fetch.Kind)
		assert.Less(t, r.Fetch.Objects, 20, "the commit, its trees and one blob")
		assert.Equal(t, 2, r.Files.Modified, "the file and its resource.json")
		assert.NotContains(t, b.read(dir+"/resource.json"), "00ff")
	})
	t.Run("force-sync fetches everything", func(t *testing.T) {
		b.loseStore()
		b.target.Force = "now"
		b.push(gitserver.Write(view, `{"one": 5}`))
		r := b.synced()
		assert.Equal(t, string(repo.FetchFirst), r.Fetch.Kind)
	})
}

// A recreated pod has an empty store, but the volume has the commit. Files that the gateway signs again are not drift. The agent
// fetches the trees only once it needs a wanted file.
func TestLostStoreSignedResources(t *testing.T) {
	const file = viewDir + "/resource.json"
	b := newBench(t, simulator.Options{}).delivered()
	year := 2030
	signs := func() {
		t.Helper()
		year++
		by := regexp.MustCompile(`"timestamp": *"[^"]*"`).ReplaceAllString(b.read(file), fmt.Sprintf(`"timestamp": "%d-01-01T00:00:00Z"`, year))
		require.NotEqual(t, b.read(file), by)
		b.put(file, by)
	}
	assert.NotZero(t, b.drift(false).Adopted, "the gateway signed the file at the first scan")
	b.loseStore()
	assert.Empty(t, b.synced().Fetch.Kind)
	assert.Zero(t, b.drift(false).Files)
	assert.False(t, b.engine.Store.Has(b.target.Commit), "no fetch before a reader needs the commit")
	signs()
	d := b.drift(false)
	assert.Empty(t, d.Paths)
	assert.Equal(t, 1, d.Adopted)

	t.Run("drift while git is unreachable", func(t *testing.T) {
		b.loseStore()
		b.synced()
		signs()
		away := b.repo.Dir + ".away"
		require.NoError(t, os.Rename(b.repo.Dir, away))
		assert.Equal(t, 1, b.drift(false).Files)
		require.NoError(t, os.Rename(away, b.repo.Dir))
		b.later(time.Minute)
		assert.Zero(t, b.drift(false).Files, "the drift ends without a sync")
	})
}

// later advances the engine's clock.
func (b *bench) later(by time.Duration) {
	was := b.engine.Now
	b.engine.Now = func() time.Time { return was().Add(by) }
}

// reformatted starts a git server, loses the store and reformats a file, so that each drift check has to fetch from git. look returns
// the number of drifted files.
func (b *bench) reformatted() (srv *gitserver.Server, look func() int) {
	b.t.Helper()
	srv, err := gitserver.Start(filepath.Dir(b.repo.Dir), gitserver.Options{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, srv.Close()) })
	u, err := repo.ParseURL(srv.URL(filepath.Base(b.repo.Dir)))
	require.NoError(b.t, err)
	b.conn.Remote, err = repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(b.t, err)
	b.push(append(firstCommit(), withProject("keep"))...)
	b.synced()
	b.drift(false) // adopts the files signed at the scan
	b.loseStore()
	b.synced()
	b.put(view, strings.Replace(b.read(view), ":", " :", 1))
	return srv, func() int {
		b.t.Helper()
		return b.drift(false).Files
	}
}

// Every agent checks drift every 30 s, and a file may differ for weeks. The checks must not overload a failing git server.
func TestDriftCheckWithFailingGitServer(t *testing.T) {
	for name, c := range map[string]struct {
		fault gitserver.Fault
		quiet time.Duration // after the first failure
	}{
		"unavailable":           {gitserver.Status(http.StatusServiceUnavailable), 500 * time.Millisecond},
		"Retry-After":           {gitserver.Throttle(30 * time.Minute), 29 * time.Minute},
		"excessive Retry-After": {gitserver.Throttle(24 * time.Hour), 59 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			srv, look := b.reformatted()
			now := b.clock()
			var said bytes.Buffer
			b.engine.Log = slog.New(slog.NewTextHandler(&said, nil))
			srv.Inject(c.fault)
			srv.Forget()
			assert.Equal(t, 1, look())
			once := len(srv.Requests())
			assert.Positive(t, once)
			*now = now.Add(c.quiet)
			assert.Equal(t, 1, look())
			b.synced()
			assert.Equal(t, 1, look())
			assert.Len(t, srv.Requests(), once, "a sync without changes does not end the pause")
			for range 20 {
				*now = now.Add(time.Hour + 6*time.Minute) // longer than the longest pause
				assert.Equal(t, 1, look())
				*now = now.Add(500 * time.Millisecond)
				assert.Equal(t, 1, look())
			}
			assert.Len(t, srv.Requests(), 21*once, "one fetch after each pause")
			*now = now.Add(4 * time.Minute)
			assert.Equal(t, 1, look())
			assert.Len(t, srv.Requests(), 21*once, "the pauses grow")
			assert.Equal(t, 1, strings.Count(said.String(), "level=WARN"), said.String())
			assert.Contains(t, said.String(), strconv.Itoa(srv.Requests()[0].Status), "why")

			srv.Heal()
			*now = now.Add(time.Hour + 6*time.Minute)
			assert.Zero(t, look())
			assert.Equal(t, 1, strings.Count(said.String(), "level=INFO"), said.String())
		})
	}
}

// A changed remote (new credentials or another address) is tried at once.
func TestDriftCheckUsesNewRemote(t *testing.T) {
	b := newBench(t, simulator.Options{})
	local := b.conn.Remote
	srv, look := b.reformatted()
	srv.Inject(gitserver.Status(http.StatusForbidden))
	b.clock() // which stands still
	assert.Equal(t, 1, look())
	b.conn.Remote = local
	b.synced()
	assert.Zero(t, look())
}

// The loop that checks drift also obeys spec.paused, so a silent git server must not block it.
func TestDriftCheckWithSilentGitServer(t *testing.T) {
	b := newBench(t, simulator.Options{})
	srv, look := b.reformatted()
	b.engine.DriftFetchTimeout = 50 * time.Millisecond
	srv.Inject(gitserver.Stall(0))
	began := time.Now()
	assert.Equal(t, 1, look())
	assert.Less(t, time.Since(began), 30*time.Second, "a connection counts as dead after a minute")
	srv.Heal()
	b.engine.DriftFetchTimeout = time.Minute
	b.later(time.Minute)
	assert.Equal(t, 1, look(), "a fetch that timed out is not retried soon")
	b.later(10 * time.Minute)
	assert.Zero(t, look())
}

// The trees may arrive in time while the blobs stall, one or all of them, for example if a new gateway version signed many files.
func TestDriftCheckBlobTimeout(t *testing.T) {
	b := newBench(t, simulator.Options{})
	srv, look := b.reformatted()
	b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
	b.synced() // the store has only the trees
	require.True(t, b.engine.Store.Partial())
	const keep = "projects/keep/project.json"
	b.put(keep, strings.Replace(b.read(keep), ":", " :", 1))
	b.engine.DriftFetchTimeout = time.Second // for everything except the end of the exchange with git
	defer srv.Inject(gitserver.Stall(0))()
	srv.Forget()
	requests := func() int {
		require.Eventually(t, func() bool { return srv.InFlight() == 0 }, time.Minute, time.Millisecond)
		return len(srv.Requests())
	}
	began := time.Now()
	assert.Equal(t, 1, look())
	assert.Less(t, time.Since(began), 30*time.Second, "a connection counts as dead after a minute")
	asked := requests()
	assert.Positive(t, asked)
	for range 5 {
		assert.Equal(t, 1, look())
		b.synced() // a sync without changes
	}
	assert.Equal(t, asked, requests(), "no retry soon")
	srv.Heal()
	b.engine.DriftFetchTimeout = time.Minute
	b.push(gitserver.Write("README.md", "the next sync fetches again"))
	b.synced()
	assert.Zero(t, look())
}

// An agent asks for the base of a proposal after each comparison, although nothing has changed.
func TestProposalBaseWithFailingGitServer(t *testing.T) {
	for name, c := range map[string]struct {
		fault  gitserver.Fault
		quiet  time.Duration // after the first failure
		reason v1alpha1.Reason
	}{
		"unavailable": {gitserver.Status(http.StatusServiceUnavailable), 500 * time.Millisecond, v1alpha1.ReasonGitUnreachable},
		"Retry-After": {gitserver.Throttle(30 * time.Minute), 29 * time.Minute, v1alpha1.ReasonGitThrottled},
		"silent":      {gitserver.Stall(0), 4 * time.Minute, v1alpha1.ReasonGitTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{})
			srv, _ := b.reformatted()
			b.engine.DriftFetchTimeout = 2 * time.Second
			now := b.clock()
			srv.Inject(c.fault)
			srv.Forget()
			base := func() error {
				_, err := b.engine.Base(t.Context(), b.conn.Remote, b.target)
				return err
			}
			began := time.Now()
			err := base()
			require.True(t, failure.Is(err, c.reason), "%v", err)
			assert.Less(t, time.Since(began), 30*time.Second, "a connection counts as dead after a minute")
			require.Eventually(t, func() bool { return srv.InFlight() == 0 }, time.Minute, time.Millisecond)
			asked := len(srv.Requests())
			assert.Positive(t, asked)
			*now = now.Add(c.quiet)
			assert.Equal(t, err, base(), "the agent still says why")
			assert.Len(t, srv.Requests(), asked, "no request before the next one is due")
			srv.Heal()
			b.engine.DriftFetchTimeout = time.Minute
			*now = now.Add(2 * time.Hour)
			assert.NoError(t, base())
		})
	}
}

// Until the next commit is on disk, the files belong to the previous commit and are compared with it.
func TestLostStoreWhileHeld(t *testing.T) {
	t.Run("git is unreachable", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		srv, look := b.reformatted()
		b.push(gitserver.Write(db+"/config.json", `{"url": "other"}`))
		srv.Inject(gitserver.Status(http.StatusServiceUnavailable))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonGitUnreachable)
		srv.Heal()
		assert.Zero(t, look())
	})
	t.Run("the sync is held", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		_, look := b.reformatted()
		b.push(gitserver.Delete("projects/line/project.json"), gitserver.Delete(view), gitserver.Delete(viewDir+"/resource.json"))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonMassDeletion)
		assert.Zero(t, look())
	})
	t.Run("after the next sync", func(t *testing.T) {
		b := newBench(t, simulator.Options{})
		_, look := b.reformatted()
		before := b.target.Commit
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.synced()
		file := filepath.Join(b.data, db, "config.json")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(b.read(db+"/config.json"), ":", " :", 1)), 0o644))
		assert.Zero(t, look())
		assert.False(t, b.engine.Store.Has(before), "no fetch of the earlier commit")
	})
}

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
			time.Sleep(20 * time.Millisecond) // the store uses what it read for 10 ms
			return
		}
	}
	require.Fail(b.t, "the cache does not have the object")
}

// F12 of docs/internals/threats.md: a flipped bit in the cache costs another fetch, but the sync succeeds.
func TestDamagedCache(t *testing.T) {
	for name, object := range map[string]string{"a file": ":" + view, "a directory": ":" + viewDir, "a commit": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, simulator.Options{}).delivered()
			b.flip(b.repo.Git("rev-parse", "main"+object))
			b.remove(view)
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
