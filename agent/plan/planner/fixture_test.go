package planner_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
)

// scene has all inputs of a plan: a repository, a data directory and a manifest, all in memory. Its rules map the folders projects and config
// of the repository to the same paths of the data directory.
type scene struct {
	t        *testing.T
	objects  *plantest.Objects
	disk     *plantest.Disk
	manifest *plantest.Manifest
	rules    plan.Rules
	previous *desired.Tree
	lost     map[string]string // files that the last sync moved to lost+found
}

func newScene(t *testing.T, disk map[string]string) *scene {
	return &scene{
		t: t, objects: plantest.NewObjects(), disk: plantest.NewDisk(disk), manifest: &plantest.Manifest{},
		rules: plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "projects", "projects", "config", "config")}),
	}
}

// desire commits files and returns the desired state of that commit.
func (s *scene) desire(files plantest.Files) *desired.Tree {
	s.t.Helper()
	d, err := desired.NewTree(s.objects, s.objects.Commit(files), s.rules)
	require.NoError(s.t, err)
	return d
}

// input returns the input of a plan for a commit of files.
func (s *scene) input(files plantest.Files) planner.Input {
	s.t.Helper()
	d := s.desire(files)
	return planner.Input{
		Desired: d, Previous: s.previous, Manifest: s.manifest, State: s.disk, From: s.manifest.Head.Commit, To: d.Root(),
	}
}

// plan computes the changes for a commit of files without applying them. with modifies the input.
func (s *scene) plan(files plantest.Files, with ...func(*planner.Input)) (*plan.Changes, error) {
	s.t.Helper()
	in := s.input(files)
	for _, f := range with {
		f(&in)
	}
	return planner.Compute(in)
}

// sync plans and applies a commit of files and returns the changes. with modifies the input.
func (s *scene) sync(files plantest.Files, with ...func(*planner.Input)) *plan.Changes {
	s.t.Helper()
	in := s.input(files)
	for _, f := range with {
		f(&in)
	}
	c, err := planner.Compute(in)
	require.NoError(s.t, err)
	require.Nil(s.t, c.Held, "%s", c)
	s.manifest, s.lost = plantest.Apply(s.t, c, s.rules, in.Desired, s.disk, s.manifest)
	s.previous = in.Desired
	return c
}

// has checks the content of a file on disk.
func (s *scene) has(path, content string) {
	s.t.Helper()
	got, ok := s.disk.Content(path)
	assert.True(s.t, ok, "%s is missing", path)
	assert.Equal(s.t, content, got, "%s", path)
}

// hasNot checks that nothing is at a path on disk.
func (s *scene) hasNot(path string) {
	s.t.Helper()
	st, err := s.disk.Stat(path)
	require.NoError(s.t, err)
	assert.Equal(s.t, plan.Missing, st.Kind, "%s exists", path)
}

// done returns the operation for each changed path.
func done(c *plan.Changes) map[string]plan.Op {
	ops := make(map[string]plan.Op)
	for _, x := range c.List {
		ops[x.Path] = x.Op
	}
	return ops
}

func change(t *testing.T, c *plan.Changes, path string) plan.Change {
	t.Helper()
	for _, x := range c.List {
		if x.Path == path {
			return x
		}
	}
	t.Fatalf("the plan has no %s:\n%s", path, c)
	return plan.Change{}
}

// Functions for the parameter with of plan and sync.
func full(in *planner.Input)   { in.Previous = nil }
func repair(in *planner.Input) { in.Repair = true }
func verify(in *planner.Input) { in.Verify = true }
func force(in *planner.Input)  { in.AllowMassDeletion = true }
func nothing(_ *planner.Input) {}

// bothWays runs a test with incremental and with full plans, which must have the same result.
func bothWays(t *testing.T, test func(t *testing.T, mode func(*planner.Input))) {
	t.Run("incremental", func(t *testing.T) { test(t, nothing) })
	t.Run("full", func(t *testing.T) { test(t, full) })
}
