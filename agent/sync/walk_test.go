package sync_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// In random order, files and directories in git replace each other, the gateway writes and deletes, also during apply, mappings
// and policies change, and agents restart. The sync must lose no version that the gateway wrote. It may be held or refused, but
// writing may fail only once, after the gateway wrote during apply. A Synced gateway must have the commit except for reported drift.
func TestRandomHistories(t *testing.T) {
	seeds := []uint64{3, 6, 16, 22, 30}
	if testing.Short() {
		seeds = seeds[:2]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newWalk(t, seed).run(40) })
	}
}

type walk struct {
	t      *testing.T
	dice   *rand.Rand
	dir    string
	remote *repo.Remote
	git    *gitserver.Repo
	store  *repo.Store
	engine *sync.Engine
	target sync.Task
	want   map[string]string // wanted content by path in git
	n      int               // contents made so far; each has another number
	during func()            // runs once, at the start of apply
	log    []string
}

// walkPaths has few names, so that they collide.
var walkPaths = []string{
	"p/project.json", "p/v/view.json", "p/v/resource.json", "p/v", "p/w/data.bin", "q", "q/v", "q/v/x.txt", "r.txt", "r/s.txt", "p-x/y.txt", "p/v/in/deep.txt",
}

var walkMappings = [][]v1alpha1.Mapping{
	{{Source: "a", Destination: "projects"}},
	{{Source: "a", Destination: "projects"}, {Source: "b", Destination: "projects"}},
	{{Source: "b", Destination: "projects"}, {Source: "a", Destination: "projects"}},
	{{Source: "a", Destination: "projects"}, {Source: "b", Destination: "config/x"}},
}

func newWalk(t *testing.T, seed uint64) *walk {
	w := &walk{t: t, dice: rand.New(rand.NewPCG(seed, 7)), dir: t.TempDir(), want: map[string]string{}}
	w.git = gitserver.NewRepo(t, filepath.Join(w.dir, "git"))
	u, err := repo.ParseURL(w.git.Dir)
	require.NoError(t, err)
	w.remote, err = repo.NewRemote(u, repo.Auth{}, repo.RemoteOptions{})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(w.data("config/resources/core"), 0o755))
	w.open()
	t.Cleanup(w.shut)
	w.target = sync.Task{Target: sync.Target{Ref: "main", Name: "refs/heads/main"}}
	w.target.Profile.Mappings = walkMappings[0]
	w.commit(8)
	return w
}

func (w *walk) data(path string) string { return filepath.Join(w.dir, "data", path) }

func (w *walk) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *walk) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\n%s", append(args, strings.Join(w.log[max(0, len(w.log)-40):], "\n"))...)
}

func (w *walk) open() {
	var err error
	w.store, err = repo.Open(filepath.Join(w.dir, "objects"), repo.StoreOptions{})
	require.NoError(w.t, err)
	log := slog.New(slog.DiscardHandler)
	w.engine = sync.New(sync.Config{DataDir: w.data(""), Store: w.store, Log: log, Disk: disk.Options{Log: log}, Progress: func(step string, _, _ int) {
		if do := w.during; do != nil && step == "apply" {
			w.during = nil
			do()
		}
	}})
}

func (w *walk) shut() {
	require.NoError(w.t, w.engine.Close())
	require.NoError(w.t, w.store.Close())
}

func (w *walk) content(who, path string) string {
	w.n++
	if strings.HasSuffix(path, "resource.json") {
		return fmt.Sprintf(`{"scope":"G","files":[],"attributes":{},"by":"%s-%d"}`, who, w.n)
	}
	return fmt.Sprintf(`"%s-%d"`, who, w.n)
}

// commit changes some files in git. A new path replaces files above and below it.
func (w *walk) commit(changes int) {
	for range changes {
		p := []string{"a/", "b/"}[w.dice.IntN(2)] + walkPaths[w.dice.IntN(len(walkPaths))]
		if there := slices.Sorted(maps.Keys(w.want)); len(there) > 4 && w.dice.IntN(3) == 0 {
			delete(w.want, there[w.dice.IntN(len(there))])
			continue
		}
		takePlace(w.want, p, w.content("git", p))
	}
	files := maps.Clone(w.want)
	files["README"] = "keeps the commit from being empty"
	id, err := plan.ParseID(w.git.Orphan("c", gitserver.Files(files)))
	require.NoError(w.t, err)
	w.target.Commit = id
	w.say("commit %s: %v", id.Short(), slices.Sorted(maps.Keys(w.want)))
}

