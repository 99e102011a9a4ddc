package plan_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/plantest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/verdicts"
)

// lineSettings returns the settings of a profile with one mapping of a directory and one of a file.
func lineSettings() effective.Settings {
	return effective.Settings{
		Profile: "line",
		Mappings: []v1alpha1.Mapping{
			{Source: "services/line/projects", Destination: "projects", Type: v1alpha1.MappingDir, Required: true},
			{Source: "shared/logo.png", Destination: "config/logo.png"},
		},
		ExcludePatterns: []string{"**/.git/", "**/.gitkeep", "**/.resources/**"},
		ConflictPolicy:  v1alpha1.ConflictHold,
		Prune:           v1alpha1.PruneMirror,
	}
}

func TestParseRules(t *testing.T) {
	r, err := plan.ParseRules(lineSettings(), plan.Facts{}, plan.Limits{Files: 7})
	require.NoError(t, err)
	assert.Equal(t, []plan.Mapping{
		{Source: "services/line/projects", Destination: "projects", Kind: plan.DirSource, Required: true},
		{Source: "shared/logo.png", Destination: "config/logo.png"},
	}, r.Mappings)
	assert.Equal(t, plan.Hold, r.Conflict)
	assert.Equal(t, plan.PruneMirror, r.Prune)
	assert.Equal(t, plan.Limits{Files: 7, PathBytes: 1024, Depth: 64, Rendered: 16 << 20}, r.Limits)
	assert.True(t, r.Excludes.Match("projects/p/.resources/ab"))
	assert.False(t, r.AnySource)
}

// The mappings of a service path come without a profile. The commit needs the source of at least one of them.
func TestMappingsOfServicePath(t *testing.T) {
	e := lineSettings()
	e.Profile = ""
	r, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
	require.NoError(t, err)
	assert.True(t, r.AnySource)
}

// source changes the source of the first mapping, destination the destination of the second. vars are names and values of variables.
func source(path string, vars ...string) func(*effective.Settings) {
	return func(e *effective.Settings) { e.Mappings[0].Source, e.Vars = path, pairs(vars) }
}

func destination(path string, vars ...string) func(*effective.Settings) {
	return func(e *effective.Settings) { e.Mappings[1].Destination, e.Vars = path, pairs(vars) }
}

func pairs(list []string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		m[list[i]] = list[i+1]
	}
	return m
}

func patch(mapping int, p v1alpha1.Patch) func(*effective.Settings) {
	return func(e *effective.Settings) { e.Mappings[mapping].Patches = []v1alpha1.Patch{p} }
}

