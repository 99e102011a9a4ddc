package desired_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// walk returns the desired tree as path → content, and checks that it is in git's order.
func walk(t *testing.T, objects *plantest.Objects, d *desired.Tree) map[string]string {
	t.Helper()
	got := make(map[string]string)
	var paths []string
	for w, err := range d.Walk() {
		require.NoError(t, err)
		paths = append(paths, w.Path)
		got[w.Path] = string(objects.Content(t, w.ID))
		found, ok, err := d.Lookup(w.Path)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, w, found)
	}
	assert.True(t, slices.IsSorted(paths), "%v", paths)
	assert.Len(t, got, len(paths), "each path occurs once")
	return got
}

// walkErr returns the error that ends a walk.
func walkErr(t *testing.T, d *desired.Tree) error {
	t.Helper()
	for _, err := range d.Walk() {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestMappingOverlays(t *testing.T) {
	for name, c := range map[string]struct {
		mappings []string
		commit   []string
		want     map[string]string
	}{
		"one directory": {
			[]string{"s/projects", "projects"},
			[]string{"s/projects/a", "1", "s/other", "2", "s/projects/b/c", "3"},
			map[string]string{"projects/a": "1", "projects/b/c": "3"},
		},
		"the whole repository is a project": {
			[]string{".", "projects/main"},
			[]string{"project.json", "{}", "views/v/view.json", "{}"},
			map[string]string{"projects/main/project.json": "{}", "projects/main/views/v/view.json": "{}"},
		},
		"a later directory wins file by file": {
			[]string{"shared", "projects", "own", "projects"},
			[]string{"shared/p/a", "s", "shared/p/b", "s", "own/p/b", "o", "own/q/c", "o"},
			map[string]string{"projects/p/a": "s", "projects/p/b": "o", "projects/q/c": "o"},
		},
		"a destination inside an earlier one": {
			[]string{"all", "projects", "x", "projects/x"},
			[]string{"all/x/a", "all", "all/x/b", "all", "all/y/a", "all", "x/a", "x", "x/c", "x"},
			map[string]string{"projects/x/a": "x", "projects/x/b": "all", "projects/x/c": "x", "projects/y/a": "all"},
		},
		"a destination around an earlier one": {
			[]string{"x", "projects/x", "all", "projects"},
			[]string{"all/x/a", "all", "all/y/a", "all", "x/a", "x", "x/c", "x"},
			map[string]string{"projects/x/a": "all", "projects/x/c": "x", "projects/y/a": "all"},
		},
		"a destination without parents in any layer": {
			[]string{"all", "projects", "deep", "projects/a/b/c", "a.txt", "projects/a.txt"},
			[]string{"all/z", "all", "deep/f", "deep", "a.txt", "text"},
			map[string]string{"projects/z": "all", "projects/a/b/c/f": "deep", "projects/a.txt": "text"},
		},
		"a file mapping over a directory's file": {
			[]string{"all", "projects", "special.json", "projects/p/view.json"},
			[]string{"all/p/view.json", "all", "all/p/code.py", "all", "special.json", "special"},
			map[string]string{"projects/p/view.json": "special", "projects/p/code.py": "all"},
		},
		"a later file hides an earlier directory": {
			[]string{"one", "d", "two", "d"},
			[]string{"one/x/a", "1", "one/x/b", "1", "two/x", "2"},
			map[string]string{"d/x": "2"},
		},
		"a later directory hides an earlier file": {
			[]string{"one", "d", "two", "d"},
			[]string{"one/x", "1", "two/x/a", "2"},
			map[string]string{"d/x/a": "2"},
		},
		"a file in between hides only the layers below it": {
			[]string{"one", "d", "two", "d", "three", "d"},
			[]string{"one/x/a", "1", "two/x", "2", "three/x/b", "3"},
			map[string]string{"d/x/b": "3"},
		},
		"a file hides a destination of an earlier mapping": {
			[]string{"one", "d/x/y", "two", "d"},
			[]string{"one/a", "1", "two/x", "2"},
			map[string]string{"d/x": "2"},
		},
		"a destination of a later mapping hides a file": {
			[]string{"two", "d", "one", "d/x/y"},
			[]string{"one/a", "1", "two/x", "2", "two/z", "2"},
			map[string]string{"d/x/y/a": "1", "d/z": "2"},
		},
		"names around a slash sort as paths": {
			[]string{"one", "d", "two", "d"},
			[]string{"one/a/x", "1", "one/a-b", "1", "one/a.b/x", "1", "two/a/0", "2", "two/a0", "2"},
			map[string]string{"d/a/x": "1", "d/a-b": "1", "d/a.b/x": "1", "d/a/0": "2", "d/a0": "2"},
		},
		"one source, two destinations": {
			[]string{"s", "one", "s", "two"},
			[]string{"s/a", "1"},
			map[string]string{"one/a": "1", "two/a": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := plantest.NewObjects()
			r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, c.mappings...)})
			d, err := desired.NewTree(o, o.Commit(plantest.Pairs(c.commit...)), r)
			require.NoError(t, err)
			assert.Equal(t, c.want, walk(t, o, d))
		})
	}
}

