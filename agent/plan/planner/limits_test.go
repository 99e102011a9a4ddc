package planner_test

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// bomb adds nested trees with ten entries each and returns the root. 10^levels paths lead to last.
func bomb(o *plantest.Objects, levels int, last plan.Entry) plan.ID {
	for range levels {
		var entries []plan.Entry
		for i := range 10 {
			e := last
			e.Name = fmt.Sprintf("d%d", i)
			entries = append(entries, e)
		}
		last = plan.Entry{Mode: plan.Directory, ID: o.TreeOf(entries)}
	}
	return last.ID
}

// F11 of docs/internals/threats.md: a commit with few objects can have more paths than the agent can visit. Every walk of a plan stops at the limits.
func TestTreeBomb(t *testing.T) {
	const levels = 10
	file := func(o *plantest.Objects) plan.Entry {
		return plan.Entry{Mode: plan.Regular, ID: o.Blob([]byte("x"))}
	}
	empty := func(o *plantest.Objects) plan.Entry {
		return plan.Entry{Mode: plan.Directory, ID: o.TreeOf(nil)}
	}
	for name, c := range map[string]struct {
		last func(*plantest.Objects) plan.Entry
		says string
		// rules and beside make a plan walk the tree in another way.
		rules  plan.Rules
		beside []plan.Entry
	}{
		"files":       {last: file, says: "more files than --max-files, 1000"},
		"directories": {last: empty, says: "more than 10000 directories"},
		"directories that a patch is searched in": {
			last: empty, says: "more than 10000 directories",
			rules: plan.Rules{Mappings: []plan.Mapping{{Source: "a", Destination: "projects", Patches: []plan.Patch{
				{Files: "**/config.json", Set: []plan.Setting{{Path: "name", Value: "y"}}},
			}}}},
		},
		"directories that hide a file": {
			last: empty, says: "more than 10000 directories",
			rules: plan.Rules{Mappings: []plan.Mapping{{Source: "b", Destination: "projects"}, {Source: "a", Destination: "projects/x"}}},
		},
		"templates": {
			last: empty, says: "more than 10000 directories",
			rules: plan.Rules{Mappings: []plan.Mapping{{Source: "a", Destination: "projects", Template: true}}},
		},
	} {
		for _, mode := range []struct {
			name string
			set  func(*planner.Input)
		}{{"incremental", nothing}, {"full", full}} {
			t.Run(name+"/"+mode.name, func(t *testing.T) {
				s := newScene(t, nil)
				r := c.rules
				if r.Mappings == nil {
					r.Mappings = plantest.Mappings(t, "a", "projects")
				}
				r.Limits = plan.Limits{Files: 1000}
				s.rules = plantest.Rules(t, r)
				s.sync(plantest.Pairs("a/config.json", "{}", "b/y", "1"))

				b := s.objects.TreeOf([]plan.Entry{{Name: "x", Mode: plan.Regular, ID: s.objects.Blob([]byte("x"))}})
				root := s.objects.TreeOf([]plan.Entry{
					{Name: "a", Mode: plan.Directory, ID: bomb(s.objects, levels, c.last(s.objects))},
					{Name: "b", Mode: plan.Directory, ID: b},
				})
				d, err := desired.NewTree(s.objects, root, s.rules)
				require.NoError(t, err)
				in := s.input(nil)
				in.Desired, in.To = d, root
				mode.set(&in)
				s.objects.Reads = 0
				_, err = planner.Compute(in)
				assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""))
				require.ErrorContains(t, err, c.says)
				assert.Less(t, s.objects.Reads, 100_000, "trees read")
			})
		}
	}
}

// F11: if lowered limits exclude the previous commit, the next sync makes a full plan instead of failing.
func TestSyncedTreeBombIsNotWalked(t *testing.T) {
	s := newScene(t, nil)
	r := plan.Rules{Mappings: plantest.Mappings(t, "a", "projects")}
	s.rules = plantest.Rules(t, r)
	s.sync(plantest.Pairs("a/x", "1"))
	before := s.objects.TreeOf([]plan.Entry{{Name: "a", Mode: plan.Directory, ID: bomb(s.objects, 10, plan.Entry{Mode: plan.Directory, ID: s.objects.TreeOf(nil)})}})
	r.Limits = plan.Limits{Files: 1000}
	s.rules = plantest.Rules(t, r)
	var err error
	s.previous, err = desired.NewTree(s.objects, before, s.rules)
	require.NoError(t, err)
	s.objects.Reads = 0
	c := s.sync(plantest.Pairs("a/x", "2"))
	assert.True(t, c.Full)
	s.has("projects/x", "2")
	assert.Less(t, s.objects.Reads, 100_000, "trees read")
}

