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
	"stoker.io/stoker/internal/failure"
)

const (
	mountedFile = "config/resources/core/ignition/database-connection/erp/config.json"
	sibling     = "config/resources/core/ignition/database-connection/erp/resource.json"
	mountedDir  = "config/resources/external/keys"
)

// The gateway mounts a file and a directory over paths that the agent synced before. From then on, the agent releases the files there,
// leaves them alone in every commit, and reports the mounts. When the mounts are gone, the agent syncs the paths again.
func TestMountIsNotSynced(t *testing.T) {
	for name, prune := range map[string]plan.Prune{"owned": plan.PruneOwned, "mirror": plan.PruneMirror} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				s := newScene(t, nil)
				s.rules.Prune = prune
				one := plantest.Pairs(mountedFile, "placeholder", sibling, "{}", mountedDir+"/a", "a", mountedDir+"/b", "b", mountedDir+"s", "s", "projects/p/x", "1")
				s.sync(one)
				old := s.rules.Fingerprint()

				s.rules.Mounts = plan.NewMounts([]string{mountedDir, mountedFile, "jar-cache", mountedDir + "/a"})
				require.NotEqual(t, old, s.rules.Fingerprint(), "a new or removed mount changes the rules, so the next plan compares every file")
				c := s.sync(one)
				assert.Equal(t, map[string]plan.Op{mountedFile: plan.Release, mountedDir + "/a": plan.Release, mountedDir + "/b": plan.Release}, done(c))
				assert.Equal(t, []string{mountedFile, mountedDir}, c.Mounted)
				require.Len(t, c.Warnings, 2)
				assert.Contains(t, c.Warnings[0], mountedFile+" is not synced")
				assert.Contains(t, c.Warnings[0], "exclude the path")
				assert.Contains(t, c.Summary(), "not synced because the gateway has mounts there: "+mountedFile+", "+mountedDir)

				c = s.sync(plantest.Pairs(mountedFile, "other", sibling, `{"version": 2}`, mountedDir+"/a", "A", mountedDir+"s", "s", "projects/p/x", "1"), mode)
				assert.Equal(t, map[string]plan.Op{sibling: plan.Update}, done(c))
				c = s.sync(plantest.Pairs(sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "2"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c), "git has deleted the mounted files, and the agent does not")
				assert.Empty(t, c.Mounted)
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "3"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"s", "s", "projects/p/x", "4"), mode)
				assert.Equal(t, []string{mountedFile}, c.Mounted, "reported for every commit, even if it does not change the mounted file")
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				s.has(mountedFile, "placeholder")
				s.has(mountedDir+"/b", "b")
				assert.Empty(t, s.lost)

				s.rules.Mounts = plan.Mounts{}
				c = s.sync(plantest.Pairs(mountedFile, "third", sibling, `{"version": 2}`, mountedDir+"/a", "a", mountedDir+"s", "s", "projects/p/x", "4"), force)
				assert.Equal(t, plan.Update, change(t, c, mountedFile).Op, "without the mount, the file is like any file that the agent does not own")
				assert.Equal(t, plan.Adopt, change(t, c, mountedDir+"/a").Op)
				s.has(mountedFile, "third")
			})
		})
	}
}

func TestMountIgnoresCase(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{"Config/Resources/core/k", "../outside", ".", "", "/abs", "a\tb"})
	c := s.sync(plantest.Pairs("config/resources/core/K/x", "1", "config/resources/core/kk", "1"))
	assert.Equal(t, map[string]plan.Op{"config/resources/core/kk": plan.Create}, done(c))
	assert.Equal(t, []string{"Config/Resources/core/k"}, c.Mounted)
}

func TestExcludedMountIsNotReported(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{mountedFile, mountedDir})
	s.rules.Excludes = plantest.Excludes(t, mountedFile, mountedDir+"/")
	c := s.sync(plantest.Pairs(mountedFile, "placeholder", mountedDir+"/a", "a", sibling, "{}", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{sibling: plan.Create, "projects/p/x": plan.Create}, done(c))
	assert.Empty(t, c.Mounted)
	assert.Empty(t, c.Warnings)
}

// Replacing a directory with a file would also unmount what is mounted in the directory.
func TestFileAboveMountIsRefused(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{mountedDir + "/deep/in"})
	_, err := s.plan(plantest.Pairs(mountedDir, "a file", "projects/p/x", "1"))
	assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(err, ""))
	require.ErrorContains(t, err, mountedDir)
	require.ErrorContains(t, err, mountedDir+"/deep/in")
	_, err = s.plan(plantest.Pairs(mountedDir+"/deep/on", "a file next to the mount", "projects/p/x", "1"))
	require.NoError(t, err)
}

// The destination of a mapping may be a mount, or be below one.
func TestMappingToMountIsNotSynced(t *testing.T) {
	s := newScene(t, nil)
	s.rules = plantest.Rules(t, plan.Rules{
		Mappings: plantest.Mappings(t, "a.json", mountedFile, "dir", mountedDir+"/in/it", "projects", "projects"),
		Mounts:   plan.NewMounts([]string{mountedFile, mountedDir}),
	})
	c := s.sync(plantest.Pairs("a.json", "{}", "dir/x", "1", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Create}, done(c))
	assert.ElementsMatch(t, []string{mountedFile, mountedDir}, c.Mounted)
	assert.Contains(t, strings.Join(c.Warnings, "\n"), mountedDir+" is not synced")
}
