package plan_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
)

// caseless is a volume that ignores case, as SMB does.
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

func TestANameThatIsOnlySpelledOtherwiseIsNotDeletedWhereCaseIsIgnored(t *testing.T) {
	for _, policy := range []plan.ConflictPolicy{plan.GitWins, plan.GatewayWins} {
		for content, want := range map[string]plan.Op{"1": plan.Adopt, "2": plan.Update} {
			bothWays(t, func(t *testing.T, mode func(*plan.Input)) {
				s := newScene(t, nil)
				s.rules.Conflict = policy
				s.sync(text("projects/p/project.json", "{}", upper, "1"))
				c, err := s.plan(text("projects/p/project.json", "{}", lower, content), mode, func(in *plan.Input) { in.State = caseless{s.disk} })
				require.NoError(t, err)
				assert.Nil(t, c.Held)
				assert.Equal(t, map[string]plan.Op{upper: plan.Release, lower: want}, done(c))
				assert.Equal(t, 2, c.Total)

				c = s.sync(text("projects/p/project.json", "{}", lower, content), mode)
				assert.Equal(t, map[string]plan.Op{upper: plan.Delete, lower: plan.Create}, done(c), "where case counts")
			})
		}
	}
}

func TestMirrorKnowsAFileOfGitByAnotherSpellingWhereCaseIsIgnored(t *testing.T) {
	s := newScene(t, map[string]string{"projects/p/project.json": "{}", upper: "1", "projects/p/views/Mine/view.json": "1"})
	s.rules.Prune = plan.PruneMirror
	ignored := func(in *plan.Input) { in.State = caseless{s.disk} }
	files := text("projects/p/project.json", "{}", lower, "1", "config/x", "1")
	c := s.sync(files, ignored)
	assert.NotContains(t, done(c), upper)
	assert.Equal(t, plan.Adopt, done(c)[lower])
	assert.Equal(t, plan.Delete, done(c)["projects/p/views/Mine/view.json"])
	for _, mode := range []func(*plan.Input){nothing, full} {
		assert.NotContains(t, done(s.sync(files, ignored, mode)), upper, "nor later")
	}
}
