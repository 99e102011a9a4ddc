package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
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
	previous *plan.Desired
	lost     map[string]string // files that the last sync moved to lost+found
}

func newScene(t *testing.T, disk map[string]string) *scene {
	return &scene{
		t: t, objects: plantest.NewObjects(), disk: plantest.NewDisk(disk), manifest: &plantest.Manifest{},
		rules: rules(t, plan.Rules{Mappings: mappings(t, "projects", "projects", "config", "config")}),
	}
}

// rules validates rules as ParseRules would.
func rules(t *testing.T, r plan.Rules) plan.Rules {
	t.Helper()
	r, err := plan.NewRules(r)
	require.NoError(t, err)
	return r
}

// mappings returns a mapping for each pair of source and destination.
func mappings(t *testing.T, pairs ...string) []plan.Mapping {
	t.Helper()
	var list []plan.Mapping
	for i := 0; i < len(pairs); i += 2 {
		source, err := plan.ParsePath(pairs[i])
		require.NoError(t, err)
		destination, err := plan.ParsePath(pairs[i+1])
		require.NoError(t, err)
		list = append(list, plan.Mapping{Source: source, Destination: destination})
	}
	return list
}

func excludes(t *testing.T, patterns ...string) plan.Excludes {
	t.Helper()
	x, err := plan.NewExcludes(patterns)
	require.NoError(t, err)
	return x
}

// desire commits files and returns the desired state of that commit.
func (s *scene) desire(files plantest.Files) *plan.Desired {
	s.t.Helper()
	d, err := plan.Desire(s.objects, s.objects.Commit(files), s.rules)
	require.NoError(s.t, err)
	return d
}

// input returns the input of a plan for a commit of files.
func (s *scene) input(files plantest.Files) plan.Input {
	s.t.Helper()
	d := s.desire(files)
	return plan.Input{
		Desired: d, Previous: s.previous, Manifest: s.manifest, State: s.disk, From: s.manifest.Head.Commit, To: d.Root(),
	}
}

// plan computes the changes for a commit of files without applying them. with modifies the input.
func (s *scene) plan(files plantest.Files, with ...func(*plan.Input)) (*plan.Changes, error) {
	s.t.Helper()
	in := s.input(files)
	for _, f := range with {
		f(&in)
	}
	return plan.Compute(in)
}

// sync plans and applies a commit of files and returns the changes. with modifies the input.
func (s *scene) sync(files plantest.Files, with ...func(*plan.Input)) *plan.Changes {
	s.t.Helper()
	in := s.input(files)
	for _, f := range with {
		f(&in)
	}
	c, err := plan.Compute(in)
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
func full(in *plan.Input)   { in.Previous = nil }
func repair(in *plan.Input) { in.Repair = true }
func verify(in *plan.Input) { in.Verify = true }
func force(in *plan.Input)  { in.AllowMassDeletion = true }
func nothing(_ *plan.Input) {}

func text(pairs ...string) plantest.Files {
	files := make(plantest.Files)
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = plantest.File{Content: pairs[i+1]}
	}
	return files
}

// bothWays runs a test with incremental and with full plans, which must have the same result.
func bothWays(t *testing.T, test func(t *testing.T, mode func(*plan.Input))) {
	t.Run("incremental", func(t *testing.T) { test(t, nothing) })
	t.Run("full", func(t *testing.T) { test(t, full) })
}
