package plan_test

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/test/trees"
)

// If a gateway already has all files of a real repository, but with new signatures, the first sync adopts them without a write.
func TestARealTreeIsAdoptedWithoutAWrite(t *testing.T) {
	files, there := make(plantest.Files), make(map[string]string)
	for at, content := range trees.Files(t, trees.Root(t)) {
		files[at] = plantest.File{Content: content}
		switch path.Base(at) {
		case "resource.json":
			content = strings.Replace(content, `"actor": "`, `"actor": "external `, 1)
		case "thumbnail.png":
			content += "\x00"
		}
		there["projects/"+at] = content
	}
	s := newScene(t, there)
	s.rules = rules(t, plan.Rules{
		Mappings: mappings(t, ".", "projects"), Excludes: excludes(t, "**/.git/", "**/.gitkeep", "**/.resources/**"), Conflict: plan.Hold,
	})
	c := s.sync(files)
	assert.False(t, c.Writes(), "%s", c)
	assert.Greater(t, c.Counts().Adopted, 100)
	assert.Empty(t, s.sync(files, full).List)

	empty := newScene(t, nil)
	empty.rules = s.rules
	assert.Equal(t, c.Total, empty.sync(files).Counts().Added)
	assert.Empty(t, empty.sync(files, full).List)
	t.Logf("%d files", c.Total)
}
