package planner_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
)

// These tests cover the rows of the table "What happens to a file". Each test name states an outcome.

const file = "projects/p/a.txt"

func TestMissingFileIsCreated(t *testing.T) {
	s := newScene(t, nil)
	c := s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}})
	assert.Equal(t, map[string]plan.Op{file: plan.Create}, done(c))
	assert.True(t, change(t, c, file).Exec)
	assert.Equal(t, 1, c.Total)
	s.has(file, "one")
}

func TestEqualFileIsAdopted(t *testing.T) {
	s := newScene(t, map[string]string{file: "one"})
	c := s.sync(plantest.Pairs(file, "one"))
	assert.Equal(t, map[string]plan.Op{file: plan.Adopt}, done(c))
	assert.False(t, c.Writes())
	assert.Contains(t, s.manifest.Records, file)
}

func TestEquivalentJSONIsAdopted(t *testing.T) {
	const path = "projects/p/view.json"
	s := newScene(t, map[string]string{path: `{"b":1.50,"a":"\u003d"}`})
	c := s.sync(plantest.Pairs(path, `{ "a": "=", "b": 1.50 }`))
	assert.Equal(t, map[string]plan.Op{path: plan.Adopt}, done(c))
	rec := s.manifest.Records[path]
	assert.Equal(t, plantest.BlobID([]byte(`{"b":1.50,"a":"\u003d"}`)), rec.Have)
	assert.NotEqual(t, rec.Want, rec.Have)
	assert.Empty(t, s.sync(plantest.Pairs(path, `{ "a": "=", "b": 1.50 }`), full).List, "the second sync changes nothing")
}

func TestDifferentJSONGoesToLostAndFound(t *testing.T) {
	const path = "projects/p/view.json"
	s := newScene(t, map[string]string{path: `{"b":1.5}`})
	c := s.sync(plantest.Pairs(path, `{"b":1.50}`))
	assert.True(t, change(t, c, path).Conflict)
	assert.Equal(t, map[string]string{path: `{"b":1.5}`}, s.lost)
	s.has(path, `{"b":1.50}`)
}

func TestFileChangedInGit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
		c := s.sync(plantest.Pairs(file, "two", "projects/p/b", "b"), mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Update}, done(c))
		assert.False(t, change(t, c, file).Conflict)
		assert.Empty(t, s.lost)
		assert.Zero(t, s.disk.Hashed, "stat agrees with the manifest, so nothing is read")
		s.has(file, "two")
	})
}

// For the gateway, line endings make no difference in a resource.json, but its signature covers the bytes of data files.
func TestLineEnds(t *testing.T) {
	const meta, view, script = "projects/p/v/resource.json", "projects/p/v/view.json", "projects/p/s/code.py"
	unix := []string{meta, "{\n  \"scope\": \"G\",\n  \"files\": [\"view.json\"]\n}", view, "{\n}", script, "a\nb\n"}
	for name, c := range map[string]struct {
		path, content string
		want          map[string]plan.Op
	}{
		"resource.json alone": {meta, "{\r\n  \"scope\": \"G\",\r\n  \"files\": [\"view.json\"]\r\n}", map[string]plan.Op{meta: plan.Adopt}},
		"view.json":           {view, "{\r\n}", map[string]plan.Op{view: plan.Update}},
		"a script":            {script, "a\r\nb\r\n", map[string]plan.Op{script: plan.Update}},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.sync(plantest.Pairs(unix...))
				dos := slices.Clone(unix)
				dos[slices.Index(dos, c.path)+1] = c.content
				assert.Equal(t, c.want, done(s.sync(plantest.Pairs(dos...), mode)))
			})
		})
	}
}

func TestModeChangedInGit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(plantest.Pairs(file, "one"))
		c := s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}}, mode)
		x := change(t, c, file)
		assert.Equal(t, plan.Update, x.Op)
		assert.Equal(t, x.ID, x.FoundID)
		assert.Contains(t, c.String(), "~ "+file+" (mode)")
	})
}

