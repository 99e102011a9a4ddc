package planner_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
)

// studio is a scene with rules from a profile with templates.
type studio struct {
	*scene
	profile effective.Settings
	facts   plan.Facts
	limits  plan.Limits
	cache   *desired.Cache
}

func newStudio(t *testing.T, m ...v1alpha1.Mapping) *studio {
	s := &studio{scene: newScene(t, nil), facts: plantest.Facts(), cache: desired.NewCache()}
	s.profile = effective.Settings{Profile: "line", Mappings: m, Vars: map[string]string{"site": "north", "host": "db"}}
	return s
}

// at returns the input of a plan for a commit. The ref is the one in the facts.
func (s *studio) at(files plantest.Files) planner.Input {
	s.t.Helper()
	root := s.objects.Commit(files)
	s.facts.Commit = root.String()
	var err error
	s.rules, err = plan.ParseRules(s.profile, s.facts, s.limits)
	require.NoError(s.t, err)
	d, err := s.cache.NewTree(s.objects, root, s.rules)
	require.NoError(s.t, err)
	return planner.Input{Desired: d, Previous: s.previous, Manifest: s.manifest, State: s.disk, From: s.manifest.Head.Commit, To: root}
}

// deliver plans and applies. It checks that neither an incremental nor a full plan finds further changes.
func (s *studio) deliver(files plantest.Files, with ...func(*planner.Input)) *plan.Changes {
	s.t.Helper()
	in := s.at(files)
	for _, f := range with {
		f(&in)
	}
	c, err := planner.Compute(in)
	require.NoError(s.t, err)
	require.Nil(s.t, c.Held)
	s.manifest, s.lost = plantest.Apply(s.t, c, s.rules, in.Desired, s.disk, s.manifest)
	s.previous = in.Desired
	for _, cache := range []*desired.Cache{s.cache, desired.NewCache()} {
		for _, previous := range []*desired.Tree{in.Desired, nil} {
			again := in
			again.Previous, again.Manifest, again.From = previous, s.manifest, s.manifest.Head.Commit
			again.Desired, err = cache.NewTree(s.objects, in.To, s.rules)
			require.NoError(s.t, err)
			second, err := planner.Compute(again)
			require.NoError(s.t, err)
			assert.Empty(s.t, second.List, "a second plan is empty")
		}
	}
	return c
}

// refused returns the error of a plan.
func (s *studio) refused(files plantest.Files) error {
	s.t.Helper()
	_, err := planner.Compute(s.at(files))
	require.Error(s.t, err)
	return err
}

func dir(source, destination string) v1alpha1.Mapping {
	return v1alpha1.Mapping{Source: source, Destination: destination}
}

func templates(m v1alpha1.Mapping) v1alpha1.Mapping {
	m.Template = true
	return m
}

func patches(m v1alpha1.Mapping, file, path, value string) v1alpha1.Mapping {
	m.Patches = append(m.Patches, v1alpha1.Patch{File: file, Set: map[string]v1alpha1.PatchValue{path: v1alpha1.PatchValue(value)}})
	return m
}

func TestTemplateMappingRendersTextFiles(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newStudio(t, templates(dir("a", "projects/a")), dir("b", "projects/b"))
		files := plantest.Pairs("a/x.txt", "{{.GatewayName}} at {{.site}}", "a/plain.txt", "no braces", "a/logo.png", "\x89PNG{{.x}}\x00",
			"a/deep/y.json", `{"host":{{json .Vars.host}}}`, "b/z.txt", "{{.GatewayName}}")
		c := s.deliver(files)
		assert.Equal(t, 5, c.Counts().Added)
		s.has("projects/a/x.txt", "line-1 at north")
		s.has("projects/a/plain.txt", "no braces")
		s.has("projects/a/logo.png", "\x89PNG{{.x}}\x00")
		s.has("projects/a/deep/y.json", `{"host":"db"}`)
		s.has("projects/b/z.txt", "{{.GatewayName}}")

		files["a/x.txt"] = plantest.File{Content: "{{.CRName}}"}
		c = s.deliver(files, mode)
		assert.Equal(t, plan.Counts{Modified: 1}, c.Counts())
		s.has("projects/a/x.txt", "plant")

		s.profile.Vars["host"] = "other"
		c = s.deliver(files, mode)
		assert.Equal(t, map[string]plan.Op{"projects/a/deep/y.json": plan.Update}, done(c), "only the file that uses the variable")
		assert.True(t, c.Full)

		files["a/x.txt"] = plantest.File{Content: "no template any more"}
		assert.Equal(t, plan.Counts{Modified: 1}, s.deliver(files, mode).Counts())
		s.has("projects/a/x.txt", "no template any more")
		delete(files, "a/deep/y.json")
		assert.Equal(t, plan.Counts{Deleted: 1}, s.deliver(files, mode).Counts())
	})
}

