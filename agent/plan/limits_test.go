package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
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
func TestTreeBombEndsAtTheLimits(t *testing.T) {
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
			set  func(*plan.Input)
		}{{"incremental", nothing}, {"full", full}} {
			t.Run(name+"/"+mode.name, func(t *testing.T) {
				s := newScene(t, nil)
				r := c.rules
				if r.Mappings == nil {
					r.Mappings = mappings(t, "a", "projects")
				}
				r.Limits = plan.Limits{Files: 1000}
				s.rules = rules(t, r)
				s.sync(text("a/config.json", "{}", "b/y", "1"))

				b := s.objects.TreeOf([]plan.Entry{{Name: "x", Mode: plan.Regular, ID: s.objects.Blob([]byte("x"))}})
				root := s.objects.TreeOf([]plan.Entry{
					{Name: "a", Mode: plan.Directory, ID: bomb(s.objects, levels, c.last(s.objects))},
					{Name: "b", Mode: plan.Directory, ID: b},
				})
				d, err := plan.Desire(s.objects, root, s.rules)
				require.NoError(t, err)
				in := s.input(nil)
				in.Desired, in.To = d, root
				mode.set(&in)
				s.objects.Reads = 0
				_, err = plan.Compute(in)
				assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""))
				require.ErrorContains(t, err, c.says)
				assert.Less(t, s.objects.Reads, 100_000, "trees that were read")
			})
		}
	}
}

// F11: if lowered limits exclude the previous commit, the next sync makes a full plan instead of failing.
func TestSyncedTreeBombIsNotWalked(t *testing.T) {
	s := newScene(t, nil)
	r := plan.Rules{Mappings: mappings(t, "a", "projects")}
	s.rules = rules(t, r)
	s.sync(text("a/x", "1"))
	before := s.objects.TreeOf([]plan.Entry{{Name: "a", Mode: plan.Directory, ID: bomb(s.objects, 10, plan.Entry{Mode: plan.Directory, ID: s.objects.TreeOf(nil)})}})
	r.Limits = plan.Limits{Files: 1000}
	s.rules = rules(t, r)
	var err error
	s.previous, err = plan.Desire(s.objects, before, s.rules)
	require.NoError(t, err)
	s.objects.Reads = 0
	c := s.sync(text("a/x", "2"))
	assert.True(t, c.Full)
	s.has("projects/x", "2")
	assert.Less(t, s.objects.Reads, 100_000, "trees that were read")
}
