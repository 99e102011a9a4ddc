//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
)

// The gateway saves a file by rename before any one step of a sync that replaces the file. The saved version must be live or in
// lost+found, and so must the previous one unless the gateway replaced it. This also holds after a rollback, after a crash two
// steps later, and without exchange.
func TestSaveByRenameBeforeAnyStep(t *testing.T) {
	const path = "projects/p/a"
	for _, plain := range []bool{false, true} {
		for i, end := range []string{"delivered", "rolled back", "dies", "dies in rollback"} {
			t.Run(fmt.Sprintf("plain=%v %s", plain, end), func(t *testing.T) {
				at, every := 1, 1
				if testing.Short() { // the ends share the steps; otherwise each has all of them
					at, every = 1+i%3, 3
				}
				for saved := true; saved; at += every {
					root := seededIn(t, memory(t))
					d, err := Open(root, Options{Around: quick, plain: plain})
					require.NoError(t, err)
					apply(t, d, text(map[string]string{path: "1", "projects/p/b": "1"}))
					put(t, root, path, "gateway 1")
					kept := []string{"gateway 1", "gateway 2"}
					n, dead := 0, false
					d.vol.Around = func(e safe.Effect, do func() error) error {
						if n++; n == at {
							live, err := os.ReadFile(filepath.Join(root, path))
							if err == nil && string(live) == "gateway 1" {
								kept = kept[1:]
							}
							put(t, root, path+".tmp", "gateway 2")
							assert.NoError(t, os.Rename(filepath.Join(root, path+".tmp"), filepath.Join(root, path)))
						}
						switch back := end == "rolled back" || end == "dies in rollback"; {
						case dead, n == at+2 && (end == "dies" || end == "dies in rollback"):
							dead = true
							return errCut
						case back && e.Op == "create" && e.Path == safe.OwnDir+"/"+manifestFile+".new":
							return errors.New("not now")
						}
						return quick(e, do)
					}
					two := text(map[string]string{path: "2", "projects/p/b": "2"})
					_, _ = tryApply(t, d, two) // the result does not matter
					if saved = n >= at; !saved {
						kept = kept[:1]
					}
					require.NoError(t, d.Close())
					d, err = Open(root, Options{Around: quick, plain: plain})
					require.NoError(t, err)
					all := everything(t, root)
					for _, k := range kept {
						require.Contains(t, all, k, "saved before step %d", at)
					}
					assertNoLeftovers(t, root)
					apply(t, d, two)
					assert.Equal(t, "2", contents(t, root)[path])
					all = everything(t, root)
					for _, k := range kept {
						require.Contains(t, all, k, "saved before step %d, and after the next sync", at)
					}
					require.NoError(t, d.Close())
				}
				assert.Greater(t, at, 30)
			})
		}
	}
}