func TestInvalidProfile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*effective.Settings)
		reason v1alpha1.Reason
		names  string
	}{
		"an unknown name in a template":          {source("a/{{.Unknown}}"), v1alpha1.ReasonTemplateFailed, "Unknown"},
		"an invalid template of a destination":   {destination("{{.Unknown}}"), v1alpha1.ReasonTemplateFailed, "mappings[1]: template: destination:1"},
		"an invalid template of a patched value": {patch(1, v1alpha1.Patch{Set: map[string]v1alpha1.PatchValue{"a.b": "{{"}}), v1alpha1.ReasonTemplateFailed, "mappings[1]: patches[0]: template: set[a.b]:1"},
		"an invalid template of the system name": {
			func(e *effective.Settings) { e.SystemNameTemplate = "{{.Unknown}}" }, v1alpha1.ReasonTemplateFailed, "stoker.io/system-name-template",
		},
		"a template that gives an empty system name": {
			func(e *effective.Settings) { e.SystemNameTemplate = "{{.TagProvider}}" }, v1alpha1.ReasonTemplateFailed, "not a valid gateway name",
		},
		"a variable that leaves the directory":   {destination("p/{{.up}}/x", "up", ".."), v1alpha1.ReasonUnsafePath, "mappings[1]: destination:"},
		"a variable that is absolute":            {source("{{.up}}/x", "up", "/etc"), v1alpha1.ReasonUnsafePath, `path "/etc/x" is absolute`},
		"an empty variable":                      {source("{{.up}}", "up", ""), v1alpha1.ReasonTemplateFailed, `mappings[0]: source: "{{.up}}" gives "", a path with an empty part`},
		"a missing label":                        {source(`lines/{{index .Labels "line"}}`), v1alpha1.ReasonTemplateFailed, `mappings[0]: source: "lines/{{index .Labels \"line\"}}" gives "lines/", a path with an empty part`},
		"a missing label before a slash":         {source(`lines/{{index .Labels "line"}}/`), v1alpha1.ReasonTemplateFailed, `gives "lines//", a path with an empty part`},
		"a missing deployment mode":              {destination("config/resources/{{.DeploymentMode}}"), v1alpha1.ReasonTemplateFailed, `mappings[1]: destination: "config/resources/{{.DeploymentMode}}" gives "config/resources/", a path with an empty part`},
		"a missing label between slashes":        {destination(`config/{{index .Labels "line"}}/logo.png`), v1alpha1.ReasonTemplateFailed, `gives "config//logo.png", a path with an empty part`},
		"a missing label at the start":           {source(`{{index .Labels "line"}}/projects`), v1alpha1.ReasonTemplateFailed, `gives "/projects", a path with an empty part`},
		"a missing label below the root":         {source(`./{{index .Labels "line"}}`), v1alpha1.ReasonTemplateFailed, `gives "./", a path with an empty part`},
		"a variable that is a dot":               {source("lines/{{.line}}", "line", "."), v1alpha1.ReasonTemplateFailed, `gives "lines/.", a path with an empty part`},
		"a variable that is a slash":             {source("lines/{{.line}}", "line", "/"), v1alpha1.ReasonTemplateFailed, `gives "lines//", a path with an empty part`},
		"a missing label in a block":             {source(`lines{{if true}}/{{index .Labels "line"}}{{end}}`), v1alpha1.ReasonTemplateFailed, `gives "lines/", a path with an empty part`},
		"a block with an empty result":           {source(`lines/{{with index .Labels "line"}}{{.}}/{{end}}`), v1alpha1.ReasonTemplateFailed, `gives "lines/", a path with an empty part`},
		"a nested template with an empty result": {source(`{{define "line"}}{{index .Labels "line"}}{{end}}lines/{{template "line" .}}`), v1alpha1.ReasonTemplateFailed, `gives "lines/", a path with an empty part`},
		"a label with the value .git":            {destination(`{{index .Labels "hostile"}}/config`), v1alpha1.ReasonUnsafePath, "git's own folder"},
		"an invalid pattern of patched files":    {patch(0, v1alpha1.Patch{File: "[a"}), v1alpha1.ReasonProfilesInvalid, "mappings[0]: patches[0]: file:"},
		"a patch without a file":                 {patch(0, v1alpha1.Patch{}), v1alpha1.ReasonProfilesInvalid, "mappings[0]: patches[0]: set file"},
		"a patch with a file in a mapping of one file": {
			func(e *effective.Settings) {
				e.Mappings[1].Type, e.Mappings[1].Patches = v1alpha1.MappingFile, []v1alpha1.Patch{{File: "x"}}
			}, v1alpha1.ReasonProfilesInvalid, "mappings[1]: patches[0]: remove file",
		},
		"a destination outside of the data directory": {destination("../x"), v1alpha1.ReasonUnsafePath, "mappings[1]: destination:"},
		"an unknown type":            {func(e *effective.Settings) { e.Mappings[1].Type = "link" }, v1alpha1.ReasonProfilesInvalid, "type"},
		"an unknown conflict policy": {func(e *effective.Settings) { e.ConflictPolicy = "x" }, v1alpha1.ReasonProfilesInvalid, "conflictPolicy"},
		"an unknown prune policy":    {func(e *effective.Settings) { e.Prune = "x" }, v1alpha1.ReasonProfilesInvalid, "prune"},
		"an invalid exclude pattern": {func(e *effective.Settings) { e.ExcludePatterns = []string{"[a"} }, v1alpha1.ReasonProfilesInvalid, "excludePatterns"},
		"prune mirror of the whole data directory": {
			func(e *effective.Settings) { e.Mappings[0].Destination = "." }, v1alpha1.ReasonProfilesInvalid, "whole data directory",
		},
		"a file with the root as destination": {
			func(e *effective.Settings) { e.Mappings[1].Destination, e.Mappings[1].Type = ".", v1alpha1.MappingFile },
			v1alpha1.ReasonProfilesInvalid, "name the file",
		},
		"too many mappings": {
			func(e *effective.Settings) {
				for len(e.Mappings) < 1100 {
					e.Mappings = append(e.Mappings, e.Mappings[0])
				}
			}, v1alpha1.ReasonProfilesInvalid, "mappings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := lineSettings()
			c.change(&e)
			_, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
			assert.Equal(t, c.reason, failure.Reason(err, ""))
			assert.ErrorContains(t, err, c.names)
		})
	}
}