func TestFileChangedOnGatewayIsDrift(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(plantest.Pairs(file, "one"))
		s.disk.Write(file, "gateway's")
		c := s.sync(plantest.Pairs(file, "one", "projects/p/new", "n"), mode)
		assert.Equal(t, map[string]plan.Op{"projects/p/new": plan.Create}, done(c))
		s.has(file, "gateway's")
		if c.Full {
			assert.Equal(t, 1, c.Drifted)
		}
	})
}

// F15: a full plan finds every kind of drift, and repairs it on request.
func TestRepairReplacesDrift(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*plantest.Disk)
		lost map[string]string
		op   plan.Op
	}{
		"an edit":     {func(d *plantest.Disk) { d.Write(file, "gateway's") }, map[string]string{file: "gateway's"}, plan.Update},
		"a deletion":  {func(d *plantest.Disk) { d.Remove(file) }, map[string]string{}, plan.Create},
		"a chmod":     {func(d *plantest.Disk) { d.Chmod(file, true) }, map[string]string{}, plan.Update},
		"a link":      {func(d *plantest.Disk) { d.Put(file, plan.Link) }, map[string]string{}, plan.Update},
		"a directory": {func(d *plantest.Disk) { d.Put(file, plan.Dir) }, map[string]string{}, plan.Create},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, nil)
			s.sync(plantest.Pairs(file, "one"))
			c.edit(s.disk)
			report := s.sync(plantest.Pairs(file, "one"), full)
			assert.Empty(t, report.List)
			assert.Equal(t, 1, report.Drifted)
			repaired := s.sync(plantest.Pairs(file, "one"), repair)
			assert.Equal(t, map[string]plan.Op{file: c.op}, done(repaired))
			assert.Equal(t, c.lost, s.lost)
			s.has(file, "one")
			st, err := s.disk.Stat(file)
			require.NoError(t, err)
			assert.False(t, st.Exec)
		})
	}
}

func TestVerifyHashesForgedStat(t *testing.T) {
	s := newScene(t, nil)
	s.sync(plantest.Pairs(file, "one"))
	s.disk.Forge(file, "uno")
	assert.Zero(t, s.sync(plantest.Pairs(file, "one"), full).Drifted, "stat does not show the change")
	assert.Equal(t, 1, s.sync(plantest.Pairs(file, "one"), verify).Drifted)
}

func TestTouchedFileIsHashedOnce(t *testing.T) {
	s := newScene(t, nil)
	s.sync(plantest.Pairs(file, "one"))
	s.disk.Touch(file)
	assert.Equal(t, map[string]plan.Op{file: plan.Adopt}, done(s.sync(plantest.Pairs(file, "one"), full)), "its record is updated")
	hashed := s.disk.Hashed
	assert.Empty(t, s.sync(plantest.Pairs(file, "one"), full).List)
	assert.Equal(t, hashed, s.disk.Hashed)
}

func TestConflictGitWins(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(plantest.Pairs(file, "one"))
		s.disk.Write(file, "gateway's")
		c := s.sync(plantest.Pairs(file, "two"), mode)
		assert.Equal(t, 1, c.Counts().Conflicts)
		assert.Contains(t, c.String(), "! "+file)
		assert.Equal(t, map[string]string{file: "gateway's"}, s.lost)
		s.has(file, "two")
	})
}

func TestConflictHold(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
		s.disk.Write(file, "gateway's")
		c, err := s.plan(plantest.Pairs(file, "two", "projects/p/b", "bb"), mode)
		require.NoError(t, err)
		require.NotNil(t, c.Held)
		assert.Equal(t, v1alpha1.ReasonConflictDetected, c.Held.Reason)
		assert.Equal(t, []string{file}, c.Held.Paths)
		assert.Contains(t, c.Held.Message, file)
		assert.Equal(t, map[string]plan.Op{file: plan.Update, "projects/p/b": plan.Update}, done(c), "a held plan has its changes")
	})
}

func TestConflictGatewayWins(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.GatewayWins
		s.sync(plantest.Pairs(file, "one"))
		s.disk.Write(file, "gateway's")
		c := s.sync(plantest.Pairs(file, "two"), mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Keep}, done(c))
		assert.Equal(t, 1, c.Total, "the file stays owned")
		s.has(file, "gateway's")
		assert.Empty(t, s.sync(plantest.Pairs(file, "two"), full).List, "the conflict is reported once")
	})
}

