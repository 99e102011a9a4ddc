package propose

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
)

// scene is a gateway that was synced to a commit.
type scene struct {
	t        testing.TB
	objects  *plantest.Objects
	disk     *plantest.Disk
	manifest *plantest.Manifest
	rules    plan.Rules
	desired  *desired.Tree
	root     plan.ID
}

func newScene(t testing.TB, files map[string]string, mappings ...plan.Mapping) *scene {
	t.Helper()
	if len(mappings) == 0 {
		mappings = []plan.Mapping{mapping("site/projects", "projects"), mapping("site/config", "config")}
	}
	rules, err := plan.NewRules(plan.Rules{Mappings: mappings})
	require.NoError(t, err)
	s := &scene{t: t, objects: plantest.NewObjects(), disk: plantest.NewDisk(nil), manifest: &plantest.Manifest{}, rules: rules}
	s.root = s.objects.Commit(plantest.Text(files))
	s.sync(s.root)
	return s
}

func mapping(source, destination string) plan.Mapping {
	return plan.Mapping{Source: plan.Path(source), Destination: plan.Path(destination)}
}

// plan plans a tree against the disk: every file is compared, whatever the manifest says.
func (s *scene) plan(objects plan.Objects, root plan.ID) (*plan.Changes, *desired.Tree) {
	s.t.Helper()
	d, err := desired.NewTree(objects, root, s.rules)
	require.NoError(s.t, err)
	c, err := planner.Compute(planner.Input{Desired: d, Manifest: s.manifest, State: s.disk, From: s.manifest.Head.Commit, To: root, AllowMassDeletion: true, Repair: true, Verify: true})
	require.NoError(s.t, err)
	return c, d
}

func (s *scene) sync(root plan.ID) {
	s.t.Helper()
	c, d := s.plan(s.objects, root)
	s.manifest, _ = plantest.Apply(s.t, c, s.rules, d, s.disk, s.manifest)
	s.desired, s.root = d, root
}

func (s *scene) base() Base {
	return Base{Commit: s.root, Root: s.root, Objects: s.objects, Desired: s.desired, Manifest: s.manifest, State: s.disk}
}

var generous = Limits{FileBytes: 1 << 20, TotalBytes: 4 << 20, Files: 100}

var noGuard = Guard{
	Path:    func(string, plan.Path) (string, bool) { return "", false },
	Content: func(io.Reader) (string, bool) { return "", false },
}

func (s *scene) build(candidates ...string) *Changes {
	s.t.Helper()
	c, err := Build(s.base(), candidates, generous, noGuard)
	require.NoError(s.t, err)
	return c
}

// merged checks that the merge of a proposal changes nothing on the gateway and leaves nothing to propose.
func (s *scene) merged(c *Changes) {
	s.t.Helper()
	require.Empty(s.t, c.Refused)
	require.NotNil(s.t, c.Draft)
	changes, d := s.plan(c.Draft.Objects(), c.Draft.Root)
	require.False(s.t, changes.Writes(), "the merge writes:\n%s", changes)
	s.manifest, _ = plantest.Apply(s.t, changes, s.rules, d, s.disk, s.manifest)
	paths := make([]string, 0, len(c.Files))
	for _, f := range c.Files {
		paths = append(paths, f.Path)
	}
	after, err := Build(Base{Commit: c.Draft.Root, Root: c.Draft.Root, Objects: draftTrees{c}, Desired: d, Manifest: s.manifest, State: s.disk}, paths, generous, noGuard)
	require.NoError(s.t, err)
	require.Empty(s.t, after.Files, "the merge leaves changes to propose")
	require.Empty(s.t, after.Refused)
}

type draftTrees struct{ *Changes }

