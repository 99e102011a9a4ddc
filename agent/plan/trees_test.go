package plan_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
)

// Real repositories: a gateway that has all their files already, signed anew, is taken over without a write.
func TestARealTreeIsAdoptedWithoutAWrite(t *testing.T) {
	trees := os.Getenv("STOKER_TREES")
	if trees == "" {
		t.Skip("STOKER_TREES is not set: it names a folder with checked-out Ignition repositories")
	}
	files, there := make(plantest.Files), make(map[string]string)
	err := filepath.WalkDir(trees, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at, err := filepath.Rel(trees, path)
		at = filepath.ToSlash(at)
		files[at] = plantest.File{Content: string(content)}
		switch {
		case e.Name() == "resource.json":
			content = []byte(strings.Replace(string(content), `"actor": "`, `"actor": "external `, 1))
		case e.Name() == "thumbnail.png":
			content = append(content, 0)
		}
		there["projects/"+at] = string(content)
		return err
	})
	require.NoError(t, err)
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
