package planner_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
)

// caseless is a volume that ignores case, such as SMB.
type caseless struct{ *plantest.Disk }

func (d caseless) real(path string) string {
	for p := range d.Files() {
		if strings.EqualFold(p, path) {
			return p
		}
	}
	return path
}

func (d caseless) Stat(path string) (plan.Stat, error) { return d.Disk.Stat(d.real(path)) }

func (d caseless) BlobID(path string) (plan.ID, error) { return d.Disk.BlobID(d.real(path)) }

func (d caseless) Read(path string, limit int64) ([]byte, error) {
	return d.Disk.Read(d.real(path), limit)
}

const (
	upper = "projects/p/views/Main/view.json"
	lower = "projects/p/views/main/view.json"
)

func TestCaseRename(t *testing.T) {
	for _, policy := range []plan.ConflictPolicy{plan.GitWins, plan.GatewayWins} {
		for content, want := range map[string]plan.Op{"1": plan.Adopt, "2": plan.Update} {
			t.Run(policyNames[policy]+", content "+content, func(t *testing.T) {
				bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
					s := newScene(t, nil)
					s.rules.Conflict = policy
					s.sync(plantest.Pairs("projects/p/project.json", "{}", upper, "1"))
					c, err := s.plan(plantest.Pairs("projects/p/project.json", "{}", lower, content), mode, func(in *planner.Input) { in.State = caseless{s.disk} })
					require.NoError(t, err)
					assert.Nil(t, c.Held)
					assert.Equal(t, map[string]plan.Op{upper: plan.Release, lower: want}, done(c))
					assert.Equal(t, 2, c.Total)

					c = s.sync(plantest.Pairs("projects/p/project.json", "{}", lower, content), mode)
					assert.Equal(t, map[string]plan.Op{upper: plan.Delete, lower: plan.Create}, done(c), "on a volume that keeps case")
				})
			})
		}
	}
}

// A file that differs only in the case of its name is not a conflict unless the gateway changed it. With policy hold, a false
// conflict would stop all syncs.
func TestCaseRenameOfEditedFile(t *testing.T) {
	for name, c := range map[string]struct {
		there, git string // content at the old name on the gateway and in git; git had 1
		want       plan.Op
		held       []string
	}{
		"unchanged on the gateway, changed in git": {"1", "2", plan.Update, nil},
		"changed on the gateway and in git":        {"by hand", "2", plan.Update, []string{lower}},
		"changed on the gateway, not in git":       {"by hand", "1", plan.Update, []string{lower}},
		"changed on the gateway as in git":         {"2", "2", plan.Adopt, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict = plan.Hold
				s.sync(plantest.Pairs("projects/p/project.json", "{}", upper, "1"))
				if c.there != "1" {
					s.disk.Write(upper, c.there)
				}
				got, err := s.plan(plantest.Pairs("projects/p/project.json", "{}", lower, c.git), mode, func(in *planner.Input) { in.State = caseless{s.disk} })
				require.NoError(t, err)
				assert.Equal(t, map[string]plan.Op{upper: plan.Release, lower: c.want}, done(got))
				if c.held == nil {
					assert.Nil(t, got.Held)
					return
				}
				require.NotNil(t, got.Held)
				assert.Equal(t, v1alpha1.ReasonConflictDetected, got.Held.Reason)
				assert.Contains(t, got.Held.Message, "different versions of 1 file")
				assert.Equal(t, c.held, got.Held.Paths)
			})
		})
	}
}

func TestCaseRenameUnderMirror(t *testing.T) {
	s := newScene(t, map[string]string{"projects/p/project.json": "{}", upper: "1", "projects/p/views/Mine/view.json": "1"})
	s.rules.Prune = plan.PruneMirror
	ignored := func(in *planner.Input) { in.State = caseless{s.disk} }
	files := plantest.Pairs("projects/p/project.json", "{}", lower, "1", "config/x", "1")
	c := s.sync(files, ignored)
	assert.NotContains(t, done(c), upper)
	assert.Equal(t, plan.Adopt, done(c)[lower])
	assert.Equal(t, plan.Delete, done(c)["projects/p/views/Mine/view.json"])
	for _, mode := range []func(*planner.Input){nothing, full} {
		assert.NotContains(t, done(s.sync(files, ignored, mode)), upper, "the next plan does not delete the file either")
	}
}
