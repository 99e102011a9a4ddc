package planner_test

import (
	"fmt"
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

// F11: a commit with few objects can have more paths than the agent can visit. Every walk of a plan stops at the limits.
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

// sparse is a disk on which every file of a folder has 511 MiB, most of them holes.
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
			assert.LessOrEqual(t, disk.hashed, 34, "16 GiB")
		})
	}
}