func TestPatchesAfterTemplates(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		shared := patches(patches(dir("shared", "config"), "**/config.json", "name", "{{.GatewayName}}"), "x/config.json", "port", "8088")
		own := templates(v1alpha1.Mapping{Source: "own.json", Destination: "config/y/config.json"})
		own = patches(own, "", "title", "{{.site}}")
		s := newStudio(t, shared, own)
		files := plantest.Pairs("shared/x/config.json", "{\n  \"name\": \"a\",\n  \"port\": 1\n}", "shared/y/config.json", `{"name":"hidden"}`,
			"shared/z/other.json", `{"name":"kept"}`, "own.json", `{"title":"{{.host}}","host":"{{.host}}"}`)
		s.deliver(files, mode)
		s.has("config/x/config.json", "{\n  \"name\": \"line-1\",\n  \"port\": 8088\n}")
		s.has("config/y/config.json", `{"title":"north","host":"db"}`)
		s.has("config/z/other.json", `{"name":"kept"}`)

		files["shared/x/config.json"] = plantest.File{Content: `{"name":"line-1","port":8088}`}
		assert.Equal(t, plan.Counts{Modified: 1}, s.deliver(files, mode).Counts())
		s.has("config/x/config.json", `{"name":"line-1","port":8088}`)
		delete(files, "own.json")
		s.deliver(files, mode)
		s.has("config/y/config.json", `{"name":"line-1"}`)
	})
}

// Only files that use the commit are rendered again for each commit, and the plan visits no others for this.
func TestTemplatesOfCommit(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newStudio(t, templates(dir("t", "projects/t")), patches(dir("p", "projects/p"), "*/v.json", "commit", "{{slice .Commit 0 7}}"), dir("q", "projects/q"))
		files := plantest.Pairs("t/a/version.txt", "{{.Ref}}@{{.Commit}}", "t/b/x.txt", "{{.site}}", "p/a/v.json", `{}`, "p/a/w.json", `{}`, "q/x", "1")
		s.deliver(files, mode)
		first := s.manifest.Head.Commit
		s.has("projects/t/a/version.txt", "main@"+first.String())
		s.has("projects/p/a/v.json", `{"commit":"`+first.Short()+`"}`)

		files["q/x"] = plantest.File{Content: "2"}
		c := s.deliver(files, mode)
		assert.Equal(t, map[string]plan.Op{
			"projects/t/a/version.txt": plan.Update, "projects/p/a/v.json": plan.Update, "projects/q/x": plan.Update,
		}, done(c))
		second := s.manifest.Head.Commit
		s.has("projects/t/a/version.txt", "main@"+second.String())

		s.facts.Ref = "release"
		c = s.deliver(files, mode)
		assert.Equal(t, map[string]plan.Op{"projects/t/a/version.txt": plan.Update}, done(c), "the same commit, another ref")
	})
}