func (d draftTrees) Tree(id plan.ID) ([]plan.Entry, error) { return d.Draft.Objects().Tree(id) }
func (d draftTrees) Has(id plan.ID) bool                   { return d.Draft.Objects().Has(id) }
func (d draftTrees) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	return d.Draft.Objects().WriteBlob(w, id)
}
func (d draftTrees) TreeBytes(plan.ID) ([]byte, error) { panic("nothing is proposed") }

// gitHas returns the content of a file in the tree of a proposal.
func gitHas(t testing.TB, c *Changes, path string) string {
	t.Helper()
	at := c.Draft.Root
	for name := range strings.SplitSeq(path, "/") {
		entries, err := c.Draft.Objects().Tree(at)
		require.NoError(t, err)
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return "(missing)"
		}
		at = entries[i].ID
	}
	var b bytes.Buffer
	_, err := c.Draft.Objects().WriteBlob(&b, at)
	require.NoError(t, err)
	return b.String()
}

// signed returns a resource.json that a gateway signed for files.
func signed(t testing.TB, actor string, files map[string]string) string {
	t.Helper()
	names := slices.Sorted(maps.Keys(files))
	s, err := resource.ParseSigned(fmt.Appendf(nil, `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["%s"],"attributes":{"lastModification":{"actor":%q,"timestamp":"2026-01-02T03:04:05Z"},"lastModificationSignature":"%064d"}}`,
		strings.Join(names, `","`), actor, 0))
	require.NoError(t, err)
	sum, err := s.Signature(resource.Form83, func(w io.Writer, name string) error {
		_, err := w.Write([]byte(files[name]))
		return err
	})
	require.NoError(t, err)
	return string(s.WithSignature(sum))
}

const view = "projects/line/com.inductiveautomation.perspective/views/Main/"

// withView returns the files of a commit: a project whose view Main has the content json, other resources, and another layer in shared/.
func withView(t testing.TB, json string) map[string]string {
	return map[string]string{
		"site/projects/line/project.json":                                                     `{"title":"Line"}`,
		"site/projects/line/com.inductiveautomation.perspective/views/Main/view.json":         json,
		"site/projects/line/com.inductiveautomation.perspective/views/Main/resource.json":     signed(t, "git", map[string]string{"view.json": json}),
		"site/config/resources/core/ignition/tag-definition/default/tags.json":                `{"tags":[]}`,
		"site/config/resources/core/ignition/system-properties/config.json":                   `{"systemName":"x"}`,
		"site/projects/line/com.inductiveautomation.perspective/page-config/config.json":      `{"pages":{}}`,
		"site/projects/line/com.inductiveautomation.perspective/page-config/resource.json":    signed(t, "git", map[string]string{"config.json": `{"pages":{}}`}),
		"site/projects/line/com.inductiveautomation.perspective/views/Main/thumbnail.png":     "png",
		"shared/projects/line/com.inductiveautomation.perspective/views/Shared/view.json":     `{"shared":1}`,
		"shared/projects/line/com.inductiveautomation.perspective/views/Shared/resource.json": signed(t, "git", map[string]string{"view.json": `{"shared":1}`}),
		"shared/projects/line/com.inductiveautomation.perspective/views/Main/view.json":       `{"lower":true}`,
		"shared/projects/line/com.inductiveautomation.perspective/views/Main/resource.json":   signed(t, "git", map[string]string{"view.json": `{"lower":true}`}),
		"unmapped/readme.md": "not on the gateway",
	}
}

// save saves a view as a Designer does.
func (s *scene) save(json string) {
	s.disk.Write(view+"view.json", json)
	s.disk.Write(view+"resource.json", signed(s.t, "maria", map[string]string{"view.json": json}))
	s.disk.Write(view+"thumbnail.png", "png of "+json)
}

func savedScene(t *testing.T) *scene {
	s := newScene(t, withView(t, `{"v":1}`))
	s.save(`{"v":2}`)
	return s
}