// F1: a link below a mapped path fails the sync before anything is written, whatever its target.
func TestSymbolicLinkIsUnsafe(t *testing.T) {
	for _, target := range []string{"/etc/passwd", "../../..", "b", "self", "gone", strings.Repeat("long/", 1000)} {
		t.Run(fmt.Sprintf("%.40q", target), func(t *testing.T) {
			files := plantest.Pairs("projects/p/a", "1")
			files["projects/p/link"] = plantest.File{Content: target, Mode: plan.Symlink}
			s := newScene(t, nil)
			_, err := s.plan(files)
			require.Equal(t, v1alpha1.ReasonUnsafePath, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, "projects/p/link")
			assert.ErrorContains(t, err, target[:min(len(target), 100)])
			assert.Less(t, len(err.Error()), 600)

			s.rules.Excludes = plantest.Excludes(t, "**/link")
			_, err = s.plan(files)
			assert.NoError(t, err, "an excluded link is harmless")
		})
	}
}

func TestSubmoduleIsSkipped(t *testing.T) {
	files := plantest.Pairs("projects/p/a", "1")
	files[`projects/p/back\slash`] = plantest.File{Mode: plan.Submodule, ID: plan.ID{1}}
	for i := range 30 {
		files[fmt.Sprintf("projects/p/sub%02d", i)] = plantest.File{Mode: plan.Submodule, ID: plan.ID{1}}
	}
	s := newScene(t, nil)
	c := s.sync(files)
	assert.Equal(t, map[string]plan.Op{"projects/p/a": plan.Create}, done(c))
	assert.Contains(t, strings.Join(c.Warnings, "\n"), "submodule projects/p/sub00 is skipped")
	assert.Contains(t, strings.Join(c.Warnings, "\n"), `submodule "projects/p/back\\slash" is skipped`)
	assert.Less(t, len(c.Warnings), 30, "the number of warnings is limited")
}

// F11: the message for each limit names that limit.
func TestLimitMessages(t *testing.T) {
	for name, c := range map[string]struct {
		limits plan.Limits
		files  plantest.Files
	}{
		"--max-files":     {plan.Limits{Files: 2}, plantest.Pairs("projects/a", "1", "projects/b", "2", "projects/c", "3")},
		"more than 12":    {plan.Limits{PathBytes: 12}, plantest.Pairs("projects/abcd", "1")},
		"a name of 256 b": {plan.Limits{}, plantest.Pairs("projects/"+strings.Repeat("n", 256), "1")},
		"a name of 258 b": {plan.Limits{}, plantest.Pairs("projects/"+strings.Repeat("é", 129)+"/x", "1")},
		"than 3 names":    {plan.Limits{Depth: 3}, plantest.Pairs("projects/a/b/c", "1")},
		"than 64 names":   {plan.Limits{}, plantest.Pairs("projects/"+strings.Repeat("d/", 4000)+"c", "1")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.rules = plantest.Rules(t, plan.Rules{Mappings: s.rules.Mappings, Limits: c.limits})
			_, err := s.plan(c.files)
			assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""))
			assert.ErrorContains(t, err, name)
		})
	}
}

func TestFileLimitOfIncrements(t *testing.T) {
	s := newScene(t, nil)
	s.rules = plantest.Rules(t, plan.Rules{Mappings: s.rules.Mappings, Limits: plan.Limits{Files: 2}})
	s.sync(plantest.Pairs("projects/a", "1", "projects/b", "2"))
	_, err := s.plan(plantest.Pairs("projects/a", "1", "projects/b", "2", "projects/c", "3"))
	assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""))
}

// sparse is a disk that reports 511 MiB as the size of every file, as if most of it were holes.
type sparse struct {
	*plantest.Disk
	hashed int
}

