package planner_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// project returns the files of a project with n views.
func project(name string, n int) plantest.Files {
	files := plantest.Pairs("projects/"+name+"/project.json", `{"title":"`+name+`"}`)
	for i := range n {
		files[fmt.Sprintf("projects/%s/views/v%03d", name, i)] = plantest.File{Content: fmt.Sprint(i)}
	}
	return files
}

func merged(sets ...plantest.Files) plantest.Files {
	all := make(plantest.Files)
	for _, s := range sets {
		maps.Copy(all, s)
	}
	return all
}

func TestMassDeletionIsHeld(t *testing.T) {
	two := project("line2", 100)
	for name, c := range map[string]struct {
		rules   plan.Rules // Conflict and Excludes
		one     plantest.Files
		then    func(*scene)
		two     plantest.Files
		deleted int
		says    string
	}{
		"a deleted project": {one: merged(project("line1", 3), two), two: two, deleted: 4, says: "4 files would be deleted (the agent owns 105), including all of project line1"},
		"a renamed project": {one: merged(project("old", 2), two), two: merged(project("new", 2), two), deleted: 3, says: "all of project old"},
		// A gateway does not recognize a project without project.json.
		"a deleted project.json": {one: merged(project("p", 2), two), two: merged(without(project("p", 2), "projects/p/project.json"), two), deleted: 1,
			says: "1 file would be deleted (the agent owns 104), including the project.json of p (the gateway ignores a project without it)"},
		// The plan does not delete project.json, for various reasons.
		"a deleted project, whose project.json is excluded": {rules: plan.Rules{Excludes: plantest.Excludes(t, "projects/*/project.json")},
			one: merged(project("line1", 3), two), two: two, deleted: 3, says: "3 files would be deleted (the agent owns 103), including all of project line1"},
		"a deleted project, whose project.json stays": {rules: plan.Rules{Conflict: plan.GatewayWins}, one: merged(project("line1", 3), two),
			then: writes("projects/line1/project.json", "gateway's"), two: two, deleted: 3, says: "including all of project line1"},
		// A folder renamed in git must not empty a gateway, even a small one.
		"a lost source": {one: git("config/a", "1", "config/b", "2", "projects/x", "3"), two: git("conf/a", "1", "conf/b", "2", "projects/x", "3"), deleted: 2,
			says: "the commit no longer has config"},
		"a project, beside a conflict": {rules: plan.Rules{Conflict: plan.Hold}, one: merged(project("p", 2), git("config/c", "1")), then: writes("config/c", "gateway's"), two: git("config/c", "2"), deleted: 3,
			says: "config/c"},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict, s.rules.Excludes = c.rules.Conflict, c.rules.Excludes
				s.sync(c.one)
				if c.then != nil {
					c.then(s)
				}
				got, err := s.plan(c.two, mode)
				require.NoError(t, err)
				require.NotNil(t, got.Held)
				assert.Equal(t, v1alpha1.ReasonMassDeletion, got.Held.Reason)
				assert.Contains(t, got.Held.Message, c.says)
				assert.Equal(t, c.deleted, got.Counts().Deleted, "a held plan still counts its changes")
				assert.Len(t, got.Held.Paths, c.deleted)
				if c.rules.Conflict != plan.Hold {
					assert.Equal(t, c.deleted, s.sync(c.two, mode, approve).Counts().Deleted)
				}
			})
		})
	}
}

// The conflict policy may keep files of a source that the commit lost. Then no file is deleted.
func TestLostSourceOfKeptFiles(t *testing.T) {
	for name, c := range map[string]struct {
		edited []string
		held   bool
	}{
		"all files kept":  {[]string{"config/a", "1 edited", "config/b", "2 edited"}, false},
		"one file kept":   {[]string{"config/a", "1 edited"}, true},
		"no file changed": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict = plan.GatewayWins
				s.sync(git("config/a", "1", "config/b", "2", "projects/x", "3", "projects/y", "4"))
				writes(c.edited...)(s)
				got, err := s.plan(git("conf/a", "1", "conf/b", "2", "projects/x", "3"), mode)
				require.NoError(t, err)
				assert.Equal(t, c.held, got.Held != nil)
				assert.Equal(t, 3-len(c.edited)/2, got.Counts().Deleted)
			})
		})
	}
}

