package planner_test

import (
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
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

// contents returns a function that reads a resource's files from a map.
func contents(files map[string]string) func(io.Writer, string) error {
	return func(w io.Writer, name string) error {
		content, ok := files[name]
		if !ok {
			return fmt.Errorf("no file %s", name)
		}
		_, err := io.WriteString(w, content)
		return err
	}
}

// sealedJSON returns a resource.json with a signature of the given form for files.
func sealedJSON(t *testing.T, form resource.Form, description string, files map[string]string) string {
	t.Helper()
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, fmt.Sprintf("    %q", name))
	}
	raw := "{\n  \"scope\": \"G\",\n  \"description\": " + fmt.Sprintf("%q", description) + ",\n  \"version\": 1,\n  \"restricted\": false,\n" +
		"  \"overridable\": true,\n  \"files\": [\n" + strings.Join(names, ",\n") + "\n  ],\n  \"attributes\": {\n    \"lastModification\": {\n" +
		"      \"actor\": \"admin\",\n      \"timestamp\": \"2026-01-02T03:04:05Z\"\n    },\n    \"lastModificationSignature\": \"00\"\n  }\n}"
	s, err := resource.ParseSigned([]byte(raw))
	require.NoError(t, err)
	sum, err := s.Signature(form, contents(files))
	require.NoError(t, err)
	return string(s.WithSignature(sum))
}

// signatureOf returns the stored signature of a resource.json on disk and the expected one in the given form.
func (s *studio) signatureOf(dir string, form resource.Form) (stored, want string) {
	s.t.Helper()
	raw, ok := s.disk.Content(dir + "/resource.json")
	require.True(s.t, ok)
	parsed, err := resource.ParseSigned([]byte(raw))
	require.NoError(s.t, err)
	want, err = parsed.Signature(form, func(w io.Writer, name string) error {
		content, ok := s.disk.Content(dir + "/" + name)
		require.True(s.t, ok, name)
		_, err := io.WriteString(w, content)
		return err
	})
	require.NoError(s.t, err)
	return parsed.Stored(), want
}

func TestRenderedResourceKeepsSignatureForm(t *testing.T) {
	for name, form := range map[string]resource.Form{"8.3": resource.Form83, "8.1": resource.Form81} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
				const v = "projects/p/view"
				s := newStudio(t, patches(dir("p", "projects/p"), "view/view.json", "title", "{{.site}}"))
				view := map[string]string{"view.json": `{"title":"x"}`, "code.py": "pass"}
				other := map[string]string{"view.json": `{"title":"x"}`}
				files := plantest.Pairs("p/view/view.json", view["view.json"], "p/view/code.py", "pass", "p/view/resource.json", sealedJSON(t, form, "", view),
					"p/other/view.json", other["view.json"], "p/other/resource.json", sealedJSON(t, form, "", other))
				s.deliver(files, mode)
				stored, want := s.signatureOf(v, form)
				assert.Equal(t, want, stored)
				before := files["p/view/resource.json"].Content
				got, _ := s.disk.Content(v + "/resource.json")
				assert.NotEqual(t, before, got)
				assert.Len(t, got, len(before))
				assert.Equal(t, before[:strings.Index(before, "Signature")], got[:strings.Index(got, "Signature")], "no other byte changes")
				s.has("projects/p/other/resource.json", files["p/other/resource.json"].Content)

				s.profile.Vars["site"] = "south"
				c := s.deliver(files, mode)
				assert.Equal(t, map[string]plan.Op{v + "/view.json": plan.Update, v + "/resource.json": plan.Update}, done(c))
				stored, want = s.signatureOf(v, form)
				assert.Equal(t, want, stored)

				// If the patch no longer changes anything, git's own signature returns.
				view["view.json"] = `{"title":"south"}`
				files["p/view/view.json"] = plantest.File{Content: view["view.json"]}
				files["p/view/resource.json"] = plantest.File{Content: sealedJSON(t, form, "", view)}
				s.deliver(files, mode)
				s.has(v+"/resource.json", files["p/view/resource.json"].Content)

				// The same holds for a commit that does not change resource.json.
				files["p/view/view.json"] = plantest.File{Content: `{"title":"another","more":1}`}
				s.deliver(files, mode)
				got, _ = s.disk.Content(v + "/resource.json")
				assert.NotEqual(t, files["p/view/resource.json"].Content, got)
				files["p/view/view.json"] = plantest.File{Content: `{"title": "south"}`}
				s.deliver(files, mode)
				s.has(v+"/resource.json", files["p/view/resource.json"].Content)
			})
		})
	}
}

// resource.json itself is a template, and the signature covers its rendered text.
func TestRenderedResourceJSONIsSigned(t *testing.T) {
	s := newStudio(t, templates(dir("p", "projects/p")))
	s.deliver(plantest.Pairs("p/v/view.json", "{}", "p/v/resource.json", sealedJSON(t, resource.Form83, "of {{.GatewayName}}", map[string]string{"view.json": "{}"})))
	got, _ := s.disk.Content("projects/p/v/resource.json")
	assert.Contains(t, got, "of line-1")
	stored, want := s.signatureOf("projects/p/v", resource.Form83)
	assert.Equal(t, want, stored)
}

