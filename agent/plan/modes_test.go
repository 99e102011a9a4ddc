package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
)

// On a volume without modes, the plan ignores the executable bit of the files.
func TestModesAreNotComparedOnAVolumeWithoutThem(t *testing.T) {
	s := newScene(t, map[string]string{"projects/p/old": "old"})
	s.disk.NoModes = true
	s.disk.Chmod("projects/p/old", true)
	files := text(file, "one", "projects/p/old", "old")
	c := s.sync(files)
	assert.Equal(t, map[string]plan.Op{file: plan.Create, "projects/p/old": plan.Adopt}, done(c), "what was there is not written")
	s.disk.Chmod(file, true) // the mode that the volume reports
	for _, mode := range []func(*plan.Input){full, repair} {
		c = s.sync(files, mode)
		assert.Empty(t, c.List)
		assert.Zero(t, c.Drifted)
	}
}

func TestAModeThatGitChangedIsNotedOnAVolumeWithoutThem(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*plan.Input)) {
		s := newScene(t, nil)
		s.disk.NoModes = true
		s.sync(text(file, "one"))
		c := s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}}, mode)
		assert.Equal(t, map[string]plan.Op{file: plan.Adopt}, done(c))
		assert.True(t, s.manifest.Records[file].Exec)
		assert.Empty(t, s.sync(plantest.Files{file: {Content: "one", Mode: plan.Executable}}, full).List)
	})
}