func TestBuild(t *testing.T) {
	t.Run("a saved view goes to its source, byte for byte", func(t *testing.T) {
		s := savedScene(t)
		c := s.build(view + "view.json")
		require.Len(t, c.Files, 3)
		assert.Equal(t, plan.Path("site/"+view+"resource.json"), c.Files[0].Source)
		assert.Equal(t, "maria", c.Files[0].Actor)
		assert.Equal(t, `{"v":2}`, gitHas(t, c, "site/"+view+"view.json"))
		assert.Equal(t, signed(t, "maria", map[string]string{"view.json": `{"v":2}`}), gitHas(t, c, "site/"+view+"resource.json"))
		assert.Equal(t, "not on the gateway", gitHas(t, c, "unmapped/readme.md"))
		s.merged(c)
	})
	t.Run("noise is not a change", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		s.disk.Write(view+"thumbnail.png", "another")
		s.disk.Write(view+"view.json", `{ "v": 1 }`)
		s.disk.Write(view+"resource.json", signed(t, "gateway", map[string]string{"view.json": `{ "v": 1 }`}))
		c := s.build(view+"view.json", view+"resource.json")
		assert.Empty(t, c.Files)
		assert.Empty(t, c.Digest)
		assert.Nil(t, c.Draft)
	})
	t.Run("a new thumbnail alone is not a change", func(t *testing.T) {
		files := withView(t, `{"v":1}`)
		delete(files, "site/"+view+"thumbnail.png")
		s := newScene(t, files)
		s.disk.Write(view+"thumbnail.png", "drawn again")
		assert.Empty(t, s.build(view+"thumbnail.png").Files)
	})
	t.Run("a new view goes to the source of its siblings", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`), mapping("shared/projects", "projects"), mapping("site/projects", "projects"))
		s.disk.Write("projects/line/com.inductiveautomation.perspective/views/New/view.json", "{}")
		s.disk.Write("projects/line/com.inductiveautomation.perspective/views/New/resource.json", signed(t, "maria", map[string]string{"view.json": "{}"}))
		c := s.build("projects/line/com.inductiveautomation.perspective/views/New/view.json")
		require.Len(t, c.Files, 2)
		assert.Equal(t, Added, c.Files[0].Op)
		assert.Equal(t, "{}", gitHas(t, c, "site/projects/line/com.inductiveautomation.perspective/views/New/view.json"))
		s.merged(c)
	})
	t.Run("an overlay: the source in force changes", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`), mapping("shared/projects", "projects"), mapping("site/projects", "projects"))
		s.save(`{"v":2}`)
		c := s.build(view + "view.json")
		assert.Equal(t, `{"v":2}`, gitHas(t, c, "site/"+view+"view.json"))
		assert.Equal(t, `{"lower":true}`, gitHas(t, c, "shared/"+view+"view.json"))
		s.merged(c)
	})
	t.Run("a deleted view is removed", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		for _, name := range []string{"view.json", "resource.json", "thumbnail.png"} {
			s.disk.Remove(view + name)
		}
		c := s.build(view + "view.json")
		require.Len(t, c.Files, 3)
		assert.Equal(t, Deleted, c.Files[1].Op)
		assert.Equal(t, "(missing)", gitHas(t, c, "site/"+view+"view.json"))
		s.merged(c)
	})
	t.Run("a deletion that uncovers a lower layer is refused", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`), mapping("shared/projects", "projects"), mapping("site/projects", "projects"))
		for _, name := range []string{"view.json", "resource.json", "thumbnail.png"} {
			s.disk.Remove(view + name)
		}
		c := s.build(view + "view.json")
		assert.Nil(t, c.Draft)
		require.NotEmpty(t, c.Refused)
		assert.Contains(t, c.Refused[0].Why, "changed again by the merge")
	})
	t.Run("a source of two destinations is refused", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`), mapping("site/projects/line", "projects/line"), mapping("site/projects/line", "projects/copy"))
		s.save(`{"v":2}`)
		c := s.build(view + "view.json")
		assert.Nil(t, c.Draft)
		require.NotEmpty(t, c.Refused)
		assert.True(t, strings.HasPrefix(c.Refused[0].Path, "projects/copy/"), "%v", c.Refused)
	})
	t.Run("a file mapping", func(t *testing.T) {
		m := mapping("site/config/resources/core/ignition/tag-definition/default/tags.json", "config/tags.json")
		s := newScene(t, withView(t, `{"v":1}`), m)
		s.disk.Write("config/tags.json", `{"tags":[1]}`)
		c := s.build("config/tags.json")
		assert.Equal(t, `{"tags":[1]}`, gitHas(t, c, string(m.Source)))
		s.merged(c)
	})
	t.Run("a patched file: git keeps its value", func(t *testing.T) {
		m := mapping("site/projects", "projects")
		m.Patches = []plan.Patch{{Files: "**/view.json", Set: []plan.Setting{{Path: "v", Value: "7"}}}}
		s := newScene(t, withView(t, `{"v":1,"name":"a"}`), m)
		content, _ := s.disk.Content(view + "view.json")
		require.Equal(t, `{"v":7,"name":"a"}`, content)
		s.save(`{"v":7,"name":"b"}`)
		c := s.build(view + "view.json")
		assert.Equal(t, `{"v":1,"name":"b"}`, gitHas(t, c, "site/"+view+"view.json"))
		assert.Equal(t, signed(t, "maria", map[string]string{"view.json": `{"v":1,"name":"b"}`}), gitHas(t, c, "site/"+view+"resource.json"))
		s.merged(c)
	})
	t.Run("a changed value of a patch is refused", func(t *testing.T) {
		m := mapping("site/projects", "projects")
		m.Patches = []plan.Patch{{Files: "**/view.json", Set: []plan.Setting{{Path: "v", Value: "7"}}}}
		s := newScene(t, withView(t, `{"v":1,"name":"a"}`), m)
		s.save(`{"v":8,"name":"b"}`)
		c := s.build(view + "view.json")
		assert.Nil(t, c.Draft)
		assert.NotEmpty(t, c.Refused)
	})
	t.Run("a template is refused", func(t *testing.T) {
		m := mapping("site/projects", "projects")
		m.Template = true
		s := newScene(t, withView(t, `{"v":"{{.GatewayName}}"}`), m)
		s.save(`{"v":"other"}`)
		c := s.build(view + "view.json")
		assert.Nil(t, c.Draft)
		require.NotEmpty(t, c.Refused)
		assert.Contains(t, c.Refused[len(c.Refused)-1].Why, "is a template in git")
	})
	t.Run("a new file that git would take for a template is refused", func(t *testing.T) {
		m := mapping("site/projects", "projects")
		m.Template = true
		s := newScene(t, withView(t, `{"v":1}`), m)
		s.disk.Write(view+"style.css", "{{.GatewayName}}")
		c := s.build(view + "style.css")
		assert.Nil(t, c.Draft)
		assert.NotEmpty(t, c.Refused)
	})
	t.Run("a path without a mapping is refused", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		s.disk.Write("elsewhere/file", "x")
		c := s.build("elsewhere/file")
		require.Len(t, c.Refused, 1)
		assert.Contains(t, c.Refused[0].Why, "no mapping")
	})
	t.Run("a deleted project is refused", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		s.disk.Remove("projects/line/project.json")
		c := s.build("projects/line/project.json")
		require.Len(t, c.Refused, 1)
		assert.Contains(t, c.Refused[0].Why, "deletes a project")
	})
}

