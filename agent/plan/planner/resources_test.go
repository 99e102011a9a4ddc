package planner_test

import (
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

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

func TestWhatHappensToResource(t *testing.T) {
	for name, r := range map[string]row{
		"there, signed again": {
			there: text{view: "v1", code: "c1", thumb: "drawn", meta: resigned}, two: oneView(), after: text{meta: resigned, thumb: "drawn"},
			want: ops{view: plan.Adopt, code: plan.Adopt, thumb: plan.Adopt, meta: plan.Adopt},
			also: func(t *testing.T, s *scene, _ *plan.Changes) {
				assert.Equal(t, plantest.BlobID([]byte(resigned)), s.manifest.Records[meta].Have)
			},
		},
		"signed again by the gateway": {one: oneView(), then: writes(meta, resigned), two: oneView(), fullOnly: true, want: ops{meta: plan.Adopt}, after: text{meta: resigned}},
		"signed again in git":         {one: oneView(), two: with(oneView(), meta, again), want: ops{meta: plan.Adopt}, after: text{meta: signed}},
		"the view is saved in git":    {one: oneView(), two: with(oneView(), view, "v2", meta, again), want: ops{view: plan.Update, meta: plan.Update}, after: text{meta: again}},
		"signed again by the gateway, the view is new": {
			conflict: plan.Hold, one: oneView(), then: writes(meta, resigned), two: with(oneView(), view, "v2"),
			want: ops{view: plan.Update, meta: plan.Update}, after: text{meta: signed},
		},
		"signed again by the gateway and adopted, the view is new": {
			conflict: plan.Hold, one: oneView(), then: func(s *scene) { s.disk.Write(meta, resigned); s.sync(oneView(), full) }, two: with(oneView(), view, "v2"),
			want: ops{view: plan.Update, meta: plan.Update}, after: text{meta: signed},
		},
		"signed again by the gateway, changed in git": {
			conflict: plan.Hold, one: oneView(), then: writes(meta, resigned), two: with(oneView(), meta, version2), want: ops{meta: plan.Update}, after: text{meta: version2},
		},
		"changed by the gateway, the view is new": {
			one: oneView(), then: writes(meta, edited), two: with(oneView(), view, "v2"), want: ops{view: plan.Update, meta: plan.Update}, lost: text{meta: edited},
		},
		"changed by the gateway, the view is new, hold": {
			conflict: plan.Hold, one: oneView(), then: writes(meta, edited), two: with(oneView(), view, "v2"),
			want: ops{view: plan.Update, meta: plan.Update}, held: []string{meta},
		},
		"a file is deleted": {one: oneView(), then: writes(meta, resigned), two: without(oneView(), code), want: ops{code: plan.Delete, meta: plan.Update}},
		"all is deleted": {
			conflict: plan.Hold, one: with(oneView(), file, "x"), then: writes(meta, resigned, thumb, "drawn"), two: git(file, "x"),
			want: ops{view: plan.Delete, code: plan.Delete, thumb: plan.Delete, meta: plan.Delete},
		},
		"a new thumbnail of the gateway": {one: oneView(), then: writes(thumb, "drawn"), two: oneView(), fullOnly: true, want: ops{thumb: plan.Adopt}},
		"a new thumbnail in git":         {one: oneView(), two: with(oneView(), thumb, "t2"), want: ops{thumb: plan.Update}},
		"a new thumbnail in both":        {conflict: plan.Hold, one: oneView(), then: writes(thumb, "drawn"), two: with(oneView(), thumb, "t2"), want: ops{thumb: plan.Update}},
		"all is saved on the gateway, and the view in git": {
			one: oneView(), then: writes(view, "designer's", meta, resigned, thumb, "drawn"), two: with(oneView(), view, "v2", meta, again),
			want: ops{view: plan.Update, thumb: plan.Update, meta: plan.Update}, lost: text{view: "designer's", meta: resigned, thumb: "drawn"},
			after: text{view: "v2", code: "c1", thumb: "t1", meta: again},
		},
		"git's earlier version is unknown": {
			one: oneView(), two: with(oneView(), meta, version2), lost: text{meta: resigned}, want: ops{meta: plan.Update},
			then: func(s *scene) { s.disk.Write(meta, resigned); s.objects.Forget(plantest.BlobID([]byte(signed))) },
		},
	} {
		t.Run(name, r.run)
	}
}

func TestChangedResourceJSONIsKept(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.GatewayWins
		s.sync(oneView())
		s.disk.Write(meta, edited)
		s.sync(with(oneView(), view, "v2"), mode)
		s.has(meta, edited)
		s.has(view, "v2")
	})
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