func TestProjectFileFromAnotherMapping(t *testing.T) {
	s := newScene(t, nil)
	s.rules = plantest.Rules(t, plan.Rules{Mappings: plantest.Mappings(t, "projects", "projects", "heads", "projects")})
	s.sync(merged(project("p", 2), plantest.Pairs("heads/README", "keeps the source")))
	c := s.sync(merged(without(project("p", 2), "projects/p/project.json"), plantest.Pairs("heads/README", "keeps the source", "heads/p/project.json", "{}")))
	assert.Zero(t, c.Counts().Deleted)
}

func TestMassDeletionThresholds(t *testing.T) {
	for _, c := range []struct {
		owned, left int
		held        bool
	}{
		{60, 40, false},  // 20 files, 33 percent
		{60, 39, true},   // 21 files, 35 percent
		{100, 70, false}, // 30 percent
		{100, 69, true},
		{25, 3, true},
		{20, 1, false}, // 19 files, nearly all, but no project
	} {
		t.Run(fmt.Sprintf("%d of %d files stay", c.left, c.owned), func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.sync(without(project("p", c.owned), "projects/p/project.json"))
				got, err := s.plan(without(project("p", c.left), "projects/p/project.json"), mode)
				require.NoError(t, err)
				assert.Equal(t, c.held, got.Held != nil)
			})
		})
	}
}

func TestFirstSyncWithoutSources(t *testing.T) {
	s := newScene(t, nil)
	_, err := s.plan(merged(plantest.Pairs("services/line/projects/x", "1"), plantest.Pairs("README.md", "2")))
	require.Equal(t, v1alpha1.ReasonSourceMissing, failure.Reason(err, ""), "%v", err)
	assert.Contains(t, err.Error(), "it has at its top README.md, services")
}

func TestConflictNamesTenPaths(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Conflict = plan.Hold
	for path := range project("p", 12) {
		s.disk.Write(path, "own")
	}
	c, err := s.plan(without(project("p", 12), "projects/p/project.json"))
	require.NoError(t, err)
	require.NotNil(t, c.Held)
	assert.Len(t, c.Held.Paths, 10)
	assert.Contains(t, c.Held.Message, "different versions of 12 files")
	assert.Contains(t, c.Held.Message, "and 2 more")
}

func TestUnreadablePreviousTreeMakesFullPlan(t *testing.T) {
	s := newScene(t, nil)
	s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
	for _, dir := range []plantest.Files{plantest.Pairs("a.txt", "one", "b", "b"), plantest.Pairs("p/a.txt", "one", "p/b", "b")} {
		s.objects.Forget(s.objects.Commit(dir))
	}
	c := s.sync(plantest.Pairs(file, "two", "projects/p/b", "b"))
	assert.True(t, c.Full)
	assert.Equal(t, map[string]plan.Op{file: plan.Update}, done(c))
}

func TestOtherManifestMakesFullPlan(t *testing.T) {
	for name, change := range map[string]func(s *scene){
		"incomplete":     func(s *scene) { s.manifest.Head.Complete = false },
		"other rules":    func(s *scene) { s.rules.Prune = plan.PruneNone },
		"another commit": func(s *scene) { s.manifest.Head.Commit = plan.ID{1} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.sync(plantest.Pairs(file, "one"))
			change(s)
			in := s.input(plantest.Pairs(file, "one"))
			in.From = in.Previous.Root()
			c, err := planner.Compute(in)
			require.NoError(t, err)
			assert.True(t, c.Full)
		})
	}
}