func takePlace(files map[string]string, path, content string) {
	maps.DeleteFunc(files, func(o, _ string) bool {
		return strings.HasPrefix(o, path+"/") || strings.HasPrefix(path, o+"/")
	})
	files[path] = content
}

// gateway makes a random change on the disk, as the gateway would, if that is possible at the moment.
func (w *walk) gateway() {
	p := "projects/" + walkPaths[w.dice.IntN(len(walkPaths))]
	at := w.data(p)
	fi, err := os.Lstat(at)
	switch k := w.dice.IntN(8); {
	case k < 5:
		if os.MkdirAll(filepath.Dir(at), 0o755) == nil && (err != nil || !fi.IsDir()) {
			content := w.content("gateway", p)
			w.say("the gateway writes %s %s", p, content)
			require.NoError(w.t, os.WriteFile(at+".tmp", []byte(content), 0o644))
			require.NoError(w.t, os.Rename(at+".tmp", at))
		}
	case err != nil:
	case k < 6:
		w.say("the gateway removes %s", p)
		require.NoError(w.t, os.RemoveAll(at))
	case fi.Mode().IsRegular():
		w.say("the gateway makes a directory of %s", p)
		require.NoError(w.t, os.Remove(at))
		require.NoError(w.t, os.Mkdir(at, 0o755))
	}
}

func (w *walk) run(steps int) {
	profile := &w.target.Profile
	synced := 0
	for step := range steps {
		switch k := w.dice.IntN(12); {
		case k < 5:
			w.commit(1 + w.dice.IntN(3))
		case k < 6:
			profile.Mappings = walkMappings[w.dice.IntN(len(walkMappings))]
			w.say("mappings %v", profile.Mappings)
		case k < 7:
			profile.Prune = []v1alpha1.Prune{v1alpha1.PruneOwned, v1alpha1.PruneMirror, v1alpha1.PruneNone}[w.dice.IntN(3)]
			profile.ConflictPolicy = []v1alpha1.ConflictPolicy{v1alpha1.ConflictGitWins, v1alpha1.ConflictHold, v1alpha1.ConflictGatewayWins}[w.dice.IntN(3)]
			w.say("prune %s, %s", profile.Prune, profile.ConflictPolicy)
		case k < 8:
			w.shut()
			if w.dice.IntN(2) == 0 {
				w.say("the manifest is lost")
				require.NoError(w.t, os.RemoveAll(w.data(".stoker/manifest")))
			}
			w.open()
		default:
			w.gateway()
			w.gateway()
		}
		w.target.Repair, w.target.Force = w.dice.IntN(6) == 0, ""
		if w.sync(step) == v1alpha1.GatewaySynced {
			synced++
			w.compare()
		}
	}
	require.Greater(w.t, synced, steps/4, "more than a quarter of the syncs succeed")
}

func (w *walk) sync(step int) v1alpha1.GatewaySyncState {
	before, meanwhile := w.versions(), false
	w.during = nil
	if w.dice.IntN(3) == 0 {
		w.during = func() { w.gateway(); before, meanwhile = w.versions(), true }
	}
	r := w.engine.Sync(w.t.Context(), sync.Connections{Remote: w.remote}, w.target)
	if r.Reason == v1alpha1.ReasonMassDeletion || meanwhile && r.Reason == v1alpha1.ReasonWriteFailed {
		w.target.Force, w.target.ConfirmDeletion = fmt.Sprint(step), w.target.Commit.String()
		w.say("%s; forced", r)
		r = w.engine.Sync(w.t.Context(), sync.Connections{Remote: w.remote}, w.target)
	}
	w.say("→ %s", r)
	after := w.versions()
	for v, path := range before {
		if _, kept := after[v]; !kept {
			w.fail("lost: %s, which was at %s", v, path)
		}
	}
	if r.Reason == v1alpha1.ReasonWriteFailed {
		w.fail("failed: %s", r)
	}
	return r.Phase
}

