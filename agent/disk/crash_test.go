//go:build linux

package disk

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The tests in this file fail or interrupt a sync, its rollback and the restore of a snapshot, restart, and check the files and .stoker. Most use
// the sync of crashWorld; TestCrashAfterAnyStep (everystep_test.go) interrupts it at each step. The invariants INV1 to INV6 are those of
// test/scenario/status_test.go.

// crashWorld describes a sync. It changes about thirty files with every kind of operation: from commit one, with later edits by the
// gateway, to commit two.
type crashWorld struct {
	// quiet omits the edits of the gateway, so that the sync saves nothing to lost+found. Saving flushes everything to the disk, which
	// would hide that another step does not flush.
	quiet bool
	// plain simulates a file system without exchange and no-replace renames.
	plain bool
	// snapshots makes the sync take a snapshot, which check restores. mayLack allows that there is no snapshot: recovery takes none if
	// it cannot be sure of the replaced files.
	snapshots, mayLack bool
	// whole makes the sync large enough to stage new directories whole.
	whole         bool
	one, two      tree
	before, after map[string]string // expected files before and after the sync
	gateways      []string          // contents that exist only on the gateway
}

func newCrashWorld() *crashWorld {
	one, two := tree{}, tree{}
	for i := range 6 {
		v := fmt.Sprintf("projects/p/com.inductiveautomation.perspective/views/v%d/", i)
		for _, f := range []string{"resource.json", "view.json", "thumbnail.png"} {
			one[v+f] = file{content: fmt.Sprintf("%s %d one", f, i)}
			two[v+f] = one[v+f]
		}
		if i < 3 { // update
			two[v+"view.json"] = file{content: fmt.Sprintf("view %d two", i)}
			two[v+"resource.json"] = file{content: fmt.Sprintf("resource %d two", i)}
		}
		n := fmt.Sprintf("config/resources/core/ignition/db/new%d/", i) // create, with directories
		if i < 4 {
			two[n+"resource.json"], two[n+"config.json"] = file{content: n}, file{content: n + "c"}
		}
		if i == 5 { // delete, with its directories
			for _, f := range []string{"resource.json", "view.json", "thumbnail.png"} {
				delete(two, v+f)
			}
		}
	}
	set := func(p, a, b string) {
		if a != "" {
			one[p] = file{content: a}
		}
		if b != "" {
			two[p] = file{content: b}
		}
	}
	set("projects/p/project.json", "p", "p2")
	set("projects/p/turn", "file", "")         // file → directory
	set("projects/p/turn/in/x.json", "", "x2") //
	set("projects/q/turn/in/y.json", "y", "")  // directory → file
	set("projects/q/turn/z.json", "z", "")     //
	set("projects/q/turn", "", "turned")       //
	set("projects/q/project.json", "q", "q")   //
	set("projects/q/edited.json", "e1", "e2")  // conflict: edited on the gateway
	set("projects/q/dropped.json", "d1", "")   // conflict: edited on the gateway, deleted in git
	set("projects/q/linked.json", "l1", "l2")  // conflict: replaced by a link on the gateway
	set("projects/q/foreign.json", "", "git")  // conflict: created on the gateway
	set("projects/q/same.json", "", "same")    // adopt
	set("projects/q/kept.json", "k1", "k2")    // keep
	set("projects/q/released.json", "rel", "") // release
	set("projects/q/half/mine.json", "m", "")  // delete; the directory stays because it is in use
	one["projects/p/run.sh"], two["projects/p/run.sh"] = file{"#!", false}, file{"#!", true}
	return &crashWorld{one: one, two: two, gateways: []string{"e-gateway", "d-gateway", "f-gateway"}}
}

// mods changes two operations into Keep and Release, which only rules produce.
func (w *crashWorld) mods(c *plan.Change) {
	switch c.Path {
	case "projects/q/kept.json":
		if c.Op == plan.Update {
			c.Op, c.Conflict = plan.Keep, false
		}
	case "projects/q/released.json":
		if c.Op == plan.Delete {
			c.Op, c.Conflict = plan.Release, false
		}
	}
}

// build returns a data directory in its state before the sync to commit two.
func (w *crashWorld) build(t testing.TB) string {
	root := seededIn(t, memory(t))
	d, err := Open(root, Options{Around: quick})
	require.NoError(t, err)
	put(t, root, "projects/q/half/theirs.json", "theirs") // the sync does not create the directory and must not remove it
	apply(t, d, w.one)
	require.NoError(t, d.Close())
	if !w.quiet {
		w.edit(t, root)
	}
	if w.before == nil {
		w.expect(t, root)
	}
	return root
}

// edit makes the gateway's changes between the two commits.
func (w *crashWorld) edit(t testing.TB, root string) {
	put(t, root, "projects/q/edited.json", "e-gateway")
	put(t, root, "projects/q/dropped.json", "d-gateway")
	put(t, root, "projects/q/kept.json", "k-gateway")
	put(t, root, "projects/q/foreign.json", "f-gateway")
	put(t, root, "projects/q/same.json", "same")
	require.NoError(t, os.Remove(filepath.Join(root, "projects/q/linked.json")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(root, "projects/q/linked.json")))
}

