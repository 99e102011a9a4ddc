// Package effective computes the settings of one gateway from its GatewaySync and the annotations of its pod, and parses durations and
// sizes of specs. It fills in defaults.
package effective

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// Settings are the settings of one gateway: annotations of its pod override its profile, the profile overrides
// sync.defaults, and those override the defaults of this package.
type Settings struct {
	// Profile is the name of the profile; "" in service-path mode.
	Profile string
	// Mappings in their order. Paths have no trailing slash, and may still be templates.
	Mappings []v1alpha1.Mapping
	// ExcludePatterns are the built-in patterns and those of the defaults, the profile and the pod, without duplicates.
	ExcludePatterns []string
	// Vars are the variables of the defaults and the profile.
	Vars map[string]string

	SyncPeriod            time.Duration
	DesignerSessionPolicy v1alpha1.DesignerSessionPolicy
	DesignerSessionScope  v1alpha1.DesignerSessionScope
	ConflictPolicy        v1alpha1.ConflictPolicy
	DriftPolicy           v1alpha1.DriftPolicy
	EmbeddedSecretPolicy  v1alpha1.EmbeddedSecretPolicy
	References            v1alpha1.ReferencePolicy
	Prune                 v1alpha1.Prune
	Startup               v1alpha1.Startup
	DryRun                bool
	// Paused reports whether the GatewaySync or its profile pauses the gateway.
	Paused bool

	// Bidirectional is spec.bidirectional with all defaults; nil if changes on the gateway are not proposed.
	Bidirectional *v1alpha1.BidirectionalSpec

	// Snapshots is spec.snapshots with all defaults; nil if no snapshots are taken.
	Snapshots *v1alpha1.SnapshotsSpec

	// AutoRollback lists the failures after which the agent rolls the gateway back; empty if it never does.
	AutoRollback []v1alpha1.AutoRollbackTrigger

	// Windows are the validated windows of the GatewaySync; schedule.ParseWindows selects a gateway's.
	Windows []v1alpha1.MaintenanceWindow

	// DeploymentMode is the gateway's deployment mode; "" if it has none.
	DeploymentMode string
	// TagProvider is the tag provider that gets the folder udts in service-path mode. Templates can use it in every mode.
	TagProvider string
	// SystemName, or else SystemNameTemplate, becomes the systemName of the gateway. If both are empty, systemName is not
	// changed.
	SystemName         string
	SystemNameTemplate string
}

// Of returns the settings for the gateway of a pod. If profile is empty, the pod's annotation stoker.io/profile
// names the profile; without the annotation it is the profile "default". A GatewaySync without profiles is in
// service-path mode: the mappings come from the pod's annotation stoker.io/service-path.
//
// Of validates only what this gateway uses, so that a mistake in another profile does not affect it. The error is
// a *v1alpha1.Error with ReasonProfileNotFound, ReasonProfilesInvalid or ReasonInvalidAnnotation. With an error, only Paused is set (from
// the GatewaySync alone if the profile does not exist).
func Of(gs *v1alpha1.GatewaySync, profile string, podAnnotations map[string]string) (Settings, error) {
	pod, podErr := parsePod(podAnnotations)
	name, p, err := findProfile(gs, cmp.Or(profile, pod.profile), profile == "" || profile == pod.profile)
	incomplete := Settings{Paused: pauses(gs, p)}
	if err := cmp.Or(podErr, err); err != nil {
		return incomplete, err
	}
	if errs := validation.ForGateway(gs, name, p); len(errs) > 0 {
		return incomplete, invalidSpec(errs)
	}
	if p == nil {
		if pod.servicePath == "" {
			return incomplete, v1alpha1.NewError(v1alpha1.ReasonProfileNotFound,
				"spec.sync.profiles is empty and the pod has no annotation %s: add a profile, or annotate the folder of this gateway", v1alpha1.AnnotationServicePath)
		}
		p = &v1alpha1.SyncProfile{Mappings: servicePathMappings(pod.servicePath, pod.tagProvider)}
	}
	return merge(gs, name, p, pod), nil
}

