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
	"stoker.io/stoker/internal/failure"
)

const file, other = "projects/p/a.txt", "projects/p/b"

type (
	ops  = map[string]plan.Op
	text = map[string]string
)

var git = plantest.Pairs

// row is a row of the table "What happens to a file". A gateway gets the commits one and two; nil stands for no commit.
type row struct {
	conflict plan.ConflictPolicy
	prune    plan.Prune
	excludes []string
	there    text // files of the gateway before the first commit
	one      plantest.Files
	then     func(*scene) // what happens before commit two
	two      plantest.Files
	fullOnly bool // an incremental plan does not compare the files in question

	want    ops // operations on files
	lost    text
	after   text     // contents of files; a file of there without an operation must stay as it is
	drifted int      // number of drifted files, which a full plan reports
	held    []string // paths of a held plan
	refused v1alpha1.Reason
	says    string // part of the error of a refused plan
	also    func(t *testing.T, s *scene, c *plan.Changes)
}

// run checks commit two with an incremental and with a full plan. The next full plan must have no operation but Keep.
func (r row) run(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, r.there)
		s.rules.Conflict, s.rules.Prune, s.rules.Excludes = r.conflict, r.prune, plantest.Excludes(t, r.excludes...)
		if r.one != nil {
			s.sync(r.one)
		}
		if r.then != nil {
			r.then(s)
		}
		if r.fullOnly {
			mode = full
		}
		c, err := s.plan(r.two, mode)
		switch {
		case r.refused != "":
			assert.Equal(t, r.refused, failure.Reason(err, ""))
			assert.ErrorContains(t, err, r.says)
			return
		case r.held != nil:
			require.NoError(t, err)
			require.NotNil(t, c.Held)
			assert.Equal(t, v1alpha1.ReasonConflictDetected, c.Held.Reason)
			assert.Equal(t, r.held, c.Held.Paths)
			assert.Contains(t, c.Held.Message, r.held[0])
			assert.Equal(t, r.want, done(c), "a held plan has its changes")
			return
		}
		require.NoError(t, err)
		c = s.sync(r.two, mode)
		assert.Equal(t, r.want, done(c))
		if c.Full {
			assert.Equal(t, r.drifted, c.Drifted)
		}
		lost := r.lost
		if lost == nil {
			lost = text{}
		}
		assert.Equal(t, lost, s.lost)
		for path, content := range r.there {
			if _, changes := r.want[path]; !changes {
				s.has(path, content)
			}
		}
		for path, content := range r.after {
			s.has(path, content)
		}
		for path, op := range r.want {
			if op == plan.Delete {
				_, there := s.disk.Content(path)
				assert.False(t, there, path)
			}
		}
		if r.also != nil {
			r.also(t, s, c)
		}
		for _, x := range s.sync(r.two, full).List {
			assert.Equal(t, plan.Keep, x.Op, x.Path)
		}
	})
}

// writes returns a step in which the gateway writes files.
func writes(pairs ...string) func(*scene) {
	return func(s *scene) {
		for i := 0; i < len(pairs); i += 2 {
			s.disk.Write(pairs[i], pairs[i+1])
		}
	}
}

func removes(path string) func(*scene) { return func(s *scene) { s.disk.Remove(path) } }

// puts returns a step that replaces what is at a path with something of another kind.
func puts(path string, kind plan.Kind) func(*scene) {
	return func(s *scene) { s.disk.Remove(path); s.disk.Put(path, kind) }
}

// stays returns a check that the disk has this kind at the path of file.
func stays(kind plan.Kind) func(*testing.T, *scene, *plan.Changes) {
	return func(t *testing.T, s *scene, _ *plan.Changes) {
		st, err := s.disk.Stat(file)
		require.NoError(t, err)
		assert.Equal(t, kind, st.Kind)
	}
}