// A source that follows the ref is one mapping: a sync deletes the files that the other ref lacks, as if both were one folder.
func TestTemplateOfSource(t *testing.T) {
	const view, bad, shared = "projects/p/view.json", "projects/p/bad.py", "projects/p/code.py"
	files := plantest.Pairs("releases/v1/"+view, "1", "releases/v1/"+bad, "1", "releases/v2/"+view, "1", "shared/p/code.py", "1")
	for name, c := range map[string]struct {
		change func(*studio)
		want   map[string]plan.Op // deletions and releases
		saved  string             // content of bad in lost+found
	}{
		"another ref":              {func(s *studio) { s.facts.Ref = "v2" }, map[string]plan.Op{bad: plan.Delete}, ""},
		"another ref, edited file": {func(s *studio) { s.facts.Ref = "v2"; s.disk.Write(bad, "by hand") }, map[string]plan.Op{bad: plan.Delete}, "by hand"},
		"another template":         {func(s *studio) { s.profile.Mappings[0].Source = "releases/v2/{{.Vars.dir}}" }, map[string]plan.Op{bad: plan.Release}, ""},
		"no template":              {func(s *studio) { s.profile.Mappings[0].Source = "releases/v2/projects" }, map[string]plan.Op{bad: plan.Release}, ""},
		"removed mapping":          {func(s *studio) { s.profile.Mappings = s.profile.Mappings[1:] }, map[string]plan.Op{view: plan.Release, bad: plan.Release}, ""},
		"removed other mapping":    {func(s *studio) { s.profile.Mappings = s.profile.Mappings[:1] }, map[string]plan.Op{shared: plan.Release}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStudio(t, dir("releases/{{.Ref}}/projects", "projects"), dir("shared", "projects"))
			s.profile.Vars["dir"], s.facts.Ref = "projects", "v1"
			s.deliver(files)
			c.change(s)
			got := done(s.deliver(files))
			maps.DeleteFunc(got, func(_ string, op plan.Op) bool { return op != plan.Delete && op != plan.Release })
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.saved, s.lost[bad])
		})
	}
	t.Run("literal source before", func(t *testing.T) {
		s := newStudio(t, dir("releases/v1/projects", "projects"))
		s.deliver(files)
		// sequence: the same folder by a template, then another ref
		s.profile.Mappings[0].Source, s.facts.Ref = "releases/{{.Ref}}/projects", "v1"
		s.deliver(files)
		s.facts.Ref = "v2"
		assert.Equal(t, plan.Delete, done(s.deliver(files))[bad])
	})
	t.Run("rollback", func(t *testing.T) {
		s := newStudio(t, dir("releases/{{.Ref}}/projects", "projects"))
		for _, ref := range []string{"v2", "v1", "v2"} { // sequence: v1 fails
			s.facts.Ref = ref
			s.deliver(files)
		}
		_, there := s.disk.Content(bad)
		assert.False(t, there)
	})
	t.Run("ref without source", func(t *testing.T) {
		s := newStudio(t, dir("releases/{{.Ref}}/projects", "projects"))
		s.facts.Ref = "v1"
		s.deliver(files)
		s.facts.Ref = "v3"
		c, err := planner.Compute(s.at(files))
		require.NoError(t, err)
		require.NotNil(t, c.Held)
		assert.Contains(t, c.Held.Message, "no longer has releases/v3/projects")
	})
}

func TestSystemName(t *testing.T) {
	const core, dev = "config/resources/core/ignition/system-properties/config.json", "config/resources/dev/ignition/system-properties/config.json"
	const external = "config/resources/external/ignition/system-properties/config.json"
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newStudio(t, dir("config", "config"))
		s.profile.SystemNameTemplate, s.profile.DeploymentMode = "{{.site}}-{{.GatewayName}}", "dev"
		files := plantest.Pairs(external, `{"systemName":"e"}`, core, `{"systemName":"c","x":1}`)
		s.deliver(files, mode)
		s.has(core, `{"systemName":"north-line-1","x":1}`)
		s.has(external, `{"systemName":"e"}`)

		files[dev] = plantest.File{Content: "{\n  \"a\": 1\n}"}
		s.deliver(files, mode)
		s.has(dev, "{\n  \"a\": 1,\n  \"systemName\": \"north-line-1\"\n}")
		s.has(core, `{"systemName":"c","x":1}`)

		delete(files, dev)
		delete(files, core)
		s.deliver(files, mode)
		s.has(external, `{"systemName":"north-line-1"}`)

		s.profile.SystemName = "7"
		s.deliver(files, mode)
		s.has(external, `{"systemName":"7"}`)
		s.profile.SystemName, s.profile.SystemNameTemplate = "", "{{.Ref}}-{{slice .Commit 0 7}}"
		s.deliver(files, mode)
		files["config/other"] = plantest.File{Content: "x"}
		s.deliver(files, mode)
		s.has(external, `{"systemName":"main-`+s.manifest.Head.Commit.Short()+`"}`)
		s.profile.SystemNameTemplate = ""
		s.deliver(files, mode)
		s.has(external, `{"systemName":"e"}`)

		s.profile.SystemName = "x"
		delete(files, external)
		err := s.refused(files)
		assert.True(t, failure.Is(err, v1alpha1.ReasonPatchFailed), "%v", err)
		assert.ErrorContains(t, err, core)
	})
}

