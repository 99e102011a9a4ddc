package effective_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

// plant returns a GatewaySync with defaults, a profile "area" that overrides most of them, and a profile "default".
func plant() *v1alpha1.GatewaySync {
	gs := verdicts.Smallest()
	period := int32(60)
	gs.Spec.Sync = v1alpha1.SyncSpec{
		Defaults: v1alpha1.SyncSettings{
			ExcludePatterns: []string{"**/.gitkeep", "docs/"},
			Vars:            map[string]v1alpha1.VarValue{"site": "north", "line": "1"},
			SyncPeriod:      &period,
			ConflictPolicy:  v1alpha1.ConflictHold,
			DryRun:          new(true),
		},
		Profiles: map[string]v1alpha1.SyncProfile{
			"area": {
				Mappings: []v1alpha1.Mapping{
					{Source: "./services/area/projects/", Destination: "projects/", Required: true},
					{Source: ".", Destination: "./config", Type: v1alpha1.MappingDir,
						Patches: []v1alpha1.Patch{{File: "a.json", Set: map[string]v1alpha1.PatchValue{"a": "b"}}}},
				},
				SyncSettings: v1alpha1.SyncSettings{
					ExcludePatterns: []string{"*.bak"},
					Vars:            map[string]v1alpha1.VarValue{"line": "2"},
					ConflictPolicy:  v1alpha1.ConflictGatewayWins,
					Prune:           v1alpha1.PruneMirror,
					DryRun:          new(false),
				},
				Paused: true,
			},
			"default": {Mappings: []v1alpha1.Mapping{{Source: "a", Destination: "b"}}},
		},
	}
	return gs
}

// Annotations override the profile, and the profile overrides the defaults. Patterns and variables are merged.
func TestEffectivePrecedence(t *testing.T) {
	got, err := effective.Of(plant(), "area", map[string]string{
		"ignition-sync.io/sync-period":    "5",
		"stoker.io/exclude-patterns":      "*.{log,tmp}, docs/ ,\n x",
		"stoker.io/deployment-mode":       "prod",
		"stoker.io/tag-provider":          "edge tags",
		"stoker.io/system-name":           "North 1",
		"stoker.io/system-name-template":  "{{.GatewayName}}",
		"stoker.io/profile":               "default",
		"stoker.io/service-path":          "./services/a/",
		"stoker.io/something-of-tomorrow": "\x00",
	})
	require.NoError(t, err)
	want := effective.Settings{
		Profile: "area",
		Mappings: []v1alpha1.Mapping{
			{Source: "services/area/projects", Destination: "projects", Required: true},
			{Source: ".", Destination: "config", Type: v1alpha1.MappingDir,
				Patches: []v1alpha1.Patch{{File: "a.json", Set: map[string]v1alpha1.PatchValue{"a": "b"}}}},
		},
		ExcludePatterns:       []string{"**/.git/", "**/.gitkeep", "**/.resources/**", "docs/", "*.bak", "*.{log,tmp}", "x"},
		Vars:                  map[string]string{"site": "north", "line": "2"},
		SyncPeriod:            5 * time.Second,
		DesignerSessionPolicy: v1alpha1.DesignerProceed,
		DesignerSessionScope:  v1alpha1.DesignerScopeProject,
		ConflictPolicy:        v1alpha1.ConflictGatewayWins,
		DriftPolicy:           v1alpha1.DriftReport,
		EmbeddedSecretPolicy:  v1alpha1.EmbeddedSecretWarn,
		References:            v1alpha1.ReferencesWarn,
		Prune:                 v1alpha1.PruneMirror,
		Startup:               v1alpha1.StartupUseExisting,
		Paused:                true,
		DeploymentMode:        "prod",
		TagProvider:           "edge tags",
		SystemName:            "North 1",
		SystemNameTemplate:    "{{.GatewayName}}",
	}
	assert.Empty(t, cmp.Diff(want, got))
}

func TestEffectiveDefaultProfile(t *testing.T) {
	got, err := effective.Of(plant(), "", nil)
	require.NoError(t, err)
	assert.Equal(t, "default", got.Profile)
	assert.Equal(t, v1alpha1.ConflictHold, got.ConflictPolicy)
	assert.Equal(t, time.Minute, got.SyncPeriod)
	assert.Equal(t, map[string]string{"site": "north", "line": "1"}, got.Vars)
	assert.True(t, got.DryRun)
	assert.False(t, got.Paused)

	got, err = effective.Of(plant(), "", map[string]string{"stoker.io/profile": "area"})
	require.NoError(t, err)
	assert.Equal(t, "area", got.Profile)
	assert.False(t, got.DryRun, "false in the profile overrides true in the defaults")
}

