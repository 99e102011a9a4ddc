//go:build linux

package disk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

var (
	foreignOne = text(map[string]string{
		"projects/p/deleted": "1", "projects/p/edited": "1", "projects/p/other": "1", "projects/p/link": "1",
		"projects/p/v/view.json": `{"a":1}`, "projects/p/v/thumbnail.png": "1",
	})
	foreignTwo = text(map[string]string{
		"projects/p/edited": "2", "projects/p/other": "2", "projects/p/link": "2", "projects/p/new": "2", "projects/p/same": "2",
		"projects/p/v/view.json": `{"a":2}`, "projects/p/v/thumbnail.png": "2",
	})
)

// stageForeign stages foreignTwo on foreignOne. The Dir can read the wanted bytes of foreignOne.
func stageForeign(t *testing.T, root string, o Options) (*Dir, *Staged) {
	t.Helper()
	o.Wanted = func(w io.Writer, id plan.ID) (int64, error) {
		for _, f := range foreignOne {
			if plan.BlobID([]byte(f.content)) == id {
				n, err := io.WriteString(w, f.content)
				return int64(n), err
			}
		}
		return 0, os.ErrNotExist
	}
	d, err := Open(root, o)
	require.NoError(t, err)
	apply(t, d, foreignOne)
	s := staged(t, d, foreignTwo)
	s.RefuseForeign()
	return d, s
}

// harmless makes changes that the gateway makes by itself, or that lose no content.
func harmless(t *testing.T, root string) {
	put(t, root, "projects/p/v/view.json", `{ "a": 1 }`)
	put(t, root, "projects/p/v/thumbnail.png", "drawn again")
	put(t, root, "projects/p/same", "2")
	require.NoError(t, os.Remove(filepath.Join(root, "projects/p/other")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "projects/p/other"), 0o755))
}

// foreign makes changes that a sync must not overwrite.
func foreign(t *testing.T, root string) {
	put(t, root, "projects/p/deleted", "D")
	put(t, root, "projects/p/edited", "E")
	put(t, root, "projects/p/new", "N")
	require.NoError(t, os.Remove(filepath.Join(root, "projects/p/link")))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(root, "projects/p/link")))
}

var foreignPaths = []string{"projects/p/deleted", "projects/p/edited", "projects/p/link", "projects/p/new"}

// A sync that must not replace foreign content rolls back if the gateway writes after the plan.
func TestRefuseForeignRollsBack(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain %t", plain), func(t *testing.T) {
			root := seeded(t)
			d, s := stageForeign(t, root, Options{plain: plain})
			harmless(t, root)
			foreign(t, root)
			before := readTree(t, root)
			res, err := s.Apply(t.Context(), head(foreignTwo))
			var f *ForeignError
			require.ErrorAs(t, err, &f)
			assert.Equal(t, foreignPaths, f.Paths)
			assert.Contains(t, err.Error(), "projects/p/link and 1 more")
			assert.False(t, res.Applied)
			assert.Empty(t, cmp.Diff(before, readTree(t, root)))
			assert.Equal(t, foreignOne.id(), d.Manifest().Header().Commit)
			assert.True(t, d.Manifest().Header().Complete)
			assert.Empty(t, lost(t, d))
			assertNoLeftovers(t, root)
			require.NoError(t, d.Close())
		})
	}
}

func TestRefuseForeignIgnoresNoise(t *testing.T) {
	root := seeded(t)
	d, s := stageForeign(t, root, Options{})
	harmless(t, root)
	res, err := s.Apply(t.Context(), head(foreignTwo))
	require.NoError(t, err)
	assert.True(t, res.Applied)
	assertFiles(t, root, foreignTwo)
	require.NoError(t, d.Close())
}

// F14: recovery also refuses to overwrite foreign writes. Once the manifest is in place, the sync is complete.
func TestRefuseForeignInRecovery(t *testing.T) {
	for name, c := range map[string]struct {
		at      func(safe.Effect) bool
		write   bool
		forward bool
	}{
		"before a file moved":            {at: func(e safe.Effect) bool { return e.Op == "exchange" }, write: true},
		"after all files moved":          {at: step("syncdir", "projects/p"), forward: true},
		"after the manifest is in place": {at: step("remove", journalPath), forward: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			d, s := stageForeign(t, root, Options{})
			d.vol.Around = dies(c.at)
			_, err := s.Apply(t.Context(), head(foreignTwo))
			require.ErrorIs(t, err, errCut)
			require.NoError(t, d.Close())
			if c.write {
				foreign(t, root)
			}
			d = open(t, root, Options{})
			require.NotNil(t, d.Recovered())
			assert.Equal(t, c.forward, d.Recovered().Forward)
			if c.write {
				assert.Equal(t, "E", contents(t, root)["projects/p/edited"])
				assert.Equal(t, foreignOne.id(), d.Manifest().Header().Commit)
			} else {
				assert.Equal(t, "2", contents(t, root)["projects/p/edited"])
				assert.Equal(t, foreignTwo.id(), d.Manifest().Header().Commit)
			}
			assertNoLeftovers(t, root)
		})
	}
}

// If the gateway saves a resource after a plan that keeps its resource.json, the sync must not replace only part of it. The next
// plan sees the whole resource. The same holds after a crash. A file that is not part of such a save goes to lost+found and is replaced.
func TestSavedResource(t *testing.T) {
	const meta, view, other = "projects/p/v/resource.json", "projects/p/v/view.json", "projects/p/v/other.json"
	one := text(map[string]string{meta: `{"n":1}`, view: "1", other: "1"})
	two := text(map[string]string{meta: `{"n":1}`, view: "2", other: "1"})
	for name, c := range map[string]struct {
		wrote   []string
		dies    bool
		applied bool
	}{
		"the resource":                   {wrote: []string{view, meta}},
		"the resource, then a crash":     {wrote: []string{view, meta}, dies: true},
		"a file without a new signature": {wrote: []string{view}, applied: true},
		"a file that is not replaced":    {wrote: []string{other, meta}, applied: true},
		"only a new mtime":               {applied: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := seededIn(t, memory(t))
			d := open(t, root, Options{Around: quick})
			apply(t, d, one)
			s := staged(t, d, two)
			for _, p := range c.wrote {
				put(t, root, p, "the gateway's "+p)
			}
			require.NoError(t, os.Chtimes(filepath.Join(root, meta), testTime, testTime))
			before := readTree(t, root)
			if c.dies {
				d.vol.Around = func(e safe.Effect, do func() error) error {
					if e.Op == "exchange" {
						err := do()
						d.vol.Around = func(safe.Effect, func() error) error { return errCut }
						return err
					}
					return do()
				}
			}
			res, err := s.Apply(t.Context(), head(two))
			if c.dies {
				require.ErrorIs(t, err, errCut)
				require.NoError(t, d.Close())
				d = open(t, root, Options{Around: quick})
			} else if !c.applied {
				var f *ForeignError
				require.ErrorAs(t, err, &f)
				assert.Equal(t, []string{view}, f.Paths)
			}
			if c.applied {
				require.NoError(t, err)
				assert.Equal(t, "2", contents(t, root)[view])
				assert.Equal(t, len(c.wrote) == 1, len(res.Saved) == 1, "only view.json is replaced, and saved if the gateway wrote it")
			} else {
				assert.Empty(t, cmp.Diff(before, readTree(t, root)))
				assert.Equal(t, one.id(), d.Manifest().Header().Commit)
			}
			assertNoLeftovers(t, root)
		})
	}
}
