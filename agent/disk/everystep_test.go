//go:build linux && !race

// These tests enumerate crashes and are not concurrent. `make test` runs them without the race detector, which would only slow them
// down.

package disk

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// F14: after a crash at any step, the next start finds one commit or the other, and nothing is lost.
func TestCrashAfterAnyStep(t *testing.T) {
	modes := []struct {
		name               string
		cut, strict, quiet bool
		plain, snapshots   bool
		whole              bool
		copied             func(testing.TB, string)
	}{
		{name: "process dies"},
		{name: "power cut, names kept in order", cut: true},
		{name: "power cut, names kept by directory", cut: true, strict: true},
		{name: "power cut, nothing to save", cut: true, strict: true, quiet: true},
		{name: "process dies, no exchange", plain: true},
		{name: "process dies, with a snapshot", snapshots: true},
		{name: "power cut, with a snapshot", snapshots: true, cut: true, strict: true},
		{name: "power cut, with a snapshot, no exchange", snapshots: true, cut: true, plain: true},
		{name: "process dies, with a snapshot, copied by file", snapshots: true, copied: copyByFile},
		{name: "power cut, no exchange", cut: true, plain: true},
		{name: "process dies, copied by file", copied: copyByFile},
		{name: "process dies, copied by file, no exchange", plain: true, copied: copyByFile},
		{name: "power cut, copied by file, same inode numbers", cut: true, copied: copyToSameInodes},
		{name: "process dies, directories staged whole", whole: true},
		{name: "power cut, directories staged whole", whole: true, cut: true, strict: true},
		{name: "power cut, directories staged whole, copied by file", whole: true, cut: true, copied: copyByFile},
		{name: "process dies, directories staged whole, with a snapshot", whole: true, snapshots: true},
	}
	type world struct{ plain, quiet, snapshots, whole bool }
	same := map[world]int{} // the number of modes whose sync takes the same steps
	for _, mode := range modes {
		same[world{mode.plain, mode.quiet, mode.snapshots, mode.whole}]++
	}
	seen := map[world]int{}
	for _, mode := range modes {
		of := world{mode.plain, mode.quiet, mode.snapshots, mode.whole}
		seen[of]++
		first, every := 1, 1
		if testing.Short() { // the modes of one world share every seventh of its steps; otherwise each mode takes them all
			first, every = stride(1)*(seen[of]-1)+1, stride(1)*same[of]
		}
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld()
			w.plain, w.snapshots, w.whole, w.mayLack = mode.plain, mode.snapshots, mode.whole, mode.copied != nil
			if w.quiet = mode.quiet; w.quiet {
				w.gateways = nil
			}
			n := w.steps(t)
			ends := map[bool]int{}
			for stop := first; stop <= n; stop += every {
				ok := t.Run(strconv.Itoa(stop), func(t *testing.T) {
					root := w.build(t)
					c := newPowerCut(t, root)
					c.stop, c.strict = stop, mode.strict
					_, err := w.run(t, root, c)
					if stop < n-10 { // the last steps only remove leftovers, and may fail
						require.Error(t, err)
					}
					if mode.cut {
						c.cut()
					}
					if mode.copied != nil {
						mode.copied(t, root)
					}
					ends[w.check(t, root)]++
				})
				if !ok {
					return
				}
			}
			assert.Positive(t, ends[true])
			assert.Positive(t, ends[false])
		})
	}
}