// F29 of docs/internals/threats.md: the agent reads no file of changes that are too many or too large.
func TestBuildLimits(t *testing.T) {
	for name, limits := range map[string]Limits{
		"a file too large":  {FileBytes: 100, TotalBytes: 1 << 20, Files: 10},
		"too much in total": {FileBytes: 1 << 20, TotalBytes: 100, Files: 10},
		"too many files":    {FileBytes: 1 << 20, TotalBytes: 1 << 20, Files: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := savedScene(t)
			s.disk.Hashed = 0
			c, err := Build(s.base(), []string{view + "view.json"}, limits, noGuard)
			require.NoError(t, err)
			assert.Zero(t, s.disk.Hashed, "sizes come first")
			assert.Nil(t, c.Draft)
			require.NotEmpty(t, c.Refused)
			assert.Equal(t, v1alpha1.ReasonLimitExceeded, c.Refused[0].Reason)
		})
	}
	t.Run("a mass deletion", func(t *testing.T) {
		files := map[string]string{}
		for i := range 40 {
			files[fmt.Sprintf("site/projects/line/file-%02d", i)] = "x"
		}
		s := newScene(t, files, mapping("site/projects", "projects"))
		var gone []string
		for i := range 30 {
			gone = append(gone, fmt.Sprintf("projects/line/file-%02d", i))
			s.disk.Remove(gone[i])
		}
		c := s.build(gone...)
		require.Len(t, c.Refused, 1)
		assert.Equal(t, v1alpha1.ReasonMassDeletion, c.Refused[0].Reason)
	})
}