var version = regexp.MustCompile(`gateway-\d+`)

// versions finds the versions that the gateway wrote, in their places and in lost+found. It returns a path of each.
func (w *walk) versions() map[string]string {
	found := map[string]string{}
	require.NoError(w.t, filepath.WalkDir(w.data(""), func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() == "manifest" || strings.HasSuffix(p, ".jsonl") {
			return err
		}
		b, err := os.ReadFile(p)
		if v := version.Find(b); v != nil {
			found[string(v)] = p
		}
		return err
	}))
	return found
}

// compare checks each file of the commit except where the gateway's version may stay.
func (w *walk) compare() {
	drift, err := w.engine.Drift(w.t.Context(), true)
	require.NoError(w.t, err)
	if w.target.Profile.ConflictPolicy == v1alpha1.ConflictGatewayWins || drift.Files > len(drift.Paths) {
		return
	}
	want := map[string]string{}
	for _, m := range w.target.Profile.Mappings {
		for _, p := range slices.Sorted(maps.Keys(w.want)) {
			if rest, ok := strings.CutPrefix(p, m.Source+"/"); ok {
				takePlace(want, m.Destination+"/"+rest, w.want[p])
			}
		}
	}
	for p, content := range want {
		if slices.ContainsFunc(drift.Paths, func(d disk.Drifted) bool { return d.Path == p }) {
			continue
		}
		if b, err := os.ReadFile(w.data(p)); err != nil || string(b) != content {
			w.fail("Synced, and no drift at %s: it has %q (%v), and git %q", p, b, err, content)
		}
	}
}

// F15 of docs/internals/threats.md: an edit that keeps size and mtime is drift. A repair restores the file and saves the edit to lost+found.
func TestRepairWithSameSizeAndMtime(t *testing.T) {
	b := newBench(t, simulator.Options{}).delivered()
	path := filepath.Join(b.data, view)
	was, err := os.Stat(path)
	require.NoError(t, err)
	const edit = `{"one": 2}`
	for files := 0; files == 0; { // until the clock of the volume has advanced
		require.NoError(t, os.WriteFile(path, []byte(edit), 0o600))
		require.NoError(t, os.Chtimes(path, was.ModTime(), was.ModTime()))
		files = b.drift(false).Files
	}
	b.target.Repair = true
	b.synced()
	assert.JSONEq(t, `{"one": 1}`, b.read(view))
	assert.Zero(t, b.drift(false).Files)
	assert.Equal(t, edit, b.lost()[view])
}

// F11 of docs/internals/threats.md: a file of terabytes in a mapped folder must not block a sync or the shutdown of the agent.
func TestEndlessFileIsNotRead(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	path := filepath.Join(b.data, view)
	b.put(view, "")
	require.NoError(t, os.Truncate(path, 2<<40))
	r := b.sync()
	assert.NotEqual(t, v1alpha1.GatewaySynced, r.Phase)
	assert.Contains(t, r.Message, "lost+found may hold", "the file is larger than lost+found may hold")
	fi, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 2<<40, fi.Size())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r = b.engine.Sync(ctx, b.conn, b.target)
	assert.NotEqual(t, v1alpha1.GatewaySynced, r.Phase)
}

// failing says which operations on a data volume fail. If it is nil, none do.
type failing func(e safe.Effect) bool

func (f *failing) around(e safe.Effect, do func() error) error {
	if *f != nil && (*f)(e) {
		return syscall.EIO
	}
	return do()
}

// from makes the first operation that matches fail, and all later ones.
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
	moved := func(e safe.Effect) bool { return e.Op == "syncdir" && strings.HasPrefix(e.Path, viewDir) } // follows the moves of all files
	committed := func(e safe.Effect) bool { return e.Op == "remove" && e.Path == ".stoker/journal" }     // follows the new manifest
	scans := func(b *bench) int { return b.gw.Requests.Count(scanProjects) }
	whole := audit.Files{Added: 1, Modified: 2} // z.txt, and the view and its resource.json

	t.Run("the gateway loads no mixture", func(t *testing.T) {
		b, volume, one, two := begin(t)
		*volume = from(moved)
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
		*volume = from(moved)
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

// An operator pauses syncing during a sync, before the agent takes the scan lock or while it holds it.
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
