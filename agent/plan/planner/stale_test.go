package planner_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
)

// These tests cover resources that a user edited in git without updating the signature. If resource.json is unchanged, a gateway
// may ignore the edit.

// listing returns a resource.json of view.json with a signature.
func listing(version, signature string) string {
	return `{"scope":"A","version":` + version + `,"files":["view.json"],"attributes":{"lastModification":{"actor":"git"},"lastModificationSignature":"` + signature + `"}}`
}

func byHand(content string) plantest.Files {
	return plantest.Pairs(view, content, meta, listing("1", "aa"))
}

// fits returns the resource.json on the scene's disk and checks that its signature matches the view.
func (s *scene) fits() string {
	s.t.Helper()
	doc, ok := s.disk.Content(meta)
	require.True(s.t, ok)
	r, err := resource.ParseSigned([]byte(doc))
	require.NoError(s.t, err)
	sum, err := r.Signature(resource.Form83, func(w io.Writer, name string) error {
		content, ok := s.disk.Content(strings.TrimSuffix(meta, resource.File) + name)
		assert.True(s.t, ok, name)
		_, err := io.WriteString(w, content)
		return err
	})
	require.NoError(s.t, err)
	assert.Equal(s.t, sum, r.Stored())
	return doc
}

func TestHandEditedViewIsSigned(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newScene(t, nil)
		s.rules.Conflict = plan.Hold
		assert.Empty(t, s.sync(byHand("v1")).Signed, "a new resource is written as in git")
		s.has(meta, listing("1", "aa"))
		seen := map[string]bool{listing("1", "aa"): true}
		// sequence: one edit after the other
		for _, content := range []string{"v2", "v3", "v1"} {
			c := s.sync(byHand(content), mode)
			assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c), content)
			assert.Equal(t, map[string]plan.ID{meta: plantest.BlobID([]byte(listing("1", "aa")))}, c.Signed)
			doc := s.fits()
			assert.False(t, seen[doc], "the gateway has already seen this one: %s", doc)
			seen[doc] = true
			assert.Equal(t, c.Signed[meta], s.manifest.Records[meta].Want)
			assert.Empty(t, s.sync(byHand(content), full).List, "the next plan is empty")
			assert.Empty(t, s.sync(byHand(content), verify).List)
		}
		assert.Empty(t, s.lost)

		t.Run("a new signature of the gateway is not a conflict", func(t *testing.T) {
			s.disk.Write(meta, listing("1", "bb"))
			c := s.sync(plantest.Pairs(view, "v1", meta, listing("2", "cc")), mode)
			assert.Equal(t, map[string]plan.Op{meta: plan.Update}, done(c))
			assert.Zero(t, c.Counts().Conflicts)
			s.has(meta, listing("2", "cc"))
		})
	})
}

func TestForeignViewIsSigned(t *testing.T) {
	s := newScene(t, map[string]string{view: "gateway", meta: listing("1", "aa")})
	c := s.sync(byHand("v1"))
	assert.Equal(t, map[string]plan.Op{view: plan.Update, meta: plan.Update}, done(c))
	s.fits()
	assert.Equal(t, map[string]string{view: "gateway", meta: listing("1", "aa")}, s.lost, "lost+found gets the whole resource")
	assert.Empty(t, s.sync(byHand("v1"), full).List)
}

func TestValidSignatureStays(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		unsigned := `{"scope":"A","version":1,"files":["view.json"],"attributes":{}}`
		s := newScene(t, nil)
		s.sync(plantest.Pairs(view, "v1", meta, unsigned))
		assert.Equal(t, map[string]plan.Op{view: plan.Update}, done(s.sync(plantest.Pairs(view, "v2", meta, unsigned), mode)))
		s.sync(plantest.Pairs(view, "v2", meta, listing("1", "aa")), mode)
		s.sync(plantest.Pairs(view, "v3", meta, listing("1", "aa")), mode)
		right := s.fits()

		other := newScene(t, nil)
		other.sync(plantest.Pairs(view, "v3", code, "c1", meta, right))
		c := other.sync(plantest.Pairs(view, "v3", code, "c2", meta, right), mode)
		assert.Equal(t, map[string]plan.Op{code: plan.Update}, done(c), "a file that is not part of the resource")
	})
}