// invalidSpec returns an error with the first of errs and the number of the others.
func invalidSpec(errs field.ErrorList) error {
	more := ""
	if len(errs) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(errs)-1)
	}
	return v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%w%s", errs[0], more)
}

// findProfile finds a profile by name. It returns nil and no error in service-path mode. annotated reports whether the name comes from the
// annotation of the pod.
func findProfile(gs *v1alpha1.GatewaySync, requested string, annotated bool) (string, *v1alpha1.SyncProfile, error) {
	profiles := gs.Spec.Sync.Profiles
	name := cmp.Or(requested, v1alpha1.DefaultProfile)
	if p, ok := profiles[name]; ok {
		return name, &p, nil
	}
	if len(profiles) == 0 && name == v1alpha1.DefaultProfile {
		return "", nil, nil
	}
	existing, advice := "has "+strings.Join(slices.Sorted(maps.Keys(profiles)), ", "), "name one of them, or add it"
	switch {
	case len(profiles) == 0 && annotated:
		existing, advice = "is empty", "add the profile, or remove the annotation "+v1alpha1.AnnotationProfile
	case len(profiles) == 0:
		existing, advice = "is empty", "add the profile"
	case requested == "":
		advice = "name one with the annotation " + v1alpha1.AnnotationProfile + ", or add a profile with that name, which is the default"
	}
	return "", nil, v1alpha1.NewError(v1alpha1.ReasonProfileNotFound, "profile %.80q does not exist: spec.sync.profiles %.400s; %s", name, existing, advice)
}

// pauses reports whether a gateway with profile p is paused; p may be nil.
func pauses(gs *v1alpha1.GatewaySync, p *v1alpha1.SyncProfile) bool {
	return gs.Paused() || p != nil && p.Paused
}

func merge(gs *v1alpha1.GatewaySync, name string, p *v1alpha1.SyncProfile, pod podSettings) Settings {
	d := &gs.Spec.Sync.Defaults
	e := Settings{
		Profile:               name,
		Mappings:              normalize(p.Mappings),
		ExcludePatterns:       union(v1alpha1.BuiltinExcludes(), d.ExcludePatterns, p.ExcludePatterns, pod.excludePatterns),
		Vars:                  make(map[string]string, len(d.Vars)+len(p.Vars)),
		SyncPeriod:            cmp.Or(pod.syncPeriod, seconds(p.SyncPeriod), seconds(d.SyncPeriod), v1alpha1.DefaultSyncPeriod),
		DesignerSessionPolicy: cmp.Or(p.DesignerSessionPolicy, d.DesignerSessionPolicy, v1alpha1.DesignerProceed),
		DesignerSessionScope:  cmp.Or(p.DesignerSessionScope, d.DesignerSessionScope, v1alpha1.DesignerScopeProject),
		ConflictPolicy:        cmp.Or(p.ConflictPolicy, d.ConflictPolicy, v1alpha1.ConflictGitWins),
		DriftPolicy:           cmp.Or(p.DriftPolicy, d.DriftPolicy, v1alpha1.DriftReport),
		EmbeddedSecretPolicy:  cmp.Or(p.EmbeddedSecretPolicy, d.EmbeddedSecretPolicy, v1alpha1.EmbeddedSecretWarn),
		References:            gs.ReferencePolicy(),
		Prune:                 cmp.Or(p.Prune, d.Prune, v1alpha1.PruneOwned),
		Startup:               cmp.Or(p.Startup, d.Startup, v1alpha1.StartupUseExisting),
		DryRun:                *cmp.Or(p.DryRun, d.DryRun, new(false)),
		Paused:                pauses(gs, p),
		Bidirectional:         bidirectional(gs, p),
		Snapshots:             snapshots(gs),
		AutoRollback:          autoRollback(gs),
		Windows:               gs.MaintenanceWindows(),
		DeploymentMode:        pod.deploymentMode,
		TagProvider:           pod.tagProvider,
		SystemName:            pod.systemName,
		SystemNameTemplate:    pod.systemNameTemplate,
	}
	for _, vars := range []map[string]v1alpha1.VarValue{d.Vars, p.Vars} {
		for k, v := range vars {
			e.Vars[k] = string(v)
		}
	}
	return e
}

