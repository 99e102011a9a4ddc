package planner_test

import (
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/test/trees"
)

// The gateway handles the directory of a resource as a unit. These tests cover such directories.

const (
	view     = "projects/p/views/v/view.json"
	code     = "projects/p/views/v/code.py"
	thumb    = "projects/p/views/v/thumbnail.png"
	meta     = "projects/p/views/v/resource.json"
	signed   = `{"version":1,"attributes":{"lastModification":{"actor":"git"},"lastModificationSignature":"aa"}}`
	resigned = `{"version":1,"attributes":{"lastModification":{"actor":"external"},"lastModificationSignature":"bb"}}`
	again    = `{"version":1,"attributes":{"lastModification":{"actor":"git"},"lastModificationSignature":"cc"}}`
	version2 = `{"version":2,"attributes":{"lastModification":{"actor":"git"},"lastModificationSignature":"dd"}}`
	edited   = `{"version":9,"attributes":{"lastModification":{"actor":"designer"},"lastModificationSignature":"ee"}}`
)

func oneView() plantest.Files {
	return plantest.Pairs(view, "v1", code, "c1", thumb, "t1", meta, signed)
}

func with(files plantest.Files, pairs ...string) plantest.Files {
	files = maps.Clone(files)
	maps.Copy(files, plantest.Pairs(pairs...))
	return files
}

func without(files plantest.Files, paths ...string) plantest.Files {
	files = maps.Clone(files)
	for _, path := range paths {
		delete(files, path)
	}
	return files
}

func TestUnownedResignedResourceIsAdopted(t *testing.T) {
	s := newScene(t, map[string]string{view: "v1", code: "c1", thumb: "t1", meta: resigned})
	c := s.sync(oneView())
	assert.False(t, c.Writes())
	assert.Equal(t, plantest.BlobID([]byte(resigned)), s.manifest.Records[meta].Have)
	s.has(meta, resigned)
	assert.Empty(t, s.sync(oneView(), full).List)
	assert.Zero(t, s.sync(oneView(), full).Drifted)
}

func TestResignedResourceIsNotDrift(t *testing.T) {
	s := newScene(t, nil)
	s.sync(oneView())
	s.disk.Write(meta, resigned)
	c := s.sync(oneView(), full)
	assert.Equal(t, map[string]plan.Op{meta: plan.Adopt}, done(c))
	assert.Zero(t, c.Drifted)
	assert.Empty(t, s.sync(oneView(), full).List)
}

func TestResigningCommitWritesNothing(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		c := s.sync(with(oneView(), meta, again), mode)
		assert.Equal(t, map[string]plan.Op{meta: plan.Adopt}, done(c))
		s.has(meta, signed)
	})
}

func TestSavedViewIsWrittenWithResourceJSON(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		c := s.sync(with(oneView(), view, "v2", meta, again), mode)
		assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c))
		s.has(meta, again)
	})
}

func TestResignedResourceJSONIsWrittenWithView(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		for name, adopt := range map[string]bool{"adopted before": true, "signed again": false} {
			t.Run(name, func(t *testing.T) {
				s := newScene(t, nil)
				s.rules.Conflict = plan.Hold
				s.sync(oneView())
				s.disk.Write(meta, resigned)
				if adopt {
					s.sync(oneView(), full)
				}
				c := s.sync(with(oneView(), view, "v2"), mode)
				assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c))
				assert.Empty(t, s.lost, "a signature is not saved")
				s.has(meta, signed)
				assert.Empty(t, s.sync(with(oneView(), view, "v2"), full).List)
			})
		}
	})
}

func TestResignedByGitAndGatewayIsNotConflict(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(oneView())
		s.disk.Write(meta, resigned)
		c := s.sync(with(oneView(), meta, version2), mode)
		assert.Equal(t, map[string]plan.Op{meta: plan.Update}, done(c))
		assert.Zero(t, c.Counts().Conflicts)
		s.has(meta, version2)
	})
}