// expect sets before and after.
func (w *crashWorld) expect(t testing.TB, root string) {
	w.before = contents(t, root)
	w.after = maps.Clone(w.before)
	for p := range w.one {
		if _, ok := w.two[p]; !ok && p != "projects/q/released.json" {
			delete(w.after, p)
		}
	}
	for p, f := range w.two {
		if p != "projects/q/kept.json" {
			w.after[p] = f.content
		}
	}
}

// sync applies commit two.
func (w *crashWorld) sync(t testing.TB, d *Dir) (Result, error) {
	var o Snapshots
	if w.snapshots {
		o = anySnapshots
	}
	return tryApplyWith(t, d, w.two, o, w.mods)
}

// check opens the directory after a crash and asserts the invariants. Then it syncs twice: the first sync must deliver commit two, and
// the second must do nothing. check reports whether recovery finished the interrupted sync instead of rolling it back.
func (w *crashWorld) check(t *testing.T, root string) (forward bool) {
	t.Helper()
	d, err := Open(root, Options{Around: quick, plain: w.plain})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	got := contents(t, root)
	want := w.before
	if forward = d.Manifest().Header().Commit == w.two.id(); forward {
		want = w.after
	}
	require.Empty(t, cmp.Diff(want, got), "INV1 and INV2: all files are those of one commit, and no other file changed")
	assertNoLeftovers(t, root)
	w.assertNothingLost(t, root)

	_, err = w.sync(t, d)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(w.after, contents(t, root)))
	assert.Equal(t, len(w.two), d.Manifest().Header().Files)
	for rec, err := range d.Manifest().All("") {
		require.NoError(t, err)
		id, err := d.BlobID(rec.Path)
		require.NoError(t, err)
		if rec.Path != "projects/q/kept.json" {
			assert.Equal(t, rec.Have, id, "INV4 %s", rec.Path)
		}
	}
	assertNoLeftovers(t, root)
	w.assertNothingLost(t, root)

	steps := 0
	d.vol.Around = func(safe.Effect, func() error) error { steps++; return errCut }
	res, err := w.sync(t, d)
	require.NoError(t, err)
	assert.Zero(t, steps, "INV6: the second sync does nothing")
	assert.Empty(t, res.Saved)
	d.vol.Around = quick
	if w.snapshots {
		w.restoreSnapshot(t, root, d)
	}
	return forward
}

// restoreSnapshot restores the snapshot of the sync, which must bring back commit one and the edits of the gateway.
func (w *crashWorld) restoreSnapshot(t *testing.T, root string, d *Dir) {
	t.Helper()
	names := ids(t, d)
	if len(names) == 0 && w.mayLack {
		return
	}
	require.Len(t, names, 1)
	_, err := takeBack(t, d, names[0], nil)
	require.NoError(t, err)
	want := maps.Clone(w.before)
	delete(want, "projects/q/linked.json") // a snapshot has no links; this one stays in lost+found
	require.Empty(t, cmp.Diff(want, contents(t, root)))
	assert.Equal(t, w.one.id(), d.Manifest().Header().Commit)
	assertNoLeftovers(t, root)
}

// assertNothingLost checks that each content that the gateway wrote is live or in lost+found.
func (w *crashWorld) assertNothingLost(t *testing.T, root string) {
	t.Helper()
	all := everything(t, root)
	for _, g := range w.gateways {
		assert.Contains(t, all, g, "a file that the gateway wrote is lost")
	}
}

// run syncs on the simulated file system c.
func (w *crashWorld) run(t *testing.T, root string, c *powerCut) (Result, error) {
	o := Options{Around: c.around, plain: w.plain}
	if w.whole {
		o.FsyncFiles = 1
	}
	d, err := Open(root, o)
	if err != nil {
		return Result{}, err
	}
	res, err := w.sync(t, d)
	require.NoError(t, d.Close())
	return res, err
}

// steps returns the number of steps of a sync without a failure.
func (w *crashWorld) steps(t *testing.T) int {
	root := w.build(t)
	c := newPowerCut(t, root)
	_, err := w.run(t, root, c)
	require.NoError(t, err)
	require.True(t, w.check(t, root))
	require.Greater(t, c.steps, 110, "the sync of crashWorld must stay this large")
	return c.steps
}

// shortStride returns n, or 7*n in short mode: the distance between the steps that a test interrupts.
func shortStride(n int) int {
	if testing.Short() {
		return 7 * n
	}
	return n
}

// F13, F14: if any step fails, the sync fails with its reason and keeps the last good commit.
func TestFailureOfAnyStep(t *testing.T) {
	for _, c := range []struct{ plain, whole bool }{{}, {plain: true}, {whole: true}} {
		w := newCrashWorld()
		w.plain, w.whole, w.snapshots = c.plain, c.whole, true
		n, rollbacks := w.steps(t), 0
		for fail := 1; fail <= n; fail += shortStride(1) {
			ok := t.Run(fmt.Sprintf("plain=%v whole=%v %d", c.plain, c.whole, fail), func(t *testing.T) {
				root := w.build(t)
				c := newPowerCut(t, root)
				c.fail, c.err = fail, syscall.ENOSPC
				res, err := w.run(t, root, c)
				if err != nil {
					assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
					if !res.Applied {
						rollbacks++
						assert.Empty(t, cmp.Diff(w.before, contents(t, root)))
					}
				}
				w.check(t, root)
			})
			if !ok {
				return
			}
		}
		assert.Greater(t, rollbacks, n/shortStride(1)/2, "of %d steps", n)
	}
}