func TestErrorsEndPlan(t *testing.T) {
	broken := errors.New("input/output error")
	s := newScene(t, nil)
	s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
	s.disk.Touch("projects/p/b")
	for name, with := range map[string]func(*planner.Input){
		"stat":                 func(in *planner.Input) { in.State = failing{State: in.State, stat: broken} },
		"hash":                 func(in *planner.Input) { in.State = failing{State: in.State, blob: broken}; in.Verify = true },
		"manifest get":         func(in *planner.Input) { in.Manifest = failingManifest{in.Manifest, broken} },
		"manifest all":         func(in *planner.Input) { in.Manifest = failingManifest{in.Manifest, broken}; in.Previous = nil },
		"a tree of the commit": func(*planner.Input) { s.objects.Forget(s.objects.Commit(plantest.Pairs("a.txt", "two", "b", "b"))) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.plan(plantest.Pairs(file, "two", "projects/p/b", "b"), with)
			assert.Error(t, err, name)
			if name != "a tree of the commit" {
				assert.ErrorIs(t, err, broken, name)
			}
		})
	}
}

func TestRecordsKeepTheirMapping(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mappings = plantest.Mappings(t, "a", "a", "b", "b", "c", "c")
	files := plantest.Pairs("a/1", "1", "b/1", "1", "c/1", "1", "d/1", "1", "e/1", "1")
	s.sync(files)
	s.rules.Mappings = plantest.Mappings(t, "d", "d", "c", "c", "a", "a")
	c := s.sync(files)
	assert.Equal(t, map[string]plan.Op{"b/1": plan.Release, "d/1": plan.Create}, done(c), "no record is updated")
	for path, rec := range s.manifest.Records {
		assert.Equal(t, path[:1], s.manifest.Head.Mappings[rec.Origin].Source, path)
	}
	assert.Len(t, c.Mappings, 4)
	s.rules.Mappings = plantest.Mappings(t, "e", "e", "d", "d", "c", "c", "a", "a")
	assert.Equal(t, []plan.Origin{
		{Source: "a", Destination: "a"}, {Source: "e", Destination: "e"}, {Source: "c", Destination: "c"}, {Source: "d", Destination: "d"},
	}, s.sync(files).Mappings, "the index of b is free again")
}

func TestFileMovesToAnotherMapping(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mappings = plantest.Mappings(t, "one", "projects", "two", "projects")
	s.sync(plantest.Pairs("one/a", "1", "two/b", "1"))
	c := s.sync(plantest.Pairs("one/a", "1", "two/b", "1", "two/a", "1"))
	assert.Equal(t, map[string]plan.Op{"projects/a": plan.Adopt}, done(c))
	assert.Equal(t, "two", s.manifest.Head.Mappings[s.manifest.Records["projects/a"].Origin].Source)
}

// failing is a State whose Stat and BlobID fail if an error is set.
type failing struct {
	plan.State
	stat, blob error
}

func (f failing) Stat(path string) (plan.Stat, error) {
	if f.stat != nil {
		return plan.Stat{}, f.stat
	}
	return f.State.Stat(path)
}

func (f failing) BlobID(path string) (plan.ID, error) {
	if f.blob != nil {
		return plan.ID{}, f.blob
	}
	return f.State.BlobID(path)
}

// failingManifest is a Manifest whose records cannot be read.
type failingManifest struct {
	plan.Manifest
	err error
}

func (f failingManifest) Get(string) (plan.Owned, bool, error) { return plan.Owned{}, false, f.err }

func (f failingManifest) All(string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) { yield(plan.Owned{}, f.err) }
}

