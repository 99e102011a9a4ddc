package planner_test

import (
	"fmt"
	"iter"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
)

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

func (c cost) first(t testing.TB) *plan.Changes {
	changes, err := planner.Compute(planner.Input{
		Desired: c.after, Manifest: &plantest.Manifest{}, State: stats{}, To: c.after.Root(),
	})
	require.NoError(t, err)
	return changes
}