func TestExcludesBeforeOverlays(t *testing.T) {
	o := plantest.NewObjects()
	r := plantest.Rules(t, plan.Rules{
		Mappings: plantest.Mappings(t, "one", "d", "two", "d"), Excludes: plantest.Excludes(t, "d/x", "**/.git/", "**/*.bak", "d/gone/**"),
	})
	d, err := desired.NewTree(o, o.Commit(plantest.Pairs("one/x/a", "1", "two/x", "2", "one/b.bak", "1", "one/gone/a", "1", "one/keep", "1")), r)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"d/x/a": "1", "d/keep": "1"}, walk(t, o, d), "an excluded file hides nothing")
	assert.Len(t, d.Warnings(), 1, "a warning about a pattern that looks like a directory: %v", d.Warnings())
}

func TestEmptyDirectoryHidesNoFile(t *testing.T) {
	for name, c := range map[string]struct {
		exclude string
		commit  []string
		want    map[string]string
	}{
		"no file remains":                 {"**/*.md", []string{"one/x", "file", "two/x/README.md", "no", "two/x/in/deep.md", "no"}, map[string]string{"d/x": "file"}},
		"a file remains":                  {"**/*.md", []string{"one/x", "file", "two/x/README.md", "no", "two/x/in/deep", "yes"}, map[string]string{"d/x/in/deep": "yes"}},
		"the directory is excluded":       {"d/x/", []string{"one/x", "file", "two/x/a", "no"}, map[string]string{"d/x": "file"}},
		"the directory is earlier":        {"**/*.md", []string{"two/x", "file", "one/x/a", "hidden"}, map[string]string{"d/x": "file"}},
		"an empty destination below":      {"**/*.md", []string{"one/x", "file", "three/a.md", "no"}, map[string]string{"d/x": "file"}},
		"a destination below with a file": {"**/*.md", []string{"one/x", "file", "three/a.py", "yes"}, map[string]string{"d/x/y/a.py": "yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := plantest.NewObjects()
			r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "one", "d", "two", "d", "three", "d/x/y"), Excludes: plantest.Excludes(t, c.exclude)})
			d, err := desired.NewTree(o, o.Commit(plantest.Pairs(c.commit...)), r)
			require.NoError(t, err)
			assert.Equal(t, c.want, walk(t, o, d))
		})
	}
}

// The agent does not read an excluded directory: here it is a damaged tree, which would fail the walk.
func TestExcludedDirectory(t *testing.T) {
	o := plantest.NewObjects()
	broken := o.RawTree([]plan.Entry{{Name: "b", Mode: plan.Regular}, {Name: "a", Mode: plan.Regular}})
	good := o.Blob([]byte("x"))
	root := o.TreeOf([]plan.Entry{{Name: "skip", Mode: plan.Directory, ID: broken}, {Name: "file", Mode: plan.Regular, ID: good}})
	for _, pattern := range []string{"d/skip/", "**/skip/", "**/skip/**", "d/s*/**"} {
		t.Run(pattern, func(t *testing.T) {
			r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, ".", "d"), Excludes: plantest.Excludes(t, pattern)})
			d, err := desired.NewTree(o, root, r)
			require.NoError(t, err)
			assert.Equal(t, map[string]string{"d/file": "x"}, walk(t, o, d), pattern)
		})
	}
}