// A change of any setting that decides what a gateway gets changes the fingerprint of the rules.
func TestFingerprintDependsOnSettings(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*effective.Settings){
		"no change":   func(*effective.Settings) {},
		"order":       func(e *effective.Settings) { e.Mappings[0], e.Mappings[1] = e.Mappings[1], e.Mappings[0] },
		"source":      func(e *effective.Settings) { e.Mappings[0].Source = "x" },
		"destination": func(e *effective.Settings) { e.Mappings[0].Destination = "x" },
		"type":        func(e *effective.Settings) { e.Mappings[0].Type = "" },
		"excludes":    func(e *effective.Settings) { e.ExcludePatterns = nil },
		"conflict":    func(e *effective.Settings) { e.ConflictPolicy = "" },
		"prune":       func(e *effective.Settings) { e.Prune = "" },
		"template":    func(e *effective.Settings) { e.Mappings[0].Template = true },
		"vars": func(e *effective.Settings) {
			e.Mappings[0].Template, e.Vars = true, map[string]string{"a": "b"}
		},
		"provider": func(e *effective.Settings) { e.Mappings[0].Template, e.TagProvider = true, "x" },
		"patch":    func(e *effective.Settings) { set(e, "*/x.json", "a", "b") },
		"pattern":  func(e *effective.Settings) { set(e, "*/y.json", "a", "b") },
		"path":     func(e *effective.Settings) { set(e, "*/x.json", "b", "b") },
		"value":    func(e *effective.Settings) { set(e, "*/x.json", "a", "c") },
		"variable": func(e *effective.Settings) {
			set(e, "*/x.json", "a", "{{.v}}")
			e.Vars = map[string]string{"v": "d"}
		},
		"commit":               func(e *effective.Settings) { set(e, "*/x.json", "a", "{{.Commit}}") },
		"system name":          func(e *effective.Settings) { e.SystemName = "x" },
		"system name template": func(e *effective.Settings) { e.SystemNameTemplate = "{{.GatewayName}}" },
		"deployment mode":      func(e *effective.Settings) { e.SystemName, e.DeploymentMode = "x", "dev" },
	} {
		t.Run(name, func(t *testing.T) {
			e := lineSettings()
			change(&e)
			r, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
			require.NoError(t, err)
			assert.Empty(t, seen[r.Fingerprint()], "%s has the fingerprint of %s", name, seen[r.Fingerprint()])
			seen[r.Fingerprint()] = name
			again, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
			require.NoError(t, err)
			assert.Equal(t, r.Fingerprint(), again.Fingerprint())
		})
	}
}

// set adds a patch to the first mapping.
func set(e *effective.Settings, file, path, value string) {
	e.Mappings[0].Patches = []v1alpha1.Patch{{File: file, Set: map[string]v1alpha1.PatchValue{path: v1alpha1.PatchValue(value)}}}
}

func TestProfileTemplates(t *testing.T) {
	e := lineSettings()
	e.Vars, e.DeploymentMode, e.TagProvider = map[string]string{"site": "042", "GatewayName": "hidden"}, "dev", "default"
	e.Mappings[0].Source, e.Mappings[0].Destination = "sites/{{.site}}/{{.GatewayName}}/", `projects/{{index .Labels "site"}}`
	e.Mappings[0].Patches = []v1alpha1.Patch{{File: "*.json", Set: map[string]v1alpha1.PatchValue{"b": "{{slice .Commit 0 7}}", "a": "{{.DeploymentMode}}"}}}
	e.SystemNameTemplate = "{{.Namespace}}-{{.Vars.site}}"
	r, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
	require.NoError(t, err)
	assert.Equal(t, plan.Path("sites/042/line-1"), r.Mappings[0].Source)
	assert.Equal(t, plan.Path("projects/7"), r.Mappings[0].Destination)
	assert.Equal(t, []plan.Patch{{Files: "*.json", Set: []plan.Setting{
		{Path: "a", Value: "dev"}, {Path: "b", Value: "0123456", Volatile: "{{slice .Commit 0 7}}"},
	}}}, r.Mappings[0].Patches)
	assert.Equal(t, plan.Setting{Path: "systemName", Value: "north-042"}, r.SystemName)
	e.SystemName = "{{literal}}"
	r, err = plan.ParseRules(e, plantest.Facts(), plan.Limits{})
	require.NoError(t, err)
	assert.Equal(t, "{{literal}}", r.SystemName.Value, "SystemName takes precedence and is not a template")
}