// F14: a power cut during the rollback of a failed sync loses nothing.
func TestCrashDuringRollback(t *testing.T) {
	for _, c := range []struct{ plain, whole bool }{{}, {plain: true}, {whole: true}} {
		w := newCrashWorld()
		w.plain, w.whole = c.plain, c.whole
		n, both := w.steps(t), 0
		for fail := n / 2; fail <= n; fail += shortStride(11) {
			for stop := fail + 1; stop < fail+n; stop += shortStride(5) {
				done := false
				ok := t.Run(fmt.Sprintf("plain=%v whole=%v %d-%d", c.plain, c.whole, fail, stop), func(t *testing.T) {
					root := w.build(t)
					c := newPowerCut(t, root)
					c.fail, c.err, c.stop, c.strict = fail, syscall.ENOSPC, stop, stop%2 == 0
					_, _ = w.run(t, root, c) // the result depends on both steps; only the files matter
					if done = !c.dead; !done {
						both++
					}
					c.cut()
					if stop%3 == 0 {
						copyByFile(t, root)
					}
					w.check(t, root)
				})
				if !ok {
					return
				}
				if done {
					break
				}
			}
		}
		assert.Positive(t, both, "no power cut came after a failure")
	}
}

// F14, F20: after a power cut during the restore of a snapshot, the files are those from before or after the restore, and the snapshot
// can be restored again.
func TestCrashDuringSnapshotRestore(t *testing.T) {
	w := newCrashWorld()
	w.snapshots = true
	build := func(t *testing.T) (root string, after map[string]string) {
		root = w.build(t)
		d, err := Open(root, Options{Around: quick})
		require.NoError(t, err)
		_, err = w.sync(t, d)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		return root, contents(t, root)
	}
	ends := map[bool]int{}
	for stop, done := 1, false; !done; stop += shortStride(1) {
		ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
			root, two := build(t)
			c := newPowerCut(t, root)
			c.stop, c.strict = stop, stop%2 == 0
			d, err := Open(root, Options{Around: c.around})
			if err == nil {
				_, _ = takeBack(t, d, ids(t, d)[0], nil) // only the files matter
				require.NoError(t, d.Close())
			}
			done = !c.dead
			c.cut()
			d, err = Open(root, Options{Around: quick})
			require.NoError(t, err)
			defer func() { require.NoError(t, d.Close()) }()
			one := maps.Clone(w.before)
			delete(one, "projects/q/linked.json")
			back := d.Manifest().Header().Commit == w.one.id()
			ends[back]++
			want := two
			if back {
				want = one
			}
			require.Empty(t, cmp.Diff(want, contents(t, root)))
			assertNoLeftovers(t, root)
			w.assertNothingLost(t, root)
			_, err = takeBack(t, d, ids(t, d)[0], nil)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(one, contents(t, root)))
		})
		if !ok {
			return
		}
	}
	assert.Positive(t, ends[true])
	assert.Positive(t, ends[false])
}

// F14: files that the gateway writes between a crash and the restart are kept.
func TestGatewayWritesBeforeRecovery(t *testing.T) {
	for _, whole := range []bool{false, true} {
		testGatewayWritesBeforeRecovery(t, whole)
	}
}

func testGatewayWritesBeforeRecovery(t *testing.T, whole bool) {
	w := newCrashWorld()
	w.whole = whole
	n := w.steps(t)
	for stop := n / 3; stop <= n; stop += shortStride(3) {
		ok := t.Run(fmt.Sprintf("whole=%v %d", whole, stop), func(t *testing.T) {
			root := w.build(t)
			c := newPowerCut(t, root)
			c.stop = stop
			_, _ = w.run(t, root, c) // the result does not matter
			wrote := []string{"late-0", "late-1", "late-2", "late-3"}
			for i, p := range []string{"projects/p/com.inductiveautomation.perspective/views/v0/view.json", "projects/q/edited.json", "projects/p/project.json", "config/resources/core/ignition/db/new1/config.json"} {
				t.Run(p, func(t *testing.T) {
					put(t, root, p+".tmp", wrote[i])
					require.NoError(t, os.Rename(filepath.Join(root, p+".tmp"), filepath.Join(root, p)))
				})
			}
			d, err := Open(root, Options{Around: quick})
			require.NoError(t, err)
			defer func() { require.NoError(t, d.Close()) }()
			_, err = w.sync(t, d)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(w.after, contents(t, root)))
			all := everything(t, root)
			for _, s := range append(wrote, "d-gateway", "f-gateway") {
				assert.Contains(t, all, s)
			}
		})
		if !ok {
			return
		}
	}
}