// policyNames names sub-tests by their policy.
var policyNames = map[plan.ConflictPolicy]string{plan.GitWins: "gitWins", plan.GatewayWins: "gatewayWins"}

func TestUnownedFileConflictPolicy(t *testing.T) {
	for policy, want := range map[plan.ConflictPolicy]plan.Op{plan.GitWins: plan.Update, plan.GatewayWins: plan.Keep} {
		t.Run(policyNames[policy], func(t *testing.T) {
			s := newScene(t, map[string]string{file: "gateway's"})
			s.rules.Conflict = policy
			c := s.sync(plantest.Pairs(file, "one"))
			assert.Equal(t, want, change(t, c, file).Op)
			assert.Equal(t, want == plan.Update, change(t, c, file).Conflict)
		})
	}
	s := newScene(t, map[string]string{file: "gateway's"})
	s.rules.Conflict = plan.Hold
	c, err := s.plan(plantest.Pairs(file, "one"))
	require.NoError(t, err)
	require.NotNil(t, c.Held)
	assert.Equal(t, v1alpha1.ReasonConflictDetected, c.Held.Reason)
}

func TestGatewayEditAdoptedByGit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(plantest.Pairs(file, "one", "projects/p/view.json", `{"a":1}`))
		s.disk.Write(file, "better")
		s.disk.Write("projects/p/view.json", `{"a":2}`)
		c := s.sync(plantest.Pairs(file, "better", "projects/p/view.json", `{ "a": 2 }`), mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Adopt, "projects/p/view.json": plan.Adopt}, done(c))
	})
}

func TestDeletedOnGatewayChangedInGit(t *testing.T) {
	for policy, want := range map[plan.ConflictPolicy]plan.Op{plan.GitWins: plan.Create, plan.GatewayWins: plan.Keep} {
		t.Run(policyNames[policy], func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict = policy
				s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
				s.disk.Remove(file)
				c := s.sync(plantest.Pairs(file, "two", "projects/p/b", "b"), mode)
				assert.Equal(t, map[string]plan.Op{file: want}, done(c))
				assert.False(t, change(t, c, file).Conflict, "no file to save")
			})
		})
	}
}

func TestFileRemovedFromGit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, map[string]string{"projects/p/own": "x"})
		s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
		c := s.sync(plantest.Pairs("projects/p/b", "b"), mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Delete}, done(c))
		assert.Equal(t, 1, c.Total)
		s.hasNot(file)
		s.has("projects/p/own", "x")
	})
}

func TestRemovedFromGitChangedOnGateway(t *testing.T) {
	for policy, want := range map[plan.ConflictPolicy]plan.Op{plan.GitWins: plan.Delete, plan.GatewayWins: plan.Release} {
		t.Run(policyNames[policy], func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict = policy
				s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
				s.disk.Write(file, "gateway's")
				c := s.sync(plantest.Pairs("projects/p/b", "b"), mode)
				assert.Equal(t, map[string]plan.Op{file: want}, done(c))
				assert.Equal(t, want == plan.Delete, s.lost[file] == "gateway's")
			})
		})
	}
	s := newScene(t, nil)
	s.rules.Conflict = plan.Hold
	s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
	s.disk.Write(file, "gateway's")
	c, err := s.plan(plantest.Pairs("projects/p/b", "b"))
	require.NoError(t, err)
	require.NotNil(t, c.Held)
	assert.Equal(t, []string{file}, c.Held.Paths)
}

func TestRemovedFromGitAndGateway(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		for name, kind := range map[string]plan.Kind{"no file": plan.Missing, "a link": plan.Link, "a directory": plan.Dir} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, nil)
				s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
				if s.disk.Remove(file); kind != plan.Missing {
					s.disk.Put(file, kind)
				}
				c := s.sync(plantest.Pairs("projects/p/b", "b"), mode)
				assert.Equal(t, map[string]plan.Op{file: plan.Release}, done(c))
				st, err := s.disk.Stat(file)
				require.NoError(t, err)
				assert.Equal(t, kind, st.Kind, "the agent does not own what is at the path now")
			})
		}
	})
}