func TestChangedResourceJSONConflictsWithView(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		s.disk.Write(meta, edited)
		c := s.sync(with(oneView(), view, "v2"), mode)
		assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c))
		assert.Equal(t, map[string]string{meta: edited}, s.lost)
		assert.Zero(t, c.Drifted)

		s = newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(oneView())
		s.disk.Write(meta, edited)
		held, err := s.plan(with(oneView(), view, "v2"), mode)
		require.NoError(t, err)
		require.NotNil(t, held.Held)
		assert.Equal(t, []string{meta}, held.Held.Paths)

		s = newScene(t, nil)
		s.rules.Conflict = plan.GatewayWins
		s.sync(oneView())
		s.disk.Write(meta, edited)
		s.sync(with(oneView(), view, "v2"), mode)
		s.has(meta, edited)
		s.has(view, "v2")
	})
}

func TestDeletedFileRewritesResourceJSON(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		s.disk.Write(meta, resigned)
		c := s.sync(without(oneView(), code), mode)
		assert.Equal(t, map[string]plan.Op{code: plan.Delete, meta: plan.Update}, done(c))
	})
}

func TestThumbnailChangedOnGateway(t *testing.T) {
	for name, conflict := range map[string]plan.ConflictPolicy{"gitWins": plan.GitWins, "hold": plan.Hold} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, map[string]string{view: "v1", code: "c1", thumb: "drawn", meta: resigned})
			s.rules.Conflict = conflict
			assert.False(t, s.sync(oneView()).Writes(), "an existing thumbnail is adopted")
			s.disk.Write(thumb, "drawn again")
			c := s.sync(oneView(), full)
			assert.Equal(t, map[string]plan.Op{thumb: plan.Adopt}, done(c), "a new thumbnail is adopted")
			assert.Zero(t, c.Drifted)
			assert.Empty(t, s.sync(oneView(), full).List)
		})
	}
}

func TestThumbnailChangedInGit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		c := s.sync(with(oneView(), thumb, "t2"), mode)
		assert.Equal(t, map[string]plan.Op{thumb: plan.Update}, done(c))
	})
}

func TestThumbnailChangedInBoth(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(oneView())
		s.disk.Write(thumb, "drawn")
		c := s.sync(with(oneView(), thumb, "t2"), mode)
		assert.Equal(t, map[string]plan.Op{thumb: plan.Update}, done(c))
		assert.Zero(t, c.Counts().Conflicts)
	})
}

func TestLostAndFoundGetsWholeResource(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.sync(oneView())
		s.disk.Write(view, "designer's")
		s.disk.Write(meta, resigned)
		s.disk.Write(thumb, "drawn")
		s.sync(with(oneView(), view, "v2", meta, again), mode)
		assert.Equal(t, map[string]string{view: "designer's", meta: resigned, thumb: "drawn"}, s.lost)
		for path, content := range map[string]string{view: "v2", code: "c1", thumb: "t1", meta: again} {
			s.has(path, content)
		}
	})
}

func TestDeletedResignedResourceIsNotConflict(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		s.sync(with(oneView(), file, "x"))
		s.disk.Write(meta, resigned)
		s.disk.Write(thumb, "drawn")
		c := s.sync(plantest.Pairs(file, "x"), mode)
		assert.Equal(t, plan.Counts{Deleted: 4}, c.Counts())
	})
}

func TestResourceWithoutOldBlobIsSaved(t *testing.T) {
	s := newScene(t, nil)
	s.sync(oneView())
	s.disk.Write(meta, resigned)
	s.objects.Forget(plantest.BlobID([]byte(signed)))
	c := s.sync(with(oneView(), meta, version2))
	assert.True(t, change(t, c, meta).Conflict)
	assert.Equal(t, map[string]string{meta: resigned}, s.lost)
}

func TestBrokenResourceJSONIsConflict(t *testing.T) {
	s := newScene(t, map[string]string{meta: `{"version":1,`})
	c := s.sync(plantest.Pairs(meta, signed))
	assert.True(t, change(t, c, meta).Conflict)
}

// If a gateway already has all files of a real repository, but with new signatures, the first sync adopts them without a write.
func TestRealTreeIsAdoptedWithoutWrites(t *testing.T) {
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
	s.rules = plantest.Rules(t, plan.Rules{
		Mappings: plantest.Mappings(t, ".", "projects"), Excludes: plantest.Excludes(t, "**/.git/", "**/.gitkeep", "**/.resources/**"), Conflict: plan.Hold,
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
