package planner_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
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
func full(in *planner.Input)    { in.Previous = nil }
func repair(in *planner.Input)  { in.Repair = true }
func verify(in *planner.Input)  { in.Verify = true }
func approve(in *planner.Input) { in.AllowMassDeletion = true }
func nothing(_ *planner.Input)  {}

// bothWays runs a test with incremental and with full plans, which must have the same result.
func bothWays(t *testing.T, test func(t *testing.T, mode func(*planner.Input))) {
	t.Run("incremental", func(t *testing.T) { test(t, nothing) })
	t.Run("full", func(t *testing.T) { test(t, full) })
}

// example is a section of docs/how-to/templates.md that the test can run.
type example struct {
	profile, annotations string
	git, gateway         map[string]string
	reason, says         string
}

// examples returns the code blocks of a page by heading. The words after a block's language define its role.
func examples(page string) map[string]*example {
	found := map[string]*example{}
	heading := ""
	for rest := page; rest != ""; {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		if h, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			heading = h
		}
		info, ok := strings.CutPrefix(line, "```")
		if !ok {
			continue
		}
		var block string
		block, rest, _ = strings.Cut(rest, "\n```\n")
		if found[heading] == nil {
			found[heading] = &example{git: map[string]string{}, gateway: map[string]string{}}
		}
		found[heading].add(info, block)
	}
	return found
}

func (e *example) add(info, block string) {
	_, what, _ := strings.Cut(info, " ")
	kind, name, _ := strings.Cut(what, "=")
	switch kind {
	case "profile":
		e.profile = block
	case "annotations":
		e.annotations = block
	case "git":
		e.git[name] = block
	case "gateway":
		e.gateway[name] = block
	case "error":
		e.reason, e.says = name, block
	}
}

func TestDocumentedExamples(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/how-to/templates.md")
	require.NoError(t, err)
	found := examples(string(raw))
	require.GreaterOrEqual(t, len(found), 6)
	for heading, e := range found {
		t.Run(heading, func(t *testing.T) {
			e.run(t)
			for path := range e.git {
				assert.Contains(t, string(raw), "In git, `"+path+"`:\n", "the text names the path, because readers do not see the info string of a block")
			}
			for path := range e.gateway {
				assert.Contains(t, string(raw), "On the gateway, `"+path+"`:\n")
			}
		})
	}
}

func (e *example) run(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	if e.profile != "" {
		var p v1alpha1.SyncProfile
		require.NoError(t, yaml.UnmarshalStrict([]byte(e.profile), &p))
		gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{v1alpha1.DefaultProfile: p}
	}
	annotations := map[string]string{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(e.annotations), &annotations))
	if annotations[v1alpha1.AnnotationDeploymentMode] == "" {
		annotations[v1alpha1.AnnotationDeploymentMode] = "dev"
	}
	profile, err := effective.Of(gs, "", annotations)
	require.NoError(t, err)

	s := newStudio(t)
	s.profile, s.facts = profile, plan.Facts{
		GatewayName: "line-1", PodName: "line-1-gateway-0", Namespace: "north", CRName: "plant", Ref: "main",
		Labels: map[string]string{"example.com/area": "7"},
	}
	files := make(plantest.Files)
	for path, content := range e.git {
		files[path] = plantest.File{Content: content}
	}
	require.NotEmpty(t, files)
	if e.reason != "" {
		_, err := plan.ParseRules(s.profile, s.facts, s.limits) // some mappings are refused without a commit
		if err == nil {
			err = s.refused(files)
		}
		assert.Equal(t, v1alpha1.Reason(e.reason), failure.Reason(err, ""), "%v", err)
		assert.ErrorContains(t, err, e.says)
		return
	}
	s.deliver(files)
	assert.Equal(t, e.gateway, s.disk.Files())
}

func id(b byte) plan.ID { return plan.ID{b, b, b, b} }

func TestPlanText(t *testing.T) {
	c := &plan.Changes{
		From: id(0xab), To: id(0xcd),
		List: []plan.Change{
			{Op: plan.Adopt, Path: "config/a.json"},
			{Op: plan.Create, Path: "config/b.json"},
			{Op: plan.Update, Path: "config/c.json", ID: id(1), FoundID: id(2)},
			{Op: plan.Update, Path: "config/d.json", ID: id(1), FoundID: id(1)},
			{Op: plan.Update, Path: "config/e.json", ID: id(1), FoundID: id(2), Conflict: true},
			{Op: plan.Delete, Path: "config/f.json"},
			{Op: plan.Delete, Path: "config/g\nx\x1b[2J.json", Conflict: true},
			{Op: plan.Keep, Path: "config/h.json", Found: plan.Stat{Kind: plan.File}},
			{Op: plan.Release, Path: "config/i.json", Found: plan.Stat{Kind: plan.File}},
			{Op: plan.Release, Path: "config/j.json"},
		},
		Held:     &plan.Held{Reason: v1alpha1.ReasonMassDeletion, Message: "2 files of 3 would be deleted"},
		Warnings: []string{"submodule x is skipped"},
	}
	const want = `abababa → cdcdcdc: 1 created, 3 updated, 2 deleted, 1 kept, 1 adopted, 2 released, 2 to lost+found
held (MassDeletion): 2 files of 3 would be deleted
+ config/b.json
~ config/c.json
~ config/d.json (mode)
! config/e.json (the gateway's version goes to lost+found)
- config/f.json
! "config/g\nx\x1b[2J.json" (deleted; the gateway's version goes to lost+found)
= config/h.json (kept: the gateway's version)
= config/i.json (released: the file stays)
= config/j.json (already deleted)
= config/a.json (adopted)
warning: submodule x is skipped
`
	assert.Equal(t, want, c.String())
	assert.Equal(t, c.String(), c.String(), "the text is deterministic")
}

func TestEmptyPlanText(t *testing.T) {
	assert.Equal(t, "first sync → cdcdcdc: nothing to do", (&plan.Changes{To: id(0xcd)}).Summary())
}

func TestLargePlanTextIsBounded(t *testing.T) {
	c := &plan.Changes{To: id(1)}
	for i := range 1000 {
		c.List = append(c.List, plan.Change{Op: plan.Adopt, Path: fmt.Sprintf("a/%03d", i)})
	}
	c.List = append(c.List, plan.Change{Op: plan.Create, Path: "b"})
	text := c.String()
	assert.Equal(t, 202, strings.Count(text, "\n"))
	assert.Contains(t, text, "\n+ b\n", "written files come first")
	assert.True(t, strings.HasSuffix(text, "… and 801 more\n"))
}