func TestOptionalPathPart(t *testing.T) {
	for text, want := range map[string]plan.Path{
		`lines{{with index .Labels "line"}}/{{.}}{{end}}`:  "lines",
		`lines{{with index .Labels "site"}}/{{.}}{{end}}`:  "lines/7",
		`{{with index .Labels "line"}}{{.}}/{{end}}common`: "common",
		`lines/{{default "all" (index .Labels "line")}}/`:  "lines/all",
		`{{.root}}`:                              plan.Root,
		`{{.root}}/projects`:                     "projects",
		`line-{{index .Labels "line"}}/projects`: "line-/projects",

		// Slashes in a value, and a slash at the end, do not make an empty part.
		`{{.dir}}`:       "projects/a",
		`{{.dir}}north`:  "projects/a/north",
		`{{.dir}}/north`: "projects/a/north",
		`x/{{.below}}`:   "x/north",
		`x/{{with index .Labels "site"}}{{.}}/{{end}}`:                      "x/7",
		`{{$s := index .Labels "site"}}x/{{$s}}`:                            "x/7",
		`{{define "s"}}{{index .Labels "site"}}{{end}}x/{{template "s" .}}`: "x/7",
	} {
		t.Run(text, func(t *testing.T) {
			e := lineSettings()
			e.Mappings[0].Source, e.Vars = text, map[string]string{"root": ".", "dir": "projects/a/", "below": "./north/"}
			r, err := plan.ParseRules(e, plantest.Facts(), plan.Limits{})
			require.NoError(t, err, text)
			assert.Equal(t, want, r.Mappings[0].Source, text)
		})
	}
}

func TestFingerprintIgnoresCommit(t *testing.T) {
	e := lineSettings()
	set(&e, "*.json", "a", "{{.Commit}} {{.Ref}}")
	e.Mappings[1].Template = true
	e.SystemNameTemplate = "{{.Ref}}"
	f := plantest.Facts()
	one, err := plan.ParseRules(e, f, plan.Limits{})
	require.NoError(t, err)
	assert.True(t, one.DependsOnRef())
	f.Ref, f.Commit = "other", "ffff"
	two, err := plan.ParseRules(e, f, plan.Limits{})
	require.NoError(t, err)
	assert.Equal(t, one.Fingerprint(), two.Fingerprint())
	f.GatewayName = "line-2"
	three, err := plan.ParseRules(e, f, plan.Limits{})
	require.NoError(t, err)
	assert.NotEqual(t, one.Fingerprint(), three.Fingerprint())

	e = lineSettings()
	e.Mappings[0].Destination = "projects/{{.Commit}}"
	one, err = plan.ParseRules(e, plantest.Facts(), plan.Limits{})
	require.NoError(t, err)
	two, err = plan.ParseRules(e, f, plan.Limits{})
	require.NoError(t, err)
	assert.NotEqual(t, one.Fingerprint(), two.Fingerprint(), "another destination changes the fingerprint")
	assert.False(t, one.DependsOnRef())
	e.Mappings[0].Source = "projects/{{.Ref}}"
	one, err = plan.ParseRules(e, plantest.Facts(), plan.Limits{})
	require.NoError(t, err)
	assert.True(t, one.DependsOnRef())
}

func TestEarlierCommits(t *testing.T) {
	a, b := plan.ID{1}, plan.ID{2}
	for name, c := range map[string]struct {
		live, next plan.Header
		earlier    []plan.ID
	}{
		"another commit":                      {plan.Header{Commit: a, Complete: true}, plan.Header{Commit: b, Complete: true}, []plan.ID{a}},
		"the same commit":                     {plan.Header{Commit: a, Complete: true}, plan.Header{Commit: a, Complete: true}, nil},
		"the same commit, now incomplete":     {plan.Header{Commit: a, Complete: true}, plan.Header{Commit: a}, []plan.ID{a}},
		"an incomplete commit":                {plan.Header{Commit: a, Earlier: []plan.ID{b}}, plan.Header{Commit: b, Complete: true}, []plan.ID{b}},
		"another commit, already in the list": {plan.Header{Commit: a, Complete: true, Earlier: []plan.ID{a, b}}, plan.Header{Commit: b}, []plan.ID{b, a}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.earlier, c.live.Before(c.next)) })
	}
}

// Agents must accept a GatewaySync that validation accepts, provided the gateway has the facts that its templates use.
func TestValidateAccepts(t *testing.T) {
	taken := 0
	for _, c := range verdicts.Table() {
		if c.Undecodable {
			continue
		}
		gs, err := decode.Unstructured(c.Object())
		require.NoError(t, err)
		if errs := plan.Validate(gs); len(errs) > 0 {
			assert.NotEmpty(t, c.Refused, "%s: %v", c.Name, errs)
			continue
		}
		for name := range gs.Spec.Sync.Profiles {
			e, err := effective.Of(gs, name, nil)
			require.NoError(t, err, c.Name)
			f := plantest.Facts()
			f.Labels["a.b/c"], e.Vars["site"] = "1", "north"
			_, err = plan.ParseRules(e, f, plan.Limits{})
			assert.NoError(t, err, c.Name)
			taken++
		}
	}
	assert.Greater(t, taken, 30, "the table has many profiles that validation accepts")
}