func TestEffectivePausedByAnnotation(t *testing.T) {
	gs := plant()
	gs.Annotations = map[string]string{v1alpha1.AnnotationPaused: "true"}
	got, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	assert.True(t, got.Paused)
}

// Changing the result does not change the GatewaySync or later results.
func TestEffectiveIsACopy(t *testing.T) {
	gs := plant()
	before := gs.DeepCopy()
	got, err := effective.Of(gs, "area", nil)
	require.NoError(t, err)
	got.Mappings[1].Patches[0].Set["a"] = "changed"
	got.Vars["site"] = "changed"
	got.ExcludePatterns[0] = "changed"
	assert.Equal(t, before, gs)
	again, err := effective.Of(gs, "area", nil)
	require.NoError(t, err)
	assert.NotContains(t, again.ExcludePatterns, "changed")
}

// Without profiles, the mappings follow from the annotation stoker.io/service-path.
func TestServicePathMode(t *testing.T) {
	for path, want := range map[string][]string{
		"services/blue/": {"services/blue/projects", "services/blue/config", "services/blue/udts"},
		".":              {"projects", "config", "udts"},
	} {
		t.Run(path, func(t *testing.T) {
			got, err := effective.Of(verdicts.Smallest(), "", map[string]string{"stoker.io/service-path": path, "stoker.io/deployment-mode": "dev"})
			require.NoError(t, err)
			assert.Empty(t, got.Profile)
			assert.Equal(t, "dev", got.DeploymentMode)
			var sources, destinations []string
			for _, m := range got.Mappings {
				assert.Equal(t, v1alpha1.MappingDir, m.Type)
				assert.False(t, m.Required)
				sources = append(sources, m.Source)
				destinations = append(destinations, m.Destination)
			}
			assert.Equal(t, want, sources)
			assert.Equal(t, []string{"projects", "config", "config/resources/core/ignition/tag-type-definition/default"}, destinations)
		})
	}
	got, err := effective.Of(verdicts.Smallest(), "", map[string]string{"stoker.io/service-path": "a", "stoker.io/tag-provider": "edge"})
	require.NoError(t, err)
	assert.Equal(t, "config/resources/core/ignition/tag-type-definition/edge", got.Mappings[2].Destination)
}