func (s *sparse) Stat(path string) (plan.Stat, error) {
	st, err := s.Disk.Stat(path)
	if st.Kind == plan.File {
		st.Size = 511 << 20
	}
	return st, err
}

func (s *sparse) BlobID(path string) (plan.ID, error) {
	s.hashed++
	return s.Disk.BlobID(path)
}

// F29: a plan reads a bounded number of bytes, however many files a program of the gateway makes, and however large they are.
func TestPlanHashesBoundedBytes(t *testing.T) {
	const files = 200
	want, extra := plantest.Files{}, map[string]string{}
	for i := range files {
		want[fmt.Sprintf("projects/p/r/file%03d", i)] = plantest.File{Content: "git"}
		extra[fmt.Sprintf("projects/p/r/extra%03d", i)] = "gateway"
	}
	for name, c := range map[string]struct {
		prune plan.Prune
		disk  func(s *scene)
	}{
		"changed files": {plan.PruneOwned, func(s *scene) {
			for path := range want {
				s.disk.Write(path, "gateway")
			}
		}},
		"files that prune mirror deletes": {plan.PruneMirror, func(s *scene) {
			for path, content := range extra {
				s.disk.Write(path, content)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.rules.Prune = c.prune
			s.sync(want)
			c.disk(s)
			disk := &sparse{Disk: s.disk}
			_, err := s.plan(want, repair, func(in *planner.Input) { in.State = disk })
			require.Error(t, err)
			assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
			assert.LessOrEqual(t, disk.hashed, 34, "34 files of 511 MiB are more than the limit of 16 GiB")
		})
	}
}

// large returns a commit of about n files in the layout of real projects: three files per resource, nine levels deep.
func large(n int) plantest.Files {
	files := make(plantest.Files, n)
	for i := 0; len(files) < n; i++ {
		dir := fmt.Sprintf("projects/line%02d/com.inductiveautomation.perspective/views/area%02d/page%02d/view%04d", i%20, i/20%20, i/400%20, i)
		for _, name := range []string{"resource.json", "thumbnail.png", "view.json"} {
			files[dir+"/"+name] = plantest.File{Content: fmt.Sprint(i)}
		}
	}
	return files
}

// column is a Manifest over a sorted slice, so that measurements do not include the cost of a map.
type column struct {
	head    plan.Header
	records []plan.Owned
	index   map[string]int
}

func newColumn(t testing.TB, d *desired.Tree) *column {
	m := &column{index: make(map[string]int)}
	for w, err := range d.Walk() {
		require.NoError(t, err)
		m.index[w.Path] = len(m.records)
		m.records = append(m.records, plan.Owned{Path: w.Path, Want: w.ID, Have: w.ID, Mtime: 1})
	}
	m.head = plan.Header{
		Commit: d.Root(), Rules: d.Rules().Fingerprint(), Mappings: []plan.Origin{{Source: "projects", Destination: "projects"}},
		Files: len(m.records), Complete: true,
	}
	return m
}

func (m *column) Header() plan.Header { return m.head }

func (m *column) Get(path string) (plan.Owned, bool, error) {
	i, ok := m.index[path]
	if !ok {
		return plan.Owned{}, false, nil
	}
	return m.records[i], true, nil
}

func (m *column) All(string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		for _, r := range m.records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// stats is a disk that reports the same Stat for every path: either as in the manifest, or missing.
type stats struct {
	plan.State
	found plan.Stat
}

func (s stats) Stat(string) (plan.Stat, error)            { return s.found, nil }
func (s stats) Blocked(string) (string, plan.Kind, error) { return "", plan.Missing, nil }
func (s stats) Walk(string) iter.Seq2[plan.Found, error] {
	return func(func(plan.Found, error) bool) {}
}
func (s stats) BlobID(string) (plan.ID, error)     { panic("unexpected BlobID") }
func (s stats) Read(string, int64) ([]byte, error) { panic("unexpected Read") }

// cost has two commits and the manifest of the first, to measure the plan of the second.
type cost struct {
	objects       *plantest.Objects
	before, after *desired.Tree
	manifest      *column
}

func newCost(t testing.TB, n int) cost {
	o := plantest.NewObjects()
	r, err := plan.NewRules(plan.Rules{Mappings: []plan.Mapping{{Source: "projects", Destination: "projects"}}})
	require.NoError(t, err)
	files := large(n)
	before, err := desired.NewTree(o, o.Commit(files), r)
	require.NoError(t, err)
	const changed = "projects/line01/com.inductiveautomation.perspective/views/area00/page00/view0001/view.json"
	require.Contains(t, files, changed)
	files[changed] = plantest.File{Content: "changed"}
	after, err := desired.NewTree(o, o.Commit(files), r)
	require.NoError(t, err)
	return cost{objects: o, before: before, after: after, manifest: newColumn(t, before)}
}

// newRenderedCost is newCost plus templates and patches. None of them depends on the commit.
func newRenderedCost(t testing.TB, n int) cost {
	o := plantest.NewObjects()
	cache := desired.NewCache()
	files := large(n)
	for i := range 300 {
		files[fmt.Sprintf("templates/%d/x.json", i)] = plantest.File{Content: fmt.Sprintf(`{"i":%d,"name":"{{.GatewayName}}"}`, i)}
	}
	files["config/core/config.json"] = plantest.File{Content: `{"name":"x"}`}
	commit := func() *desired.Tree {
		root := o.Commit(files)
		r, err := plan.NewRules(plan.Rules{
			Mappings: []plan.Mapping{
				{Source: "projects", Destination: "projects"}, {Source: "templates", Destination: "config/t", Template: true},
				{Source: "config", Destination: "config/resources", Patches: []plan.Patch{
					{Files: "**/config.json", Set: []plan.Setting{{Path: "name", Value: "y"}}},
				}},
			},
			Facts: plan.Facts{GatewayName: "line-1", Commit: root.String()},
		})
		require.NoError(t, err)
		d, err := cache.NewTree(o, root, r)
		require.NoError(t, err)
		return d
	}
	before := commit()
	manifest := newColumn(t, before)
	const changed = "projects/line01/com.inductiveautomation.perspective/views/area00/page00/view0001/view.json"
	files[changed] = plantest.File{Content: "again"}
	c := cost{objects: o, before: before, after: commit(), manifest: manifest}
	c.oneFile(t) // fill the cache with a first plan
	return c
}

// oneFile returns the plan of the second commit, which changes one file.
func (c cost) oneFile(t testing.TB) *plan.Changes {
	changes, err := planner.Compute(planner.Input{
		Desired: c.after, Previous: c.before, Manifest: c.manifest, State: stats{found: plan.Stat{Kind: plan.File, Mtime: 1}},
		From: c.before.Root(), To: c.after.Root(),
	})
	require.NoError(t, err)
	return changes
}

func TestOneFileCommitReadsChangedDirectories(t *testing.T) {
	c := newCost(t, 9000)
	c.objects.Reads = 0
	assert.Equal(t, plan.Counts{Modified: 1}, c.oneFile(t).Counts())
	assert.LessOrEqual(t, c.objects.Reads, 3*8, "trees read: one for each level of each commit, and the path to the resource's directory again")
}

func TestOneFileCommitRendersNothing(t *testing.T) {
	c := newRenderedCost(t, 9000)
	c.objects.Reads, c.objects.BlobReads = 0, 0
	assert.Equal(t, plan.Counts{Modified: 1}, c.oneFile(t).Counts())
	assert.LessOrEqual(t, c.objects.Reads, 2*10+6, "as without templates, plus the file that matches the pattern")
	assert.Zero(t, c.objects.BlobReads)
}

func TestFirstPlanMemory(t *testing.T) {
	files := 30000
	if testing.Short() {
		files = 9000
	}
	c := newCost(t, files)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	changes := c.first(t)
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / float64(files)
	assert.Equal(t, plan.Counts{Added: files}, changes.Counts())
	path := 0
	for _, x := range changes.List {
		path += len(x.Path)
	}
	t.Logf("%.0f bytes a change, of which %d are its path", each, path/files)
	assert.Less(t, each, 250.0)
	runtime.KeepAlive(c)
}

// first returns the plan of a first sync.
func (c cost) first(t testing.TB) *plan.Changes {
	changes, err := planner.Compute(planner.Input{
		Desired: c.after, Manifest: &plantest.Manifest{}, State: stats{}, To: c.after.Root(),
	})
	require.NoError(t, err)
	return changes
}
