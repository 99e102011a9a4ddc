package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

func effective() v1alpha1.Effective {
	return v1alpha1.Effective{
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

func TestRulesSayWhatTheProfileSays(t *testing.T) {
	r, err := plan.ParseRules(effective(), plan.Limits{Files: 7})
	require.NoError(t, err)
	assert.Equal(t, []plan.Mapping{
		{Source: "services/line/projects", Destination: "projects", Kind: plan.DirSource, Required: true},
		{Source: "shared/logo.png", Destination: "config/logo.png"},
	}, r.Mappings)
	assert.Equal(t, plan.Hold, r.Conflict)
	assert.Equal(t, plan.PruneMirror, r.Prune)
	assert.Equal(t, plan.Limits{Files: 7, PathBytes: 1024, Depth: 64}, r.Limits)
	assert.True(t, r.Excludes.Match("projects/p/.resources/ab"))
	assert.False(t, r.AnySource)
}

func TestTheServicePathNeedsOneOfItsFolders(t *testing.T) {
	e := effective()
	e.Profile = ""
	r, err := plan.ParseRules(e, plan.Limits{})
	require.NoError(t, err)
	assert.True(t, r.AnySource)
}

func TestAProfileThatCannotWorkIsRefusedWithTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.Effective)
		reason v1alpha1.Reason
		names  string
	}{
		"template":      {func(e *v1alpha1.Effective) { e.Mappings[1].Template = true }, v1alpha1.ReasonProfilesInvalid, "mappings[1]: template"},
		"patches":       {func(e *v1alpha1.Effective) { e.Mappings[0].Patches = make([]v1alpha1.Patch, 1) }, v1alpha1.ReasonProfilesInvalid, "patches"},
		"source":        {func(e *v1alpha1.Effective) { e.Mappings[0].Source = "{{.GatewayName}}" }, v1alpha1.ReasonProfilesInvalid, "source"},
		"destination":   {func(e *v1alpha1.Effective) { e.Mappings[0].Destination = "p/{{.Ref}}" }, v1alpha1.ReasonProfilesInvalid, "destination"},
		"system name":   {func(e *v1alpha1.Effective) { e.SystemName = "x" }, v1alpha1.ReasonProfilesInvalid, "stoker.io/system-name"},
		"name template": {func(e *v1alpha1.Effective) { e.SystemNameTemplate = "x" }, v1alpha1.ReasonProfilesInvalid, "stoker.io/system-name-template"},
		"climbing": {
			func(e *v1alpha1.Effective) { e.Mappings[1].Destination = "../x" }, v1alpha1.ReasonUnsafePath, "mappings[1]: destination:",
		},
		"type":     {func(e *v1alpha1.Effective) { e.Mappings[1].Type = "link" }, v1alpha1.ReasonProfilesInvalid, "type"},
		"conflict": {func(e *v1alpha1.Effective) { e.ConflictPolicy = "x" }, v1alpha1.ReasonProfilesInvalid, "conflictPolicy"},
		"prune":    {func(e *v1alpha1.Effective) { e.Prune = "x" }, v1alpha1.ReasonProfilesInvalid, "prune"},
		"pattern":  {func(e *v1alpha1.Effective) { e.ExcludePatterns = []string{"[a"} }, v1alpha1.ReasonProfilesInvalid, "excludePatterns"},
		"mirror of all": {
			func(e *v1alpha1.Effective) { e.Mappings[0].Destination = "." }, v1alpha1.ReasonProfilesInvalid, "whole data directory",
		},
		"file as root": {
			func(e *v1alpha1.Effective) { e.Mappings[1].Destination, e.Mappings[1].Type = ".", v1alpha1.MappingFile },
			v1alpha1.ReasonProfilesInvalid, "name the file",
		},
		"too many": {
			func(e *v1alpha1.Effective) {
				for len(e.Mappings) < 1100 {
					e.Mappings = append(e.Mappings, e.Mappings[0])
				}
			}, v1alpha1.ReasonProfilesInvalid, "mappings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := effective()
			c.change(&e)
			_, err := plan.ParseRules(e, plan.Limits{})
			assert.Equal(t, c.reason, failure.Reason(err, ""))
			assert.ErrorContains(t, err, c.names)
		})
	}
}

func TestOtherRulesHaveAnotherFingerprint(t *testing.T) {
	seen := map[string]string{}
	for name, change := range map[string]func(*v1alpha1.Effective){
		"as it is":    func(*v1alpha1.Effective) {},
		"order":       func(e *v1alpha1.Effective) { e.Mappings[0], e.Mappings[1] = e.Mappings[1], e.Mappings[0] },
		"source":      func(e *v1alpha1.Effective) { e.Mappings[0].Source = "x" },
		"destination": func(e *v1alpha1.Effective) { e.Mappings[0].Destination = "x" },
		"type":        func(e *v1alpha1.Effective) { e.Mappings[0].Type = "" },
		"excludes":    func(e *v1alpha1.Effective) { e.ExcludePatterns = nil },
		"conflict":    func(e *v1alpha1.Effective) { e.ConflictPolicy = "" },
		"prune":       func(e *v1alpha1.Effective) { e.Prune = "" },
	} {
		e := effective()
		change(&e)
		r, err := plan.ParseRules(e, plan.Limits{})
		require.NoError(t, err)
		assert.Empty(t, seen[r.Fingerprint()], "%s is taken for %s", name, seen[r.Fingerprint()])
		seen[r.Fingerprint()] = name
		again, err := plan.ParseRules(e, plan.Limits{})
		require.NoError(t, err)
		assert.Equal(t, r.Fingerprint(), again.Fingerprint())
	}
}
