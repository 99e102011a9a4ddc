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
	"stoker.io/stoker/test/verdicts"
)

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
	assert.Greater(t, taken, 30)
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