// normalize returns a copy of mappings with the normal form of their paths.
func normalize(mappings []v1alpha1.Mapping) []v1alpha1.Mapping {
	out := make([]v1alpha1.Mapping, len(mappings))
	for i := range mappings {
		out[i] = *mappings[i].DeepCopy()
		out[i].Source = syntax.NormalPath(out[i].Source)
		out[i].Destination = syntax.NormalPath(out[i].Destination)
	}
	return out
}

// servicePathMappings returns the mappings of a GatewaySync without profiles. Folders of deployment modes are below config and are synced
// with it; the gateway overlays the folder of its mode.
func servicePathMappings(servicePath, tagProvider string) []v1alpha1.Mapping {
	from := func(name string) string {
		if servicePath == "." {
			return name
		}
		return servicePath + "/" + name
	}
	return []v1alpha1.Mapping{
		{Source: from("projects"), Destination: "projects", Type: v1alpha1.MappingDir},
		{Source: from("config"), Destination: "config", Type: v1alpha1.MappingDir},
		{Source: from("udts"), Destination: "config/resources/core/ignition/tag-type-definition/" + tagProvider, Type: v1alpha1.MappingDir},
	}
}

// union returns the elements of lists in their order, without duplicates.
func union(lists ...[]string) []string {
	var out []string
	for _, s := range slices.Concat(lists...) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// seconds converts a number of seconds; nil is 0.
func seconds(s *int32) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s) * time.Second
}

// bidirectional returns a copy of spec.bidirectional with the defaults of the CRD, or nil if the profile proposes nothing.
func bidirectional(gs *v1alpha1.GatewaySync, p *v1alpha1.SyncProfile) *v1alpha1.BidirectionalSpec {
	b := gs.Spec.Bidirectional
	if !b.EnabledFor(p) {
		return nil
	}
	b = b.DeepCopy()
	b.Enabled = true
	b.TargetBranch = cmp.Or(b.TargetBranch, v1alpha1.DefaultTargetBranch)
	b.Debounce = cmp.Or(b.Debounce, v1alpha1.DefaultDebounce)
	b.ConflictStrategy = cmp.Or(b.ConflictStrategy, v1alpha1.StrategyGitWins)
	b.OnClosed = cmp.Or(b.OnClosed, v1alpha1.OnClosedKeep)
	if len(b.WatchPaths) == 0 {
		b.WatchPaths = v1alpha1.DefaultWatchPaths()
	}
	g := &b.Guardrails
	g.MaxFileSize, g.MaxTotalSize = cmp.Or(g.MaxFileSize, v1alpha1.DefaultMaxFileSize), cmp.Or(g.MaxTotalSize, v1alpha1.DefaultMaxTotalSize)
	g.MaxFilesPerPR = cmp.Or(g.MaxFilesPerPR, v1alpha1.DefaultMaxFilesPerPR)
	if g.ExcludePatterns == nil {
		g.ExcludePatterns = v1alpha1.DefaultProposalExcludes()
	}
	return b
}

// snapshots returns a copy of spec.snapshots with the defaults of the CRD, or nil if no snapshots are taken.
func snapshots(gs *v1alpha1.GatewaySync) *v1alpha1.SnapshotsSpec {
	if !gs.TakesSnapshots() {
		return nil
	}
	s := gs.Spec.Snapshots.DeepCopy()
	s.RetentionCount, s.MaxSize = cmp.Or(s.RetentionCount, v1alpha1.DefaultRetentionCount), cmp.Or(s.MaxSize, v1alpha1.DefaultMaxSnapshotSize)
	s.GatewayBackup = cmp.Or(s.GatewayBackup, v1alpha1.GatewayBackupNever)
	return s
}