func TestInvalidRendering(t *testing.T) {
	single := v1alpha1.Mapping{Source: "f", Destination: "projects/f", Template: true}
	for name, c := range map[string]struct {
		mapping v1alpha1.Mapping
		files   plantest.Files
		reason  v1alpha1.Reason
		says    []string
	}{
		"an unknown name": {
			templates(dir("a", "projects/a")), plantest.Pairs("a/x.txt", "line\n{{.Nobody}}"), v1alpha1.ReasonTemplateFailed, []string{"projects/a/x.txt:2", "Nobody"},
		},
		"an unclosed template": {templates(dir("a", "projects/a")), plantest.Pairs("a/x.txt", "\n\n{{"), v1alpha1.ReasonTemplateFailed, []string{"projects/a/x.txt:3"}},
		"a binary file":        {single, plantest.Pairs("f", "{{.site}}\x00"), v1alpha1.ReasonTemplateFailed, []string{"mappings[0]", "binary"}},
		"a bomb":               {single, plantest.Pairs("f", "{{range 2000000000}}{{end}}"), v1alpha1.ReasonLimitExceeded, []string{"projects/f"}},
		"a large template":     {single, plantest.Pairs("f", "{{.site}}"+strings.Repeat("x", 5000)), v1alpha1.ReasonLimitExceeded, []string{"projects/f", "larger than"}},
		"a large result":       {single, plantest.Pairs("f", "{{range 5000}}x{{end}}"), v1alpha1.ReasonLimitExceeded, []string{"projects/f"}},
		"a pattern without a match": {
			patches(dir("a", "projects/a"), "*/nothing.json", "x", "1"), plantest.Pairs("a/x.json", "{}", "a/b/c/nothing.json", "{}"), v1alpha1.ReasonPatchFailed,
			[]string{"mappings[0].patches[0]", "*/nothing.json"},
		},
		"a value of another type": {
			patches(dir("a", "projects/a"), "x.json", "n", "abc"), plantest.Pairs("a/x.json", `{"n":1}`), v1alpha1.ReasonPatchFailed, []string{"projects/a/x.json", `"n"`, "a number"},
		},
		"no JSON": {
			patches(dir("a", "projects/a"), "**", "n", "1"), plantest.Pairs("a/x.txt", `n=1`), v1alpha1.ReasonPatchFailed, []string{"projects/a/x.txt", "not valid JSON"},
		},
		"large to patch": {
			patches(dir("a", "projects/a"), "x.json", "n", "1"), plantest.Pairs("a/x.json", `{"a":"`+strings.Repeat("x", 5000)+`"}`), v1alpha1.ReasonLimitExceeded, []string{"projects/a/x.json"},
		},
		"a folder without a pattern": {
			patches(dir("a", "projects/a"), "", "n", "1"), plantest.Pairs("a/x.json", "{}"), v1alpha1.ReasonPatchFailed, []string{"mappings[0].patches[0]", "folder"},
		},
		"a file with a pattern": {
			patches(v1alpha1.Mapping{Source: "f", Destination: "projects/f"}, "*.json", "n", "1"), plantest.Pairs("f", "{}"), v1alpha1.ReasonPatchFailed, []string{"remove file"},
		},
		"a pattern of an excluded file": {
			patches(dir("a", "projects/a"), "skip/*.json", "n", "1"), plantest.Pairs("a/skip/x.json", "{}", "a/y", ""), v1alpha1.ReasonPatchFailed, []string{"skip/*.json"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStudio(t, c.mapping)
			s.limits.Rendered = 4096
			s.profile.ExcludePatterns = []string{"**/skip/"}
			err := s.refused(c.files)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			for _, says := range c.says {
				assert.ErrorContains(t, err, says)
			}
		})
	}
}