func TestBuildGuard(t *testing.T) {
	t.Run("one finding refuses all changes", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		s.save(`{"v":"hunter2"}`)
		s.disk.Write("config/resources/core/ignition/tag-definition/default/tags.json", `{"tags":[1]}`)
		c, err := Build(s.base(), []string{view + "view.json", "config/resources/core/ignition/tag-definition/default/tags.json"}, generous, Guard{
			Path: noGuard.Path,
			Content: func(r io.Reader) (string, bool) {
				b, err := io.ReadAll(r)
				return "password", err != nil || bytes.Contains(b, []byte("hunter2"))
			},
		})
		require.NoError(t, err)
		assert.Nil(t, c.Draft)
		require.Len(t, c.Refused, 2) // the thumbnail has the text, too
		assert.Equal(t, view+"view.json", c.Refused[1].Path)
		assert.NotContains(t, fmt.Sprint(c.Refused), "hunter2")
	})
	t.Run("all findings are named", func(t *testing.T) {
		s := newScene(t, withView(t, `{"v":1}`))
		changed := []string{"projects/p/ignition/script-python/a/code.py", "projects/p/ignition/script-python/b/code.py"}
		for _, path := range changed {
			s.disk.Write(path, "hunter2")
		}
		c, err := Build(s.base(), changed, generous, Guard{Path: noGuard.Path, Content: func(io.Reader) (string, bool) { return "password", true }})
		require.NoError(t, err)
		require.Len(t, c.Refused, 2)
		assert.Equal(t, changed, []string{c.Refused[0].Path, c.Refused[1].Path})
	})
	t.Run("the guard judges the source", func(t *testing.T) {
		s := savedScene(t)
		c, err := Build(s.base(), []string{view + "view.json"}, generous, Guard{
			Path:    func(_ string, p plan.Path) (string, bool) { return "site", strings.HasPrefix(string(p), "site/") },
			Content: noGuard.Content,
		})
		require.NoError(t, err)
		assert.Len(t, c.Refused, 3)
	})
}

func TestDigest(t *testing.T) {
	one, two := newScene(t, withView(t, `{"v":1}`)), newScene(t, withView(t, `{"v":1}`))
	one.save(`{"v":2}`)
	two.save(`{"v":2}`)
	two.disk.Write(view+"resource.json", signed(t, "someone.else", map[string]string{"view.json": `{"v":2}`}))
	two.disk.Write(view+"thumbnail.png", "another picture")
	assert.Equal(t, one.build(view+"view.json").Digest, two.build(view+"view.json").Digest, "the same edit")
	two.save(`{"v":3}`)
	assert.NotEqual(t, one.build(view+"view.json").Digest, two.build(view+"view.json").Digest, "another edit")
}