func TestDirs(t *testing.T) {
	o := plantest.NewObjects()
	r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "one", "projects", "two", "projects", "x", "projects/z/deep"), Excludes: plantest.Excludes(t, "**/skip/")})
	d, err := desired.NewTree(o, o.Commit(plantest.Pairs("one/b/1", "1", "two/a/1", "1", "two/file", "1", "two/skip/1", "1", "x/1", "1")), r)
	require.NoError(t, err)
	names, err := d.Dirs("projects")
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "z"}, names)
	names, err = d.Dirs("config")
	require.NoError(t, err)
	assert.Empty(t, names)
}

func TestMissingSource(t *testing.T) {
	o := plantest.NewObjects()
	r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "a", "a", "gone", "projects", "a/file/below", "x")})
	root := o.Commit(plantest.Pairs("a/file", "1"))
	d, err := desired.NewTree(o, root, r)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a/file": "1"}, walk(t, o, d))
	assert.Len(t, d.Warnings(), 2)
	assert.Contains(t, d.Warnings()[0], "gone")

	r.Mappings[1].Required = true
	_, err = desired.NewTree(o, root, r)
	assert.Equal(t, v1alpha1.ReasonSourceMissing, failure.Reason(err, ""))
	assert.ErrorContains(t, err, "mappings[1]")
	assert.ErrorContains(t, err, "gone")
}

func TestSourceInSubmodule(t *testing.T) {
	for _, source := range []string{"lib/module", "lib/module/projects/a"} {
		t.Run(source, func(t *testing.T) {
			o := plantest.NewObjects()
			root := o.Commit(map[string]plantest.File{"lib/module": {Mode: plan.Submodule, ID: plan.ID{1}}})
			r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, source, "a")})
			d, err := desired.NewTree(o, root, r)
			require.NoError(t, err)
			assert.Equal(t, []string{"mappings[0]: lib/module is a submodule, which the agent does not fetch; skipped"}, d.Warnings())

			r.Mappings[0].Required = true
			_, err = desired.NewTree(o, root, r)
			assert.Equal(t, v1alpha1.ReasonSourceMissing, failure.Reason(err, ""))
			assert.EqualError(t, err, "mappings[0]: lib/module is a submodule, which the agent does not fetch, and the mapping is required")
		})
	}
}

func TestServicePathWithoutFolders(t *testing.T) {
	o := plantest.NewObjects()
	r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "wrong/projects", "projects", "wrong/config", "config"), AnySource: true})
	_, err := desired.NewTree(o, o.Commit(plantest.Pairs("right/projects/a", "1")), r)
	assert.Equal(t, v1alpha1.ReasonSourceMissing, failure.Reason(err, ""))
	_, err = desired.NewTree(o, o.Commit(plantest.Pairs("wrong/config/a", "1")), r)
	assert.NoError(t, err)
}

func TestSourceOfOtherType(t *testing.T) {
	o := plantest.NewObjects()
	root := o.Commit(plantest.Pairs("dir/a", "1", "file", "1"))
	for name, m := range map[string]plan.Mapping{
		"file mapped as a directory":  {Source: "file", Destination: "d", Kind: plan.DirSource},
		"directory mapped as a file":  {Source: "dir", Destination: "d", Kind: plan.FileSource},
		"file mapped to the data dir": {Source: "file", Destination: plan.Root},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := desired.NewTree(o, root, plantest.Rules(t, plan.Rules{Mappings: []plan.Mapping{m}}))
			assert.NotEmpty(t, failure.Reason(err, ""))
			assert.ErrorContains(t, err, string(m.Source))
		})
	}
}

// F1 of docs/internals/threats.md: a mapping is refused if its source, or a directory above the source, is a link.
func TestSymbolicLinkInSource(t *testing.T) {
	o := plantest.NewObjects()
	files := plantest.Pairs("real/a", "1")
	files["link"] = plantest.File{Content: "real", Mode: plan.Symlink}
	for _, source := range []string{"link", "link/a"} {
		_, err := desired.NewTree(o, o.Commit(files), plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, source, "d")}))
		assert.Equal(t, v1alpha1.ReasonUnsafePath, failure.Reason(err, ""), source)
	}
}