// Each error has a reason, and its text names what to change. With an error, only Paused is set.
func TestEffectiveErrors(t *testing.T) {
	long := strings.Repeat("a", 2000)
	for _, c := range []struct {
		name        string
		profile     string
		annotations map[string]string
		change      func(*v1alpha1.GatewaySync)
		reason      v1alpha1.Reason
		contains    []string
	}{
		{name: "unknown profile", profile: "sitee",
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{`"sitee"`, "area, default"}},
		{name: "unknown profile in the annotation", annotations: map[string]string{"stoker.io/profile": "x"},
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{`"x"`, "area, default"}},
		{name: "no profile named, no default", change: func(gs *v1alpha1.GatewaySync) { delete(gs.Spec.Sync.Profiles, "default") },
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{`"default"`, "area", v1alpha1.AnnotationProfile}},
		{name: "unknown profile in service-path mode", profile: "x", annotations: map[string]string{"stoker.io/service-path": "a"},
			change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles = nil },
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{`profile "x" does not exist: spec.sync.profiles is empty; add the profile`}},
		{name: "unknown profile in the annotation in service-path mode", annotations: map[string]string{"stoker.io/profile": "x"},
			change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles = nil },
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{"is empty; add the profile, or remove the annotation stoker.io/profile"}},
		{name: "service-path mode without a path", change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles = nil },
			reason: v1alpha1.ReasonProfileNotFound, contains: []string{v1alpha1.AnnotationServicePath}},
		{name: "invalid profile", profile: "area", change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["area"].Mappings[1].Source = "../x" },
			reason: v1alpha1.ReasonProfilesInvalid, contains: []string{"spec.sync.profiles[area].mappings[1].source", "../x"}},
		{name: "invalid defaults", change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.Prune = "all" },
			reason: v1alpha1.ReasonProfilesInvalid, contains: []string{"spec.sync.defaults.prune", "mirror"}},
		{name: "service path outside the repository", annotations: map[string]string{"stoker.io/service-path": "a/../../b"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationServicePath}},
		{name: "path as deployment mode", annotations: map[string]string{"stoker.io/deployment-mode": "../core"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationDeploymentMode}},
		{name: "path as tag provider", annotations: map[string]string{"stoker.io/tag-provider": "a/b"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationTagProvider}},
		{name: "system name of two lines", annotations: map[string]string{"stoker.io/system-name": "a\nb"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationSystemName}},
		{name: "system name template too long", annotations: map[string]string{"stoker.io/system-name-template": long},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationSystemNameTemplate}},
		{name: "sync period with a unit", annotations: map[string]string{"stoker.io/sync-period": "30s"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationSyncPeriod, "seconds"}},
		{name: "sync period too short", annotations: map[string]string{"stoker.io/sync-period": "4"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationSyncPeriod}},
		{name: "invalid pattern", annotations: map[string]string{"stoker.io/exclude-patterns": "a,[b"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationExcludePatterns}},
		{name: "too many patterns", annotations: map[string]string{"stoker.io/exclude-patterns": strings.Repeat("a,", 129)},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationExcludePatterns, "128"}},
		{name: "profile name with a slash", annotations: map[string]string{"stoker.io/profile": "a/b"},
			reason: v1alpha1.ReasonInvalidAnnotation, contains: []string{v1alpha1.AnnotationProfile}},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := plant()
			if c.change != nil {
				c.change(gs)
			}
			got, err := effective.Of(gs, c.profile, c.annotations)
			var named *v1alpha1.Error
			require.ErrorAs(t, err, &named)
			assert.Equal(t, c.reason, named.Reason)
			for _, s := range c.contains {
				assert.Contains(t, err.Error(), s)
			}
			assert.Less(t, len(err.Error()), 1200)
			paused := c.profile == "area" // which is paused; Paused is set even if the profile is invalid
			assert.Equal(t, effective.Settings{Paused: paused}, got)

			gs.Spec.Paused = true
			got, err = effective.Of(gs, c.profile, c.annotations)
			require.Error(t, err)
			assert.True(t, got.Paused, "the GatewaySync is paused")
		})
	}
}

// An invalid annotation of a pod does not end the pause of its gateway. The profile area pauses its gateways. For the profiles default and
// unknown, the test pauses the GatewaySync.
func TestPausedWithInvalidAnnotation(t *testing.T) {
	for profile, want := range map[string]bool{"area": true, "running": false, "default": true, "unknown": true} {
		t.Run(profile, func(t *testing.T) {
			gs := plant()
			gs.Spec.Sync.Profiles["running"] = v1alpha1.SyncProfile{}
			gs.Spec.Paused = profile == "default" || profile == "unknown"
			got, err := effective.Of(gs, "", map[string]string{v1alpha1.AnnotationProfile: profile, v1alpha1.AnnotationSyncPeriod: "banana"})
			require.Error(t, err)
			assert.Equal(t, effective.Settings{Paused: want}, got)
		})
	}
}

// An error in one profile does not affect the gateways of another profile.
func TestErrorInOtherProfile(t *testing.T) {
	gs := plant()
	gs.Spec.Sync.Profiles["area"].Mappings[0].Destination = "/etc"
	_, err := effective.Of(gs, "default", nil)
	require.NoError(t, err)
	assert.NotEmpty(t, validation.GatewaySync(gs))
}

func TestInvalidWindows(t *testing.T) {
	gs := plant()
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{{Name: "a", Schedule: "0 22 * * *", Duration: "8h"}}}
	e, err := effective.Of(gs, "", nil)
	require.NoError(t, err)
	assert.Len(t, e.Windows, 1)
	gs.Spec.Deployment.Windows[0].TimeZone = "Local"
	_, err = effective.Of(gs, "", nil)
	assert.ErrorContains(t, err, "spec.deployment.windows[0].timeZone")
}

func TestProposalSizes(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // 0 for an error
	}{
		{"", 10 << 20}, {"1", 1}, {"1Ki", 1 << 10}, {"512Ki", 512 << 10}, {"32Mi", 32 << 20}, {"999999999Mi", 999999999 << 20},
		{"0", 0}, {"-1", 0}, {"1Gi", 0}, {"1.5Mi", 0}, {"Mi", 0}, {"1KiMi", 0}, {" 1", 0}, {strings.Repeat("9", 10), 0},
	} {
		t.Run("maxFileSize_"+c.text, func(t *testing.T) {
			got, err := effective.MaxFileBytes(&v1alpha1.ProposalGuardrails{MaxFileSize: c.text})
			if c.want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxFileSize")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	t.Run("default of maxTotalSize", func(t *testing.T) {
		got, err := effective.MaxTotalBytes(&v1alpha1.ProposalGuardrails{})
		require.NoError(t, err)
		assert.Equal(t, int64(32<<20), got)
	})
	t.Run("error of maxTotalSize", func(t *testing.T) {
		_, err := effective.MaxTotalBytes(&v1alpha1.ProposalGuardrails{MaxTotalSize: "x"})
		require.ErrorContains(t, err, "spec.bidirectional.guardrails.maxTotalSize")
	})
}

func TestDebounceDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 30 * time.Second, "1s": time.Second, "10m": 10 * time.Minute, "999ms": 0, "10m1s": 0, "soon": 0} {
		t.Run(text, func(t *testing.T) {
			got, err := effective.Debounce(&v1alpha1.BidirectionalSpec{Debounce: text})
			if want == 0 {
				require.ErrorContains(t, err, "spec.bidirectional.debounce")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestInvalidDurationNamesItsField(t *testing.T) {
	_, err := effective.RefreshInterval(&v1alpha1.ConfigSyncSpec{RefreshInterval: "banana"})
	assert.ErrorContains(t, err, "spec.refreshInterval")
}

func TestPollingInterval(t *testing.T) {
	for value, want := range map[string]time.Duration{"": time.Minute, "90s": 90 * time.Second, "banana": time.Minute} {
		t.Run(value, func(t *testing.T) {
			assert.Equal(t, want, effective.PollingInterval(&v1alpha1.PollingSpec{Interval: value}))
		})
	}
}

func TestProgressDeadline(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 10 * time.Minute, "90s": 90 * time.Second, "9999h": 10 * time.Minute, "banana": 10 * time.Minute} {
		t.Run(value, func(t *testing.T) {
			assert.Equal(t, want, effective.ProgressDeadline(&v1alpha1.GatewaySyncSpec{ProgressDeadline: value}))
		})
	}
}

// The table of test/verdicts has the settings that are refused.
func TestAutoRollbackSettings(t *testing.T) {
	snapshots := &v1alpha1.SnapshotsSpec{Enabled: true}
	all := []v1alpha1.AutoRollbackTrigger{v1alpha1.TriggerScanFailure, v1alpha1.TriggerProjectLoadError, v1alpha1.TriggerConfigError}
	for name, tt := range map[string]struct {
		spec      *v1alpha1.AutoRollbackSpec
		snapshots *v1alpha1.SnapshotsSpec
		scope     v1alpha1.AutoRollbackScope
		agent     []v1alpha1.AutoRollbackTrigger // what the agent acts on
	}{
		"none":             {snapshots: snapshots},
		"not enabled":      {spec: &v1alpha1.AutoRollbackSpec{Scope: v1alpha1.AutoRollbackGateway}},
		"the defaults":     {spec: &v1alpha1.AutoRollbackSpec{Enabled: true}, snapshots: snapshots, scope: v1alpha1.AutoRollbackGateway, agent: all},
		"one trigger":      {spec: &v1alpha1.AutoRollbackSpec{Enabled: true, Triggers: all[1:2]}, snapshots: snapshots, scope: v1alpha1.AutoRollbackGateway, agent: all[1:2]},
		"the lead decides": {spec: &v1alpha1.AutoRollbackSpec{Enabled: true, Scope: v1alpha1.AutoRollbackRollout}, scope: v1alpha1.AutoRollbackRollout},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant()
			gs.Spec.AutoRollback, gs.Spec.Snapshots = tt.spec, tt.snapshots
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			assert.Equal(t, tt.scope, gs.AutoRollbackScope())
			assert.Equal(t, tt.agent, e.AutoRollback)
		})
	}
}

func TestSnapshotSettings(t *testing.T) {
	for name, c := range map[string]struct{ spec, want *v1alpha1.SnapshotsSpec }{
		"none":        {},
		"not enabled": {spec: &v1alpha1.SnapshotsSpec{RetentionCount: 3}},
		"the defaults": {&v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 3},
			&v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 3, MaxSize: "1Gi", GatewayBackup: v1alpha1.GatewayBackupNever}},
	} {
		t.Run(name, func(t *testing.T) {
			gs := plant()
			gs.Spec.Snapshots = c.spec
			e, err := effective.Of(gs, "", nil)
			require.NoError(t, err)
			assert.Equal(t, c.want, e.Snapshots)
		})
	}
}
