package plan_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	password = "config/resources/core/ignition/database-connection/erp/config.json"
	beside   = "config/resources/core/ignition/database-connection/erp/resource.json"
	keys     = "config/resources/external/keys"
)

func TestMountIsNotSynced(t *testing.T) {
	for name, prune := range map[string]plan.Prune{"owned": plan.PruneOwned, "mirror": plan.PruneMirror} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*plan.Input)) {
				s := newScene(t, nil)
				s.rules.Prune = prune
				one := text(password, "placeholder", beside, "{}", keys+"/a", "a", keys+"/b", "b", keys+"s", "s", "projects/p/x", "1")
				s.sync(one)
				old := s.rules.Fingerprint()

				s.rules.Mounts = plan.NewMounts([]string{keys, password, "jar-cache", keys + "/a"})
				require.NotEqual(t, old, s.rules.Fingerprint(), "what lies there is looked at when the mount comes, and when it goes")
				c := s.sync(one)
				assert.Equal(t, map[string]plan.Op{password: plan.Release, keys + "/a": plan.Release, keys + "/b": plan.Release}, done(c))
				assert.Equal(t, []string{password, keys}, c.Mounted)
				require.Len(t, c.Warnings, 2)
				assert.Contains(t, c.Warnings[0], password+" is not synced")
				assert.Contains(t, c.Warnings[0], "exclude the path")
				assert.Contains(t, c.Summary(), "not synced because the gateway has mounts there: "+password+", "+keys)

				c = s.sync(text(password, "other", beside, `{"version": 2}`, keys+"/a", "A", keys+"s", "s", "projects/p/x", "1"), mode)
				assert.Equal(t, map[string]plan.Op{beside: plan.Update}, done(c))
				c = s.sync(text(beside, `{"version": 2}`, keys+"s", "s", "projects/p/x", "2"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c), "gone from git, and still not ours")
				assert.Empty(t, c.Mounted)
				c = s.sync(text(password, "third", beside, `{"version": 2}`, keys+"s", "s", "projects/p/x", "3"), mode)
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				c = s.sync(text(password, "third", beside, `{"version": 2}`, keys+"s", "s", "projects/p/x", "4"), mode)
				assert.Equal(t, []string{password}, c.Mounted, "said of every commit, also of one that did not touch it")
				assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Update}, done(c))
				s.has(password, "placeholder")
				s.has(keys+"/b", "b")
				assert.Empty(t, s.lost)

				s.rules.Mounts = plan.Mounts{}
				c = s.sync(text(password, "third", beside, `{"version": 2}`, keys+"/a", "a", keys+"s", "s", "projects/p/x", "4"), force)
				assert.Equal(t, plan.Update, change(t, c, password).Op, "without the mount it is as any file that was there before")
				assert.Equal(t, plan.Adopt, change(t, c, keys+"/a").Op)
				s.has(password, "third")
			})
		})
	}
}

func TestMountIgnoresCase(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{"Config/Resources/core/k", "../outside", ".", "", "/abs", "a\tb"})
	c := s.sync(text("config/resources/core/K/x", "1", "config/resources/core/kk", "1"))
	assert.Equal(t, map[string]plan.Op{"config/resources/core/kk": plan.Create}, done(c))
	assert.Equal(t, []string{"Config/Resources/core/k"}, c.Mounted)
}

func TestExcludedMountIsNotReported(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{password, keys})
	s.rules.Excludes = excludes(t, password, keys+"/")
	c := s.sync(text(password, "placeholder", keys+"/a", "a", beside, "{}", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{beside: plan.Create, "projects/p/x": plan.Create}, done(c))
	assert.Empty(t, c.Mounted)
	assert.Empty(t, c.Warnings)
}

// Replacing a directory with a file would also remove the mounts in it.
func TestFileAboveMountIsRefused(t *testing.T) {
	s := newScene(t, nil)
	s.rules.Mounts = plan.NewMounts([]string{keys + "/deep/in"})
	_, err := s.plan(text(keys, "a file", "projects/p/x", "1"))
	assert.Equal(t, v1alpha1.ReasonPathCollision, failure.Reason(err, ""))
	require.ErrorContains(t, err, keys)
	require.ErrorContains(t, err, keys+"/deep/in")
	_, err = s.plan(text(keys+"/deep/on", "a file beside the mount", "projects/p/x", "1"))
	require.NoError(t, err)
}

// A mapping's destination may be a mount or below one.
func TestMappingToMountIsNotSynced(t *testing.T) {
	s := newScene(t, nil)
	s.rules = rules(t, plan.Rules{
		Mappings: mappings(t, "a.json", password, "dir", keys+"/in/it", "projects", "projects"),
		Mounts:   plan.NewMounts([]string{password, keys}),
	})
	c := s.sync(text("a.json", "{}", "dir/x", "1", "projects/p/x", "1"))
	assert.Equal(t, map[string]plan.Op{"projects/p/x": plan.Create}, done(c))
	assert.ElementsMatch(t, []string{password, keys}, c.Mounted)
	assert.Contains(t, strings.Join(c.Warnings, "\n"), keys+" is not synced")
}