func TestNewlyExcludedFileIsReleased(t *testing.T) {
	s := newScene(t, nil)
	s.sync(plantest.Pairs(file, "one", "projects/p/b", "b", "projects/q/x", "x"))
	s.rules.Excludes = plantest.Excludes(t, "**/*.txt", "projects/q/")
	c := s.sync(plantest.Pairs(file, "one", "projects/p/b", "b", "projects/q/x", "x"))
	assert.Equal(t, map[string]plan.Op{file: plan.Release, "projects/q/x": plan.Release}, done(c))
	assert.Contains(t, c.String(), "= "+file+" (released: the file stays)")
	assert.True(t, c.Full, "changed rules need a full plan")
	s.has(file, "one")
}

func TestUnmappedFileIsReleased(t *testing.T) {
	s := newScene(t, nil)
	s.sync(plantest.Pairs("projects/p/a", "a", "projects/p/b", "b", "config/c", "c"))
	s.rules.Mappings = s.rules.Mappings[:1]
	c := s.sync(plantest.Pairs("projects/p/a", "a"))
	assert.Equal(t, map[string]plan.Op{"config/c": plan.Release, "projects/p/b": plan.Delete}, done(c))
	s.has("config/c", "c")
	assert.Equal(t, 1, c.Total)
}

func TestPruneNone(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Prune = plan.PruneNone
		s.sync(plantest.Pairs(file, "one", "projects/p/b", "b"))
		c := s.sync(plantest.Pairs("projects/p/b", "b"), mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Release}, done(c))
		s.has(file, "one")
	})
}

func TestPruneMirrorDeletesForeignFiles(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, map[string]string{"projects/.resources/ab": "blob", "projects/p/keep.bak": "k", "db/config.idb": "d", "other": "o"})
		s.rules.Prune = plan.PruneMirror
		s.rules.Excludes = plantest.Excludes(t, "**/*.bak")
		s.sync(plantest.Pairs(file, "one", "config/c", "c"))
		s.disk.Write("projects/p/foreign", "f")
		s.disk.Put("projects/p/link", plan.Link)
		c := s.sync(plantest.Pairs(file, "one", "config/c", "c"), mode)
		assert.Equal(t, map[string]plan.Op{"projects/p/foreign": plan.Delete}, done(c))
		assert.Equal(t, map[string]string{"projects/p/foreign": "f"}, s.lost)
		assert.Equal(t, 2, c.Total)
		for path, content := range map[string]string{"projects/.resources/ab": "blob", "projects/p/keep.bak": "k", "db/config.idb": "d", "other": "o"} {
			s.has(path, content)
		}
	})
}

func TestPruneMirrorWithMissingSource(t *testing.T) {
	s := newScene(t, map[string]string{"config/resources/core/x": "x"})
	s.rules.Prune = plan.PruneMirror
	c := s.sync(plantest.Pairs(file, "one"))
	assert.Equal(t, map[string]plan.Op{file: plan.Create}, done(c))
}

func TestForeignFileIsNeverTouched(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		own := map[string]string{"projects/p/own": "x", "projects/other/project.json": "{}", "redundancy.xml": "r"}
		s := newScene(t, own)
		s.sync(plantest.Pairs(file, "one"), mode)
		s.sync(plantest.Pairs(file, "two", "projects/p/c", "c"), mode)
		s.sync(plantest.Pairs("projects/p/c", "c"), mode)
		for path, content := range own {
			s.has(path, content)
		}
	})
}

func TestNeverTouchIsNotRead(t *testing.T) {
	s := newScene(t, map[string]string{"config/local/x": "gateway's"})
	s.rules.Mappings = plantest.Mappings(t, ".", ".", "secrets", "config/resources/local")
	c := s.sync(plantest.Pairs("config/local/x", "git's", "projects/.resources/ab", "x", "db/x", "x", "redundancy.xml", "r", file, "one",
		"config/ignition/keys/root.json", "{}", "secrets/x", "x", "projects/p/.GIT/config", "x", ".stoker/manifest", "x"))
	assert.Equal(t, map[string]plan.Op{file: plan.Create, "secrets/x": plan.Create}, done(c))
	s.has("config/local/x", "gateway's")
	assert.Equal(t, []string{"mappings[1]: config/resources/local belongs to the gateway; the agent writes nothing there"}, c.Warnings)
}