// F4: names that a hostile tree could contain.
func TestHostileNames(t *testing.T) {
	for name, want := range map[string]v1alpha1.Reason{
		"..": v1alpha1.ReasonUnsafePath, ".": v1alpha1.ReasonUnsafePath, "": v1alpha1.ReasonUnsafePath,
		"a\nb": v1alpha1.ReasonUnsafePath, "a\x00": v1alpha1.ReasonUnsafePath, `a\b`: v1alpha1.ReasonUnsafePath,
		"a/b": v1alpha1.ReasonUnsafePath, "\xff": v1alpha1.ReasonUnsafePath, "C:x": v1alpha1.ReasonUnsafePath,
		strings.Repeat("n", 1100): v1alpha1.ReasonLimitExceeded,
	} {
		t.Run(fmt.Sprintf("%.40q", name), func(t *testing.T) {
			o := plantest.NewObjects()
			blob := o.Blob([]byte("x"))
			for kind, e := range map[string]plan.Entry{
				"file":      {Name: name, Mode: plan.Regular, ID: blob},
				"directory": {Name: name, Mode: plan.Directory, ID: o.Commit(plantest.Pairs("x", "x"))},
			} {
				t.Run(kind, func(t *testing.T) {
					d, err := desired.NewTree(o, o.TreeOf([]plan.Entry{e}), plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, ".", ".")}))
					require.NoError(t, err)
					assert.Equal(t, want, failure.Reason(walkErr(t, d), ""))
				})
			}
		})
	}
}

func TestCollidingNames(t *testing.T) {
	for name, pair := range map[string][2]string{
		"case":                    {"p/View.json", "p/view.json"},
		"case of a directory":     {"P/a", "p/b"},
		"composed and decomposed": {"p/\u00e9", "p/e\u0301"},
		"case and composition":    {"p/\u00c9", "p/e\u0301"},
		"sharp s":                 {"p/straße", "p/STRASSE"},
		"Kelvin":                  {"p/\u212a", "p/k"},
	} {
		t.Run(name, func(t *testing.T) {
			o := plantest.NewObjects()
			r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, ".", "projects")})
			d, err := desired.NewTree(o, o.Commit(plantest.Pairs(pair[0], "1", pair[1], "2", "p/other", "3")), r)
			require.NoError(t, err)
			err = walkErr(t, d)
			assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(err, ""), "%v", err)
		})
	}
	t.Run("across mappings", func(t *testing.T) {
		o := plantest.NewObjects()
		r := plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "one", "projects", "two", "Projects")})
		d, err := desired.NewTree(o, o.Commit(plantest.Pairs("one/a", "1", "two/b", "2")), r)
		require.NoError(t, err)
		assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(walkErr(t, d), ""))
	})
	t.Run("file and directory in one tree", func(t *testing.T) {
		o := plantest.NewObjects()
		blob := o.Blob([]byte("x"))
		root := o.TreeOf([]plan.Entry{
			{Name: "a", Mode: plan.Regular, ID: blob}, {Name: "a-b", Mode: plan.Regular, ID: blob},
			{Name: "a", Mode: plan.Directory, ID: o.Commit(plantest.Pairs("x", "x"))},
		})
		for name, m := range map[string][]string{"one mapping": {".", "projects"}, "two mappings": {".", "projects", "a-b", "projects/c"}} {
			t.Run(name, func(t *testing.T) {
				d, err := desired.NewTree(o, root, plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, m...)}))
				require.NoError(t, err)
				assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(walkErr(t, d), ""))
			})
		}
	})
}

func TestDamagedTree(t *testing.T) {
	o := plantest.NewObjects()
	blob := o.Blob([]byte("x"))
	for name, entries := range map[string][]plan.Entry{
		"unsorted":     {{Name: "b", Mode: plan.Regular, ID: blob}, {Name: "a", Mode: plan.Regular, ID: blob}},
		"same name":    {{Name: "a", Mode: plan.Regular, ID: blob}, {Name: "a", Mode: plan.Regular, ID: blob}},
		"without mode": {{Name: "a", ID: blob}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := desired.NewTree(o, o.RawTree(entries), plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, ".", "projects")}))
			require.NoError(t, err)
			assert.Equal(t, v1alpha1.ReasonUnsupportedRepository, failure.Reason(walkErr(t, d), ""))
		})
	}
}
