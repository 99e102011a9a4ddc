package planner_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
)

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