func TestPatchesOfMissingSource(t *testing.T) {
	s := newStudio(t, patches(dir("a", "projects/a"), "x.json", "n", "1"), dir("b", "projects/b"))
	s.deliver(plantest.Pairs("b/x", "1"))
	s.has("projects/b/x", "1")
}

func TestPatchPatternAfterMove(t *testing.T) {
	bothWays(t, func(t *testing.T, mode func(*planner.Input)) {
		s := newStudio(t, patches(dir("a", "."), "projects/**/{v,w}.json", "n", "1"))
		for i := range 4 {
			path := fmt.Sprintf("a/projects/%c/w.json", 'a'+i)
			s.deliver(plantest.Pairs(path, "{}", "a/projects/0/x", fmt.Sprint(i)), mode, approve)
			s.has(strings.TrimPrefix(path, "a/"), `{"n":1}`)
		}
		err := s.refused(plantest.Pairs("a/projects/x/y.json", "{}"))
		assert.True(t, failure.Is(err, v1alpha1.ReasonPatchFailed), "%v", err)
	})
}

// A file with unchanged inputs is not rendered again: the plan reads neither its blob nor its tree.
func TestRenderingIsCached(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")), dir("q", "projects/q"))
	files := plantest.Pairs("q/x", "1")
	for i := range 200 {
		files[fmt.Sprintf("t/%d/x.txt", i)] = plantest.File{Content: fmt.Sprintf("%d {{.site}}", i)}
	}
	s.deliver(files)
	files["q/x"] = plantest.File{Content: "2"}
	in := s.at(files)
	s.objects.Reads, s.objects.BlobReads = 0, 0
	c, err := planner.Compute(in)
	require.NoError(t, err)
	assert.Equal(t, plan.Counts{Modified: 1}, c.Counts())
	assert.Zero(t, s.objects.BlobReads)
	assert.Less(t, s.objects.Reads, 220, "the plan searches the templates once for uses of the commit")

	s.manifest, _ = plantest.Apply(t, c, s.rules, in.Desired, s.disk, s.manifest)
	s.previous = in.Desired
	files["q/x"] = plantest.File{Content: "3"}
	in = s.at(files)
	s.objects.Reads = 0
	_, err = planner.Compute(in)
	require.NoError(t, err)
	assert.Less(t, s.objects.Reads, 12, "later plans do not read the templates")

	full := in
	full.Previous = nil
	s.objects.BlobReads = 0
	_, err = planner.Compute(full)
	require.NoError(t, err)
	assert.Zero(t, s.objects.BlobReads)
}

// A caller that compares the disk with the wanted bytes also finds rendered bytes, even after a restart.
func TestRenderedBytesByID(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")), dir("q", "projects/q"))
	files := plantest.Pairs("t/a/x.txt", "{{.site}}", "q/x", "1")
	s.deliver(files)
	want := s.manifest.Records["projects/t/a/x.txt"].Want
	s.cache = desired.NewCache()
	d := s.at(files).Desired
	var b strings.Builder
	_, err := d.WriteBlob(&b, want)
	require.Error(t, err, "no plan has rendered the file yet")
	b.Reset()
	n, err := d.WriteWanted(&b, want)
	require.NoError(t, err)
	assert.Equal(t, "north", b.String())
	assert.EqualValues(t, 5, n)
	b.Reset()
	_, err = d.WriteWanted(&b, s.manifest.Records["projects/q/x"].Want)
	require.NoError(t, err)
	assert.Equal(t, "1", b.String())
	missed := s.objects.Missed
	_, err = d.WriteWanted(&b, plan.ID{1})
	assert.Error(t, err)
	assert.Equal(t, missed, s.objects.Missed, "the store is not asked for rendered bytes")
}