// FuzzInvert makes random trees, mappings, patches and edits. The merge of a proposal writes nothing on the gateway, or the proposal was
// refused.
func FuzzInvert(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		names := []string{"a", "b", "c"}
		dir := func() string {
			return names[r.IntN(3)] + "/" + names[r.IntN(3)]
		}
		files := map[string]string{}
		put := func(root string) {
			at := root + "/" + dir()
			text := fmt.Sprintf(`{"v":%d,"w":{"x":"y"}}`, r.IntN(4))
			if r.IntN(6) == 0 {
				text = `{"v":1,"n":"{{.GatewayName}}"}`
			}
			files[at+"/view.json"] = text
			if r.IntN(3) > 0 {
				files[at+"/resource.json"] = signed(t, "git", map[string]string{"view.json": text})
			}
			if r.IntN(4) == 0 {
				files[at+"/extra.txt"] = fmt.Sprint(r.IntN(3))
			}
		}
		for range 12 {
			put([]string{"one", "two", "three"}[r.IntN(3)])
		}
		var mappings []plan.Mapping
		for range 1 + r.IntN(3) {
			m := mapping([]string{"one", "two", "three", "one/a"}[r.IntN(4)], []string{"projects/p", "projects/p", "projects/q", "projects/p/a"}[r.IntN(4)])
			m.Template = r.IntN(4) == 0
			if r.IntN(3) == 0 {
				m.Patches = []plan.Patch{{Files: "**/view.json", Set: []plan.Setting{{Path: "v", Value: fmt.Sprint(r.IntN(9))}}}}
			}
			mappings = append(mappings, m)
		}
		rules, err := plan.NewRules(plan.Rules{Mappings: mappings})
		require.NoError(t, err)
		s := &scene{t: t, objects: plantest.NewObjects(), disk: plantest.NewDisk(nil), manifest: &plantest.Manifest{}, rules: rules}
		s.root = s.objects.Commit(plantest.Text(files))
		d, err := desired.NewTree(s.objects, s.root, rules)
		require.NoError(t, err)
		c, err := planner.Compute(planner.Input{Desired: d, Manifest: s.manifest, State: s.disk, To: s.root, AllowMassDeletion: true})
		if err != nil {
			t.Skip("this commit cannot be delivered")
		}
		s.manifest, _ = plantest.Apply(t, c, rules, d, s.disk, s.manifest)
		s.desired = d

		known := slices.Sorted(maps.Keys(s.disk.Files()))
		if len(known) == 0 {
			t.Skip("nothing is mapped")
		}
		var touched []string
		for range 1 + r.IntN(4) {
			p := known[r.IntN(len(known))]
			if r.IntN(3) == 0 {
				p = "projects/p/" + dir() + "/" + []string{"view.json", "new.txt"}[r.IntN(2)]
			}
			touched = append(touched, p)
			switch r.IntN(5) {
			case 0:
				if _, ok := s.disk.Content(p); ok {
					s.disk.Remove(p)
				}
			default:
				text := fmt.Sprintf(`{"v":%d,"w":{"x":"%d"}}`, r.IntN(9), r.IntN(9))
				s.disk.Write(p, text)
				if r.IntN(2) == 0 {
					s.disk.Write(relpath.Parent(p)+"/resource.json", signed(t, "maria", map[string]string{path.Base(p): text}))
				}
			}
		}
		out, err := Build(s.base(), touched, generous, noGuard)
		require.NoError(t, err)
		if out.Draft == nil {
			return
		}
		s.merged(out)
	})
}

// A parser that recurses without a bound would exceed the stack, which ends the program.
func TestModificationOfNestedJSON(t *testing.T) {
	nested := bytes.Repeat([]byte("["), 10<<20)
	assert.Equal(t, len(nested), len(withoutModification(nested)))
}
