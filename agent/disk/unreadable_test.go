//go:build linux

package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// F14, F18: if the agent may not access one file or folder, the sync changes nothing and names it. It succeeds once access is
// restored. A file whose mode changes after staging counts as changed on the gateway: the sync saves it, and succeeds.
func TestInaccessiblePath(t *testing.T) {
	unprivileged(t)
	one, two := tree{}, tree{}
	for _, name := range []string{"a", "b/c", "b/d", "e/f", "g"} {
		one["projects/p/"+name], two["projects/p/"+name] = file{content: "1"}, file{content: "2"}
	}
	one["projects/p/h/gone"] = file{content: "1"}
	cases := map[string]struct {
		path string
		mode os.FileMode
	}{
		"a file that is replaced":       {"projects/p/b/d", 0},
		"a file that is deleted":        {"projects/p/h/gone", 0o200},
		"a folder that is not writable": {"projects/p/b", 0o555},
		"a folder that is not readable": {"projects/p/e", 0},
		"the parent folder":             {"projects/p", 0o555},
	}
	for name, c := range cases {
		for when, late := range map[string]bool{"before the sync": false, "after it was staged": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				root := seeded(t)
				d := open(t, root, Options{Around: quick})
				apply(t, d, one)
				at := filepath.Join(root, c.path)
				fi, err := os.Stat(at)
				require.NoError(t, err)
				t.Cleanup(func() { _ = os.Chmod(at, fi.Mode()) }) // for the removal of the directory
				changes := planFor(t, d, two)
				var s *Staged
				if late {
					s, err = d.Stage(t.Context(), changes, nil, two.source())
					require.NoError(t, err)
				}
				require.NoError(t, os.Chmod(at, c.mode))
				if !late {
					s, err = d.Stage(t.Context(), changes, nil, two.source())
				}
				if err == nil {
					_, err = s.Apply(t.Context(), head(two))
				}
				if late && fi.Mode().IsRegular() { // it may hold changes of the gateway, so it is saved and the sync succeeds
					require.NoError(t, err)
					lost, err := d.LostAndFound()
					require.NoError(t, err)
					require.Len(t, lost, 1)
					assert.Equal(t, c.path, lost[0].Path)
					return
				}
				require.Error(t, err)
				assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
				assert.ErrorContains(t, err, c.path)
				require.NoError(t, os.Chmod(at, fi.Mode()))
				for p, f := range one {
					assert.Equal(t, f.content, contents(t, root)[p], p)
				}
				assert.Equal(t, one.id(), d.Manifest().Header().Commit)
				apply(t, d, two)
				for p, f := range two {
					assert.Equal(t, f.content, contents(t, root)[p], p)
				}
				assertNoLeftovers(t, root)
			})
		}
	}
}

// A file that became unreadable is reported as mode drift and hides no other drift.
func TestDriftOfUnreadableFile(t *testing.T) {
	unprivileged(t)
	root := seeded(t)
	d := open(t, root, Options{Around: quick})
	apply(t, d, text(map[string]string{"projects/p/a": "1", "projects/p/b": "1"}))
	require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/a"), 0))
	put(t, root, "projects/p/b", "22")
	got := drift(t, d, true)
	assert.Equal(t, []Drifted{{"projects/p/a", Chmodded}, {"projects/p/b", Modified}}, got.Paths)
}