// If a result does not fit into the cache, it is rendered again when needed.
func TestCacheEviction(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")))
	files := make(plantest.Files)
	for i := range 12 { // the cache has room for seven
		files[fmt.Sprintf("t/%d.txt", i)] = plantest.File{Content: fmt.Sprintf("{{.site}}%d", i) + strings.Repeat("x", 1<<20)}
	}
	// The cache does not keep a result of this size.
	files["t/large.txt"] = plantest.File{Content: "{{.site}}" + strings.Repeat("y", 3<<20)}
	s.deliver(files)
	s.has("projects/t/0.txt", "north0"+strings.Repeat("x", 1<<20))
	s.has("projects/t/large.txt", "north"+strings.Repeat("y", 3<<20))
}

// F11 of docs/internals/threats.md: the search for templates does not descend into an excluded tree, whatever its depth. Such a tree does not fail
// the commit.
func TestExcludedTreeIsNotSearched(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")))
	s.profile.ExcludePatterns = []string{"**/deep/"}
	tree := s.objects.TreeOf([]plan.Entry{{Name: "x", Mode: plan.Regular, ID: s.objects.Blob([]byte("{{.Commit}}"))}})
	for range 20_000 {
		tree = s.objects.TreeOf([]plan.Entry{{Name: "deep", Mode: plan.Directory, ID: tree}})
	}
	commit := func(readme string) planner.Input {
		files := s.objects.TreeOf([]plan.Entry{
			{Name: "a.txt", Mode: plan.Regular, ID: s.objects.Blob([]byte("{{.site}}"))}, {Name: "deep", Mode: plan.Directory, ID: tree},
		})
		root := s.objects.TreeOf([]plan.Entry{
			{Name: "README", Mode: plan.Regular, ID: s.objects.Blob([]byte(readme))}, {Name: "t", Mode: plan.Directory, ID: files},
		})
		in := s.at(plantest.Pairs("x", readme)) // sets the rules; its commit is replaced below
		d, err := s.cache.NewTree(s.objects, root, s.rules)
		require.NoError(t, err)
		in.Desired, in.To = d, root
		return in
	}
	in := commit("one")
	c, err := planner.Compute(in)
	require.NoError(t, err)
	s.manifest, _ = plantest.Apply(t, c, s.rules, in.Desired, s.disk, s.manifest)
	s.previous = in.Desired
	in = commit("two")
	s.objects.Reads = 0
	c, err = planner.Compute(in)
	require.NoError(t, err)
	assert.False(t, c.Full)
	assert.Empty(t, c.List)
	assert.Less(t, s.objects.Reads, 200)
}

// F11: templates that are each below their limit also have a limit in total.
func TestTemplateStepsAreBounded(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")))
	files := make(plantest.Files)
	heavy := "{{$x := and false (print" + strings.Repeat(" 1", 1000) + ")}}" // costs many steps but does little
	for i := range 30 {
		files[fmt.Sprintf("t/%d.txt", i)] = plantest.File{Content: fmt.Sprintf("%d{{range 900}}%s{{end}}", i, heavy)}
	}
	for _, attempt := range []string{"first", "second"} { // sequence: the second one has the cache of the first
		err := s.refused(files)
		assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""), "%s: %v", attempt, err)
		assert.ErrorContains(t, err, "in total", attempt)
	}
}

// F11: the bound is for one plan. Rendering a file again, because the cache does not keep large results, does not count.
func TestStagingCountsNoTemplateSteps(t *testing.T) {
	s := newStudio(t, templates(dir("t", "projects/t")))
	files := make(plantest.Files)
	heavy := "{{$x := and false (print" + strings.Repeat(" 1", 1000) + ")}}"
	for i := range 12 {
		files[fmt.Sprintf("t/%d.txt", i)] = plantest.File{Content: fmt.Sprintf("%d{{range 900}}%s{{end}}", i, heavy) + strings.Repeat("x", 3<<20)}
	}
	s.deliver(files)
	s.has("projects/t/7.txt", "7"+strings.Repeat("x", 3<<20))
}