func TestWhatHappensToFile(t *testing.T) {
	const json, x = "projects/p/view.json", "projects/p/x"
	own := text{"projects/p/own": "x", "projects/other/project.json": "{}", "redundancy.xml": "r"}
	executable := plantest.Files{file: {Content: "one", Mode: plan.Executable}}
	for name, r := range map[string]row{
		"missing": {two: executable, want: ops{file: plan.Create}, after: text{file: "one"}, also: func(t *testing.T, _ *scene, c *plan.Changes) {
			assert.True(t, change(t, c, file).Exec)
		}},
		"equal": {there: text{file: "one"}, two: git(file, "one"), want: ops{file: plan.Adopt}, also: func(t *testing.T, s *scene, c *plan.Changes) {
			assert.False(t, c.Writes())
			assert.Contains(t, s.manifest.Records, file)
		}},
		"equivalent JSON": {
			there: text{json: `{"b":1.50,"a":"\u003d"}`}, two: git(json, `{ "a": "=", "b": 1.50 }`), want: ops{json: plan.Adopt},
			also: func(t *testing.T, s *scene, _ *plan.Changes) {
				rec := s.manifest.Records[json]
				assert.Equal(t, plantest.BlobID([]byte(`{"b":1.50,"a":"\u003d"}`)), rec.Have)
				assert.NotEqual(t, rec.Want, rec.Have)
			},
		},
		"different JSON":                   {there: text{json: `{"b":1.5}`}, two: git(json, `{"b":1.50}`), want: ops{json: plan.Update}, lost: text{json: `{"b":1.5}`}, after: text{json: `{"b":1.50}`}},
		"different":                        {there: text{file: "own"}, two: git(file, "one"), want: ops{file: plan.Update}, lost: text{file: "own"}, after: text{file: "one"}},
		"different, hold":                  {conflict: plan.Hold, there: text{file: "own"}, two: git(file, "one"), want: ops{file: plan.Update}, held: []string{file}},
		"different, gatewayWins":           {conflict: plan.GatewayWins, there: text{file: "own"}, two: git(file, "one"), want: ops{file: plan.Keep}, after: text{file: "own"}},
		"a link":                           {then: puts(file, plan.Link), two: git(file, "one"), want: ops{file: plan.Update}, after: text{file: "one"}, also: assertLink},
		"a special file, gatewayWins":      {conflict: plan.GatewayWins, then: puts(file, plan.Other), two: git(file, "one"), want: ops{file: plan.Keep}},
		"an empty directory":               {then: puts(x+"/y", plan.Dir), two: git(x, "file"), want: ops{x: plan.Create}, after: text{x: "file"}},
		"a resource.json that is not JSON": {there: text{meta: `{"version":1,`}, two: git(meta, signed), want: ops{meta: plan.Update}, lost: text{meta: `{"version":1,`}},

		"changed in git": {
			there: own, one: git(file, "one", other, "b"), two: git(file, "two", other, "b"), want: ops{file: plan.Update}, after: text{file: "two"},
			also: func(t *testing.T, s *scene, _ *plan.Changes) {
				assert.Zero(t, s.disk.Hashed, "stat agrees with the manifest, so nothing is read")
			},
		},
		"mode changed in git": {one: git(file, "one"), two: executable, want: ops{file: plan.Update}, also: func(t *testing.T, _ *scene, c *plan.Changes) {
			assert.Equal(t, change(t, c, file).ID, change(t, c, file).FoundID)
		}},
		"changed on the gateway": {
			one: git(file, "one"), then: writes(file, "own"), two: git(file, "one", "projects/p/new", "n"), want: ops{"projects/p/new": plan.Create},
			after: text{file: "own"}, drifted: 1,
		},
		"changed in both": {
			one: git(file, "one"), then: writes(file, "own"), two: git(file, "two"), want: ops{file: plan.Update}, lost: text{file: "own"}, after: text{file: "two"},
		},
		"changed in both, hold": {
			conflict: plan.Hold, one: git(file, "one", other, "b"), then: writes(file, "own"), two: git(file, "two", other, "bb"),
			want: ops{file: plan.Update, other: plan.Update}, held: []string{file},
		},
		"changed in both, gatewayWins": {
			conflict: plan.GatewayWins, one: git(file, "one"), then: writes(file, "own"), two: git(file, "two"), want: ops{file: plan.Keep}, after: text{file: "own"},
			also: func(t *testing.T, s *scene, _ *plan.Changes) {
				assert.Empty(t, s.sync(git(file, "two"), full).List, "the conflict is reported once")
			},
		},
		"changed in both alike": {
			conflict: plan.Hold, one: git(file, "one", json, `{"a":1}`), then: writes(file, "better", json, `{"a":2}`),
			two: git(file, "better", json, `{ "a": 2 }`), want: ops{file: plan.Adopt, json: plan.Adopt},
		},
		"deleted on the gateway, changed in git": {
			one: git(file, "one", other, "b"), then: removes(file), two: git(file, "two", other, "b"), want: ops{file: plan.Create},
		},
		"deleted on the gateway, changed in git, gatewayWins": {
			conflict: plan.GatewayWins, one: git(file, "one", other, "b"), then: removes(file), two: git(file, "two", other, "b"), want: ops{file: plan.Keep},
		},

		"deleted in git": {there: own, one: git(file, "one", other, "b"), two: git(other, "b"), want: ops{file: plan.Delete}},
		"deleted in git, prune none": {
			prune: plan.PruneNone, one: git(file, "one", other, "b"), two: git(other, "b"), want: ops{file: plan.Release}, after: text{file: "one"},
		},
		"deleted in git, changed on the gateway": {
			one: git(file, "one", other, "b"), then: writes(file, "own"), two: git(other, "b"), want: ops{file: plan.Delete}, lost: text{file: "own"},
		},
		"deleted in git, changed on the gateway, hold": {
			conflict: plan.Hold, one: git(file, "one", other, "b"), then: writes(file, "own"), two: git(other, "b"), want: ops{file: plan.Delete}, held: []string{file},
		},
		"deleted in git, changed on the gateway, gatewayWins": {
			conflict: plan.GatewayWins, one: git(file, "one", other, "b"), then: writes(file, "own"), two: git(other, "b"), want: ops{file: plan.Release}, after: text{file: "own"},
		},
		"deleted in both":                 {one: git(file, "one", other, "b"), then: removes(file), two: git(other, "b"), want: ops{file: plan.Release}, also: stays(plan.Missing)},
		"deleted in git, now a link":      {one: git(file, "one", other, "b"), then: puts(file, plan.Link), two: git(other, "b"), want: ops{file: plan.Release}, also: stays(plan.Link)},
		"deleted in git, now a directory": {one: git(file, "one", other, "b"), then: puts(file, plan.Dir), two: git(other, "b"), want: ops{file: plan.Release}, also: stays(plan.Dir)},
		"excluded": {
			one: git(file, "one", other, "b", "projects/q/x", "x"), two: git(file, "one", other, "b", "projects/q/x", "x"),
			then: func(s *scene) { s.rules.Excludes = plantest.Excludes(t, "**/*.txt", "projects/q/") },
			want: ops{file: plan.Release, "projects/q/x": plan.Release}, after: text{file: "one", "projects/q/x": "x"},
			also: func(t *testing.T, _ *scene, c *plan.Changes) {
				assert.True(t, c.Full, "changed rules need a full plan")
			},
		},
		"not mapped any more": {
			one: git(file, "one", other, "b", "config/c", "c"), two: git(file, "one"), then: func(s *scene) { s.rules.Mappings = s.rules.Mappings[:1] },
			want: ops{"config/c": plan.Release, other: plan.Delete}, after: text{"config/c": "c"},
		},
		"foreign, prune mirror": {
			prune: plan.PruneMirror, excludes: []string{"**/*.bak"}, there: text{"projects/.resources/ab": "blob", "projects/p/keep.bak": "k", "db/config.idb": "d", "other": "o"},
			one: git(file, "one", "config/c", "c"), two: git(file, "one", "config/c", "c"),
			then: func(s *scene) {
				s.disk.Write("projects/p/foreign", "f")
				s.disk.Put("projects/p/link", plan.Link)
			},
			want: ops{"projects/p/foreign": plan.Delete}, lost: text{"projects/p/foreign": "f"},
		},
		"foreign, prune mirror of a missing source": {
			prune: plan.PruneMirror, there: text{"config/resources/core/x": "x"}, two: git(file, "one"), want: ops{file: plan.Create},
		},

		"a file becomes a directory": {
			one: git(x, "file", x+"-y", "1"), two: git(x+"/a", "1", x+"/b/c", "2", x+"-y", "1"), after: text{x + "/b/c": "2"},
			want: ops{x: plan.Delete, x + "/a": plan.Create, x + "/b/c": plan.Create},
		},
		"a directory becomes a file": {
			one: git(x+"/a", "1", x+"/b/c", "2", x+"-y", "1"), two: git(x, "file", x+"-y", "1"), after: text{x: "file"},
			want: ops{x: plan.Create, x + "/a": plan.Delete, x + "/b/c": plan.Delete},
		},
		"a foreign file in the place of a directory": {
			there: text{"projects/q": "own"}, one: git(file, "1"), two: git(file, "1", "projects/q/views/v", "1"),
			refused: v1alpha1.ReasonPathCollision, says: "projects/q on the gateway is in the place",
		},
		"a released file in the place of a directory": {
			conflict: plan.GatewayWins, one: git(x, "1"), then: writes(x, "own"), two: git(x+"/a", "1"), refused: v1alpha1.ReasonPathCollision, says: x,
		},
		"a foreign directory in the place of a file": {
			one: git(x+"/a", "1", other, "1"), then: writes(x+"/own", "own"), two: git(x, "file", other, "1"), refused: v1alpha1.ReasonPathCollision, says: x + "/own",
		},
		"a foreign directory in the place of a file, hold": {
			conflict: plan.Hold, one: git(x+"/a", "1", other, "1"), then: writes(x+"/own", "own"), two: git(x, "file", other, "1"),
			want: ops{x: plan.Create, x + "/a": plan.Delete}, held: []string{x},
		},
		"a foreign directory in the place of a file, gatewayWins": {
			conflict: plan.GatewayWins, one: git(x+"/a", "1", other, "1"), then: writes(x+"/own", "own"), two: git(x, "file", other, "1"),
			want: ops{x: plan.Keep, x + "/a": plan.Delete}, after: text{x + "/own": "own"},
		},
		"a released directory in the place of a file": {
			prune: plan.PruneNone, one: git(x+"/a", "1", other, "1"), two: git(x, "file", other, "1"),
			refused: v1alpha1.ReasonPathCollision, says: "files that this sync does not delete, such as " + x + "/a",
		},
		// F2 of docs/internals/threats.md: the plan never follows a link above a desired path.
		"a link above": {
			one: git(file, "1"), then: puts("projects/q", plan.Link), two: git(file, "1", "projects/q/views/v", "1"),
			refused: v1alpha1.ReasonUnsafePath, says: "projects/q is a symbolic link",
		},
	} {
		t.Run(name, r.run)
	}
}

