package planner_test

import (
	"fmt"
	"io"
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
	s.deliver(plantest.Pairs(
		"p/unsigned/view.json", "{}", "p/unsigned/resource.json", unsigned,
		"p/missing/view.json", "{}", "p/missing/resource.json", missing,
		"p/unary/udts.json", "{}", "p/unary/unary-resource.json", unary,
		"p/unlisted/view.json", "{}", "p/unlisted/resource.json", unlisted,
		"p/broken/view.json", "{}", "p/broken/resource.json", "torn",
		"p/overlaid/view.json", "{}", "p/overlaid/resource.json", stale, "q/view.json", `{"other":1}`,
	))
	s.has("projects/p/unsigned/view.json", `{"a":1}`)
	for path, want := range map[string]string{
		"unsigned/resource.json": unsigned, "missing/resource.json": missing, "unary/unary-resource.json": unary,
		"unlisted/resource.json": unlisted, "broken/resource.json": "torn",
		"overlaid/resource.json": stale, // another mapping provides this file, and nothing was rendered
	} {
		s.has("projects/p/"+path, want)
	}
	assert.Contains(t, strings.Join(s.previous.Warnings(), "\n"), "projects/p/missing/resource.json")
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

// After a patch, every signed resource of real repositories has a valid signature in its own form.
func TestPatchedRealTrees(t *testing.T) {
	for version, want := range map[string]struct {
		tree  func(testing.TB) string
		form  resource.Form
		count int
	}{"8.3": {trees.Repository83, resource.Form83, 419}, "8.1": {trees.Project81, resource.Form81, 295}} {
		t.Run(version, func(t *testing.T) {
			files := make(plantest.Files)
			for at, content := range trees.Files(t, want.tree(t)) {
				files["t/"+at] = plantest.File{Content: content}
			}
			s := newStudio(t, patches(dir("t", "projects"), "**/resource.json", "attributes.probe", "{{.site}}"))
			s.profile.ExcludePatterns = []string{"**/.git/", "**/.resources/**"}
			s.deliver(files)
			checked := 0
			for path := range s.disk.Files() {
				dir, isResource := strings.CutSuffix(path, "/resource.json")
				if !isResource {
					continue
				}
				before, err := resource.ParseSigned([]byte(files["t/"+strings.TrimPrefix(path, "projects/")].Content))
				require.NoError(t, err)
				if before.Stored() == "" {
					continue
				}
				stored, sum := s.signatureOf(dir, want.form)
				if assert.Equal(t, sum, stored, path) {
					checked++
				}
				assert.NotEqual(t, before.Stored(), stored, path)
				content, _ := s.disk.Content(path)
				assert.Contains(t, content, `"probe": "north"`)
			}
			assert.Equal(t, want.count, checked)
		})
	}
}