// After an edit by hand, the signature matches neither form. The new one uses the form of the gateway.
func TestStaleSignatureUsesGatewayForm(t *testing.T) {
	for version, form := range map[string]resource.Form{"8.3": resource.Form83, "8.1": resource.Form81} {
		t.Run(version, func(t *testing.T) {
			s := newStudio(t, patches(dir("p", "projects/p"), "v/view.json", "a", "1"))
			in := s.at(plantest.Pairs("p/v/view.json", "{}", "p/v/resource.json", sealedJSON(t, resource.Form83, "", map[string]string{"view.json": "other"})))
			s.rules.Form = form
			d, err := desired.NewTree(s.objects, in.To, s.rules)
			require.NoError(t, err)
			in.Desired = d
			c, err := planner.Compute(in)
			require.NoError(t, err)
			plantest.Apply(t, c, s.rules, d, s.disk, s.manifest)
			stored, want := s.signatureOf("projects/p/v", form)
			assert.Equal(t, want, stored)
		})
	}
}

func TestUnsignedResourceStaysUnsigned(t *testing.T) {
	unsigned := `{"scope":"G","version":1,"files":["view.json"],"attributes":{}}`
	missing := strings.Replace(sealedJSON(t, resource.Form83, "", map[string]string{"view.json": "{}"}), `"view.json"`, `"view.json", "thumbnail.png"`, 1)
	unary := `{"files":["udts.json"]}`
	s := newStudio(t, patches(dir("p", "projects/p"), "**/{view,udts}.json", "a", "1"), dir("q", "projects/p/overlaid"))
	stale := sealedJSON(t, resource.Form83, "", map[string]string{"view.json": "{}"})
	unlisted := strings.Replace(sealedJSON(t, resource.Form83, "", nil), `"admin"`, `"by hand"`, 1)
	files := plantest.Pairs(
		"p/unsigned/view.json", "{}", "p/unsigned/resource.json", unsigned,
		"p/missing/view.json", "{}", "p/missing/resource.json", missing,
		"p/unary/udts.json", "{}", "p/unary/unary-resource.json", unary,
		"p/unlisted/view.json", "{}", "p/unlisted/resource.json", unlisted,
		"p/broken/view.json", "{}", "p/broken/resource.json", "torn",
		"p/overlaid/view.json", "{}", "p/overlaid/resource.json", stale, "q/view.json", `{"other":1}`,
	)
	s.deliver(files)
	s.has("projects/p/unsigned/view.json", `{"a":1}`)
	for path, want := range map[string]string{
		"unsigned/resource.json": unsigned, "missing/resource.json": missing, "unary/unary-resource.json": unary,
		"unlisted/resource.json": unlisted, "broken/resource.json": "torn",
		"overlaid/resource.json": stale, // another mapping provides this file, and nothing was rendered
	} {
		s.has("projects/p/"+path, want)
	}
	assert.Contains(t, strings.Join(s.previous.Warnings(), "\n"), "projects/p/missing/resource.json")
	in := s.at(files)
	full(&in)
	c, err := planner.Compute(in)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(c.Warnings, "\n"), "projects/p/missing/resource.json", "also with a result from the cache")
}

// The gateway only signs a rendered resource again. The plan adopts this change and does not revert it.
func TestRewrittenRenderedResourceIsAdopted(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newStudio(t, patches(dir("p", "projects/p"), "v/view.json", "a", "{{slice .Commit 0 7}}"))
		view := map[string]string{"view.json": "{}"}
		files := plantest.Pairs("p/v/view.json", "{}", "p/v/resource.json", sealedJSON(t, resource.Form83, "", view), "p/x", "1")
		s.deliver(files)
		path := "projects/p/v/resource.json"
		got, _ := s.disk.Content(path)
		s.disk.Write(path, strings.Replace(got, `"admin"`, `"external"`, 1))
		c, err := planner.Compute(s.at(files))
		require.NoError(t, err)
		assert.False(t, c.Writes(), "%s", c)

		// The next commit renders it again, and the gateway's change is not a conflict.
		files["p/x"] = plantest.File{Content: "2"}
		s.profile.ConflictPolicy = v1alpha1.ConflictHold
		in := s.at(files)
		in.Previous = s.previous
		mode(&in)
		c, err = planner.Compute(in)
		require.NoError(t, err)
		assert.Nil(t, c.Held, "%s", c)
		assert.Equal(t, plan.Update, change(t, c, path).Op)
		assert.False(t, change(t, c, path).Conflict)
		assert.Zero(t, s.objects.Missed, "the store is not asked for rendered bytes")
	})
}