// Files that the other node of a pair may have replicated are not edits: git replaces them with every conflict policy.
func TestFileFromOtherNodeIsReplaced(t *testing.T) {
	const changed, drifted, missing, gone, foreign, mine = "projects/p/a", "projects/p/b", "projects/p/c", "projects/p/d", "projects/p/e", "config/mine"
	replicated := func(in *planner.Input) {
		in.Replicated = func(path string) bool { return strings.HasPrefix(path, "projects/") }
	}
	for name, policy := range map[string]plan.ConflictPolicy{"gitWins": plan.GitWins, "hold": plan.Hold, "gatewayWins": plan.GatewayWins} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.rules.Conflict = policy
			s.sync(plantest.Pairs(changed, "1", drifted, "1", missing, "1", gone, "1", mine, "1"))
			s.disk.Write(changed, "pair")
			s.disk.Write(drifted, "pair")
			s.disk.Remove(missing)
			s.disk.Write(gone, "pair")
			s.disk.Write(foreign, "pair")
			s.disk.Write(mine, "user")
			c := s.sync(plantest.Pairs(changed, "2", drifted, "1", missing, "2", foreign, "2", mine, "1"), replicated)
			assert.True(t, c.Full)
			assert.Equal(t, map[string]plan.Op{
				changed: plan.Update, drifted: plan.Update, missing: plan.Create, gone: plan.Delete, foreign: plan.Update,
			}, done(c))
			assert.Equal(t, 1, c.Drifted, "an edit of a file that the pair does not copy is drift")
			assert.Equal(t, map[string]string{changed: "pair", drifted: "pair", gone: "pair", foreign: "pair"}, s.lost)
			s.has(mine, "user")
		})
	}
}

// On a volume without modes, the plan ignores the executable bit of the files.
func TestVolumeWithoutModesIgnoresModes(t *testing.T) {
	s := newScene(t, map[string]string{"projects/p/old": "old"})
	s.disk.NoModes = true
	s.disk.Chmod("projects/p/old", true)
	files := plantest.Pairs(file, "one", "projects/p/old", "old")
	c := s.sync(files)
	assert.Equal(t, map[string]plan.Op{file: plan.Create, "projects/p/old": plan.Adopt}, done(c), "an existing equal file is not written")
	s.disk.Chmod(file, true) // the mode that the volume reports
	for _, mode := range []func(*planner.Input){full, repair} {
		c = s.sync(files, mode)
		assert.Empty(t, c.List)
		assert.Zero(t, c.Drifted)
	}
}

func TestVolumeWithoutModesRecordsMode(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.disk.NoModes = true
		s.sync(plantest.Pairs(file, "one"))
		c := s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}}, mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Adopt}, done(c))
		assert.True(t, s.manifest.Records[file].Exec)
		assert.Empty(t, s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}}, full).List)
	})
}

func TestTouches(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mappings = plantest.Mappings(t, "projects", "projects", "config", "config", "other", "other")
	const provider = "config/resources/core/ignition/tag-provider/line/"
	files := plantest.Pairs("projects/a/project.json", "{}", "projects/a/v/code.py", "1", "projects/a-b/project.json", "{}",
		provider+"config.json", "{}", provider+"resource.json", "{}",
		"config/resources/core/ignition/system-properties/config.json", "{}", "config/resources/core/config-mode.json", "{}", "other/x", "1")
	c := s.sync(files)
	projects, config := c.Touches()
	assert.True(t, projects)
	assert.True(t, config)
	assert.Equal(t, []string{"a", "a-b"}, c.Projects())
	assert.Equal(t, []plan.ConfigResource{
		{Collection: "core", Module: "ignition", Type: "system-properties"},
		{Collection: "core", Module: "ignition", Type: "tag-provider", Name: "line"},
	}, c.ConfigResources())

	c = s.sync(without(files, provider+"config.json", provider+"resource.json"))
	projects, config = c.Touches()
	assert.False(t, projects)
	assert.True(t, config)
	assert.Empty(t, c.Projects())
	assert.Equal(t, []plan.ConfigResource{
		{Collection: "core", Module: "ignition", Type: "tag-provider", Name: "line", Deleted: true},
	}, c.ConfigResources())

	adopted := newScene(t, map[string]string{"projects/a/project.json": "{}"}).sync(plantest.Pairs("projects/a/project.json", "{}"))
	projects, config = adopted.Touches()
	assert.False(t, projects || config, "adopted files need no scan")
	assert.Empty(t, adopted.Projects())
	assert.False(t, adopted.Writes())

	c = s.sync(with(files, "other/x", "2"))
	projects, _ = c.Touches()
	assert.False(t, projects)
}