// assertLink checks that the plan replaces a link, and writes nothing through it (F2).
func assertLink(t *testing.T, _ *scene, c *plan.Changes) {
	x := change(t, c, file)
	assert.True(t, x.Conflict)
	assert.Equal(t, plan.Link, x.Found.Kind)
	assert.True(t, x.FoundID.IsZero())
}

// policyNames names sub-tests by their policy.
var policyNames = map[plan.ConflictPolicy]string{plan.GitWins: "gitWins", plan.GatewayWins: "gatewayWins"}

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

// A file that differs from git's only in noise is adopted with the mode of git.
func TestModeOfAdoptedFile(t *testing.T) {
	const path, written = "projects/p/x.json", `{"b":1.50,"a":"\u003d"}`
	files := func(mode plan.Mode) plantest.Files {
		return plantest.Files{path: {Content: `{"a": "=", "b": 1.50}`, Mode: mode}}
	}
	sameMode := func(t *testing.T, s *scene) {
		t.Helper()
		st, err := s.disk.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, s.manifest.Records[path].Exec, st.Exec)
	}
	t.Run("not owned", func(t *testing.T) {
		s := newScene(t, text{path: written})
		s.sync(files(plan.Executable))
		sameMode(t, s)
		assert.Equal(t, text{path: written}, s.lost, "git has other bytes")
	})
	t.Run("rewritten by the gateway", func(t *testing.T) {
		bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
			s := newScene(t, nil)
			s.sync(files(plan.Regular))
			s.disk.Write(path, written)
			s.sync(files(plan.Executable), mode)
			sameMode(t, s)
		})
	})
	for name, edit := range map[string]func(*plantest.Disk){
		"a chmod":             func(d *plantest.Disk) { d.Chmod(path, true) },
		"a chmod and a write": func(d *plantest.Disk) { d.Write(path, written+" "); d.Chmod(path, true) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, text{path: written})
			assert.Equal(t, ops{path: plan.Adopt}, done(s.sync(files(plan.Regular))))
			edit(s.disk)
			report := s.sync(files(plan.Regular), full)
			assert.Empty(t, report.List)
			assert.Equal(t, 1, report.Drifted)
			assert.Equal(t, ops{path: plan.Update}, done(s.sync(files(plan.Regular), repair)))
			sameMode(t, s)
			assert.Empty(t, s.lost)
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

func TestNeverTouchIsNotSynced(t *testing.T) {
	s := newScene(t, map[string]string{"config/local/x": "gateway's"})
	s.rules.Mappings = plantest.Mappings(t, ".", ".", "secrets", "config/resources/local")
	c := s.sync(plantest.Pairs("config/local/x", "git's", "projects/.resources/ab", "x", "db/x", "x", "redundancy.xml", "r", file, "one",
		"config/ignition/keys/root.json", "{}", "secrets/x", "x", "projects/p/.GIT/config", "x", ".stoker/manifest", "x"))
	assert.Equal(t, map[string]plan.Op{file: plan.Create, "secrets/x": plan.Create}, done(c))
	s.has("config/local/x", "gateway's")
	assert.Equal(t, []string{"mappings[1]: config/resources/local belongs to the gateway; the agent writes nothing there"}, c.Warnings)
}