func TestValidateRefuses(t *testing.T) {
	mapping := func(source, destination string) func(*v1alpha1.SyncProfile) {
		return func(p *v1alpha1.SyncProfile) {
			p.Mappings[0].Source, p.Mappings[0].Destination = source, destination
		}
	}
	excludes := func(pattern string) func(*v1alpha1.SyncProfile) {
		return func(p *v1alpha1.SyncProfile) { p.ExcludePatterns = []string{pattern} }
	}
	const field = "spec.sync.profiles[default]."
	for name, c := range map[string]struct {
		change func(*v1alpha1.SyncProfile)
		field  string
	}{
		"a pattern with a leading slash":   {excludes("/projects/x"), field + "excludePatterns[0]"},
		"a pattern that is a slash":        {excludes("/"), field + "excludePatterns[0]"},
		"a pattern with many alternatives": {excludes("{a,b,c,d,e,f,g,h,i}{a,b,c,d,e,f,g,h,i}"), field + "excludePatterns[0]"},
		"a pattern of 513 letters":         {excludes(strings.Repeat("ä", 513)), field + "excludePatterns[0]"},
		"an unclosed template":             {mapping("a/{{.GatewayName", "projects"), field + "mappings[0].source"},
		"an unknown function":              {mapping("a", "projects/{{title .GatewayName}}"), field + "mappings[0].destination"},
		"the .git directory":               {mapping("a/.git", "projects"), field + "mappings[0].source"},
		"a drive":                          {mapping("a", "c:/x"), field + "mappings[0].destination"},
		"a path of 65 folders":             {mapping("a", strings.Repeat("a/", 64)+"a"), field + "mappings[0].destination"},
		"a path of many bytes":             {mapping("a", strings.Repeat("ä", 600)), field + "mappings[0].destination"},
		"a mirror of everything": {func(p *v1alpha1.SyncProfile) {
			p.Mappings[0].Destination, p.Prune = "./", v1alpha1.PruneMirror
		}, field + "mappings[0].destination"},
		"an unclosed template of a value": {func(p *v1alpha1.SyncProfile) {
			p.Mappings[0].Patches = []v1alpha1.Patch{{File: "x", Set: map[string]v1alpha1.PatchValue{"a": "{{if}}"}}}
		}, field + "mappings[0].patches[0].set[a]"},
		"a patch's pattern with many alternatives": {func(p *v1alpha1.SyncProfile) {
			p.Mappings[0].Patches = []v1alpha1.Patch{{File: strings.Repeat("{a,b}", 7), Set: map[string]v1alpha1.PatchValue{"a": "b"}}}
		}, field + "mappings[0].patches[0].file"},
	} {
		t.Run(name, func(t *testing.T) {
			p := v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "a", Destination: "projects"}}}
			gs := &v1alpha1.GatewaySync{}
			gs.Name, gs.Spec.Git = "plant", v1alpha1.GitSpec{Repo: "https://git.example.com/p.git", Ref: "main"}
			gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{"default": p}
			require.Empty(t, plan.Validate(gs))
			c.change(&p)
			gs.Spec.Sync.Profiles["default"] = p
			errs := plan.Validate(gs)
			require.Len(t, errs, 1)
			assert.Equal(t, c.field, errs[0].Field)
			assert.Less(t, len(errs[0].Error()), 700)

			e, err := effective.Of(gs, "", nil)
			if err == nil {
				_, err = plan.ParseRules(e, plantest.Facts(), plan.Limits{})
			}
			assert.Error(t, err, "an agent rejects the GatewaySync, too")
		})
	}
}

func TestValidateMirrorInDefaults(t *testing.T) {
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.Spec.Git = "plant", v1alpha1.GitSpec{Repo: "https://git.example.com/p.git", Ref: "main"}
	gs.Spec.Sync.Defaults.Prune = v1alpha1.PruneMirror
	gs.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{
		"all":  {Mappings: []v1alpha1.Mapping{{Source: "a", Destination: "."}}},
		"none": {Mappings: []v1alpha1.Mapping{{Source: "a", Destination: "."}}, SyncSettings: v1alpha1.SyncSettings{Prune: v1alpha1.PruneNone}},
	}
	errs := validation.GatewaySync(gs)
	require.Len(t, errs, 1)
	assert.Equal(t, "spec.sync.profiles[all].mappings[0].destination", errs[0].Field)
}
