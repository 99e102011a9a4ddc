package disk

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
)

// In git, a file becomes a directory or vice versa, and the parent directories, which the agent created, contain nothing else. The sync must not
// remove these parents, and a rollback must restore the previous state.
func TestFileDirectorySwap(t *testing.T) {
	inner := "projects/p/ignition/scripts"
	for name, change := range map[string]struct{ from, to []string }{
		"a directory becomes a file":                {[]string{inner + "/code.py"}, []string{inner}},
		"a deep directory becomes a file":           {[]string{inner + "/a/b/code.py", inner + "/a/c"}, []string{inner}},
		"a file becomes a directory":                {[]string{inner}, []string{inner + "/code.py"}},
		"a file becomes a deep directory":           {[]string{inner}, []string{inner + "/a/b/code.py"}},
		"both ways":                                 {[]string{inner, "projects/p/x/y/z"}, []string{inner + "/code.py", "projects/p/x/y"}},
		"a directory becomes a file, another stays": {[]string{inner + "/code.py", "projects/p/ignition/a/b"}, []string{inner}},
	} {
		t.Run(name, func(t *testing.T) {
			root := seededIn(t, memory(t))
			fail := ""
			d := open(t, root, Options{Around: func(e safe.Effect, do func() error) error {
				if e.Op == "create" && e.Path == fail {
					return errors.New("not now")
				}
				return quick(e, do)
			}})
			start := readTree(t, root)
			of := func(paths []string, content string) tree {
				m := map[string]string{}
				for _, p := range paths {
					m[p] = content
				}
				return text(m)
			}
			one, two := of(change.from, "1"), of(change.to, "2")
			apply(t, d, one)
			before := readTree(t, root)

			fail = safe.OwnDir + "/" + manifestFile + ".new"
			_, err := tryApply(t, d, two)
			require.ErrorContains(t, err, "not now")
			assert.Equal(t, before, readTree(t, root), "the failed sync is rolled back")

			fail = ""
			apply(t, d, two)
			for p, f := range two {
				assert.Equal(t, f.content, contents(t, root)[p])
			}
			assert.Empty(t, planFor(t, d, two).List)
			assertManifest(t, d)
			assertNoLeftovers(t, root)
			apply(t, d, tree{})
			assert.Equal(t, start, readTree(t, root), "all created directories are removed")
		})
	}
}
