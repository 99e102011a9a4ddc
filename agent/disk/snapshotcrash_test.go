//go:build linux

package disk

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests in this file interrupt the removal of snapshots.

// fiveSnapshots is a data directory with five snapshots of one file. It returns their ids, the oldest first.
func fiveSnapshots(t *testing.T) (root string, names []string) {
	t.Helper()
	root = seeded(t)
	d := open(t, root, Options{Around: quick})
	for i := range 6 { // the first sync replaces nothing and takes no snapshot
		syncTo(t, d, tree{"projects/p/a": {content: fmt.Sprint(i)}}, anySnapshots)
	}
	names = ids(t, d)
	require.Len(t, names, 5)
	require.NoError(t, d.Close())
	return root, names
}

// F14: a snapshot needs all later ones. Whenever the power fails while snapshots are removed, those that are left have no gap.
func TestCrashDuringSnapshotRemoval(t *testing.T) {
	for name, o := range map[string]Snapshots{"retention": {Gateway: "site", Keep: 2, MaxBytes: 1 << 20}, "disabled": {}} {
		for stop, done := 1, false; !done; stop += stride(1) {
			for _, strict := range []bool{false, true} {
				ok := t.Run(fmt.Sprintf("%s strict=%v %d", name, strict, stop), func(t *testing.T) {
					root, names := fiveSnapshots(t)
					c := newPowerCut(t, root)
					c.stop, c.strict = stop, strict
					if d, err := Open(root, Options{Around: c.around}); err == nil {
						_, _ = tryApplyWith(t, d, tree{"projects/p/a": {content: "new"}}, o)
						_ = d.Close()
					}
					done = !c.dead
					c.cut()
					d := open(t, root, Options{Around: quick})
					left := ids(t, d)
					for _, id := range left {
						if at := slices.Index(names, id); at >= 0 {
							assert.Subset(t, left, names[at:], "%s remain of %s", left, names)
						}
					}
					syncTo(t, d, tree{"projects/p/a": {content: "newer"}}, anySnapshots)
					assert.Subset(t, ids(t, d), left[max(0, len(left)-4):], "the next sync keeps the newest four")
				})
				if !ok {
					return
				}
			}
		}
	}
}

// F14, F20: a power cut during a restore that takes no snapshot leaves all snapshots, or those up to the restored one.
func TestCrashDuringRestoreWithoutSnapshot(t *testing.T) {
	ends := map[string]int{}
	for stop, done := 1, false; !done; stop += stride(1) {
		for _, strict := range []bool{false, true} {
			ok := t.Run(fmt.Sprintf("strict=%v %d", strict, stop), func(t *testing.T) {
				root, names := fiveSnapshots(t)
				c := newPowerCut(t, root)
				c.stop, c.strict = stop, strict
				if d, err := Open(root, Options{Around: c.around}); err == nil {
					_, _ = takeBackWith(t, d, names[1], nil, Snapshots{}) // only the files matter
					_ = d.Close()
				}
				done = !c.dead
				c.cut()
				d := open(t, root, Options{Around: quick})
				is := contents(t, root)["projects/p/a"]
				ends[is]++
				assert.Equal(t, map[string][]string{"1": names[:2], "5": names}[is], ids(t, d))
				_, err := takeBack(t, d, names[1], nil)
				require.NoError(t, err)
				assert.Equal(t, "1", contents(t, root)["projects/p/a"])
			})
			if !ok {
				return
			}
		}
	}
	assert.Positive(t, ends["1"])
	assert.Positive(t, ends["5"])
}

// F14: the snapshot of a sync that is rolled back is removed durably, so that a power cut does not cost the older ones.
func TestCrashAfterRollbackKeepsSnapshots(t *testing.T) {
	want := tree{"projects/p/a": {content: "new"}}
	root, _ := fiveSnapshots(t)
	c := newPowerCut(t, root)
	d := open(t, root, Options{Around: c.around})
	syncTo(t, d, want, anySnapshots)
	rollbacks := 0
	for fail := 1; fail <= c.steps; fail++ {
		ok := t.Run(fmt.Sprint(fail), func(t *testing.T) {
			root, names := fiveSnapshots(t)
			c := newPowerCut(t, root)
			c.fail, c.err, c.strict = fail, syscall.ENOSPC, true
			d, err := Open(root, Options{Around: c.around})
			if err != nil {
				return
			}
			s, err := d.Stage(t.Context(), planFor(t, d, want), nil, want.source())
			if err == nil {
				err = s.Snapshot(anySnapshots)
			}
			if err == nil {
				var res Result
				if res, err = s.Apply(t.Context(), head(want)); err != nil && !res.Applied {
					rollbacks++
				}
			}
			require.NoError(t, d.Close())
			c.cut()
			if err == nil {
				return
			}
			d = open(t, root, Options{Around: quick})
			syncTo(t, d, want, anySnapshots)
			assert.Subset(t, ids(t, d), names[1:])
		})
		if !ok {
			return
		}
	}
	assert.Positive(t, rollbacks)
}