// autoRollback returns the failures after which the agent rolls the gateway back.
func autoRollback(gs *v1alpha1.GatewaySync) []v1alpha1.AutoRollbackTrigger {
	if gs.AutoRollbackScope() != v1alpha1.AutoRollbackGateway || !gs.TakesSnapshots() {
		return nil
	}
	if a := gs.Spec.AutoRollback; len(a.Triggers) > 0 {
		return slices.Clone(a.Triggers)
	}
	return v1alpha1.AutoRollbackTriggers()
}

// PollingInterval returns how often the lead polls git. An invalid value counts as the default.
func PollingInterval(p *v1alpha1.PollingSpec) time.Duration {
	return durationOr(p.Interval, v1alpha1.MaxDuration, v1alpha1.DefaultPollingInterval)
}

// ProgressDeadline returns how long a sync may take before it is reported as stalled. An invalid value counts as the default.
func ProgressDeadline(s *v1alpha1.GatewaySyncSpec) time.Duration {
	return durationOr(s.ProgressDeadline, v1alpha1.MaxDuration, v1alpha1.DefaultProgressDeadline)
}

// RefreshInterval returns how often a ConfigSync is compared with git and with the cluster. The error names the field.
func RefreshInterval(s *v1alpha1.ConfigSyncSpec) (time.Duration, error) {
	return duration("spec.refreshInterval", s.RefreshInterval, v1alpha1.DefaultRefreshInterval)
}

// ConfigProgressDeadline returns how long a run of a ConfigSync waits until the objects are healthy. The error names the field.
func ConfigProgressDeadline(s *v1alpha1.ConfigSyncSpec) (time.Duration, error) {
	return duration("spec.progressDeadline", s.ProgressDeadline, v1alpha1.DefaultProgressDeadline)
}

// Debounce returns how long the agent waits after the last save before it proposes changes. The error names the field.
func Debounce(b *v1alpha1.BidirectionalSpec) (time.Duration, error) {
	value := cmp.Or(b.Debounce, v1alpha1.DefaultDebounce)
	d, problem := syntax.ParseDuration(value, v1alpha1.MinDuration, v1alpha1.MaxDebounce)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "spec.bidirectional.debounce: %.40q %s", value, problem)
	}
	return d, nil
}

// ValidationTimeout returns how long an answer of the webhook may take. An invalid value counts as the default.
func ValidationTimeout(w *v1alpha1.ValidationWebhook) time.Duration {
	return durationOr(w.Timeout, v1alpha1.MaxValidationTimeout, v1alpha1.DefaultValidationTimeout)
}

// MaxFileBytes returns the maximum size of a proposed file in bytes. The error names the field.
func MaxFileBytes(g *v1alpha1.ProposalGuardrails) (int64, error) {
	return size("spec.bidirectional.guardrails.maxFileSize", cmp.Or(g.MaxFileSize, v1alpha1.DefaultMaxFileSize))
}

// MaxTotalBytes returns the maximum size of a proposal's files together, in bytes. The error names the field.
func MaxTotalBytes(g *v1alpha1.ProposalGuardrails) (int64, error) {
	return size("spec.bidirectional.guardrails.maxTotalSize", cmp.Or(g.MaxTotalSize, v1alpha1.DefaultMaxTotalSize))
}

// size parses the value of a field.
func size(field, value string) (int64, error) {
	n, problem := syntax.ParseSize(value)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%s: %.40q %s", field, value, problem)
	}
	return n, nil
}

// durationOr parses the value of a field, or returns fallback.
func durationOr(value string, most, fallback time.Duration) time.Duration {
	if d, problem := syntax.ParseDuration(value, v1alpha1.MinDuration, most); problem == "" {
		return d
	}
	return fallback
}

// duration parses the value of a field, which is fallback if it is empty.
func duration(field, value string, fallback time.Duration) (time.Duration, error) {
	if value == "" {
		return fallback, nil
	}
	d, problem := syntax.ParseDuration(value, v1alpha1.MinDuration, v1alpha1.MaxDuration)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%s: %.40q %s", field, value, problem)
	}
	return d, nil
}
