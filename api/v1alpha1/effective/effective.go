// Package effective computes the settings of one gateway from the spec of its GatewaySync and the annotations of its pod.
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
	"stoker.io/stoker/api/v1alpha1/validation"
)

// Settings are the settings of one gateway: annotations of its pod override its profile, the profile overrides
// sync.defaults, and those override the defaults of this package.
type Settings struct {
	// Profile is the name of the profile; "" in service-path mode.
	Profile string
	// Mappings in their order. Paths have no trailing slash, and may still be templates.
	Mappings []v1alpha1.Mapping
	// ExcludePatterns are the built-in ones and those of the defaults, the profile and the pod, without duplicates.
	ExcludePatterns []string
	// Vars are those of the defaults and the profile, merged.
	Vars map[string]string

	SyncPeriod            time.Duration
	DesignerSessionPolicy v1alpha1.DesignerSessionPolicy
	DesignerSessionScope  v1alpha1.DesignerSessionScope
	ConflictPolicy        v1alpha1.ConflictPolicy
	DriftPolicy           v1alpha1.DriftPolicy
	EmbeddedSecretPolicy  v1alpha1.EmbeddedSecretPolicy
	Prune                 v1alpha1.Prune
	Startup               v1alpha1.Startup
	DryRun                bool
	// Paused is true if the GatewaySync or the profile is paused, or if sync.defaults pauses and the profile does not override it.
	Paused bool

	// Bidirectional is how changes on the gateway are proposed, with all defaults filled in; nil if they are not.
	Bidirectional *v1alpha1.BidirectionalSpec

	// Snapshots is how snapshots are kept, with all defaults filled in; nil if none are taken.
	Snapshots *v1alpha1.SnapshotsSpec

	// AutoRollback lists the failures after which the gateway goes back by itself; empty if its agent does not decide that.
	AutoRollback []v1alpha1.AutoRollbackTrigger

	// Windows are the maintenance windows of all gateways, valid; ParseWindows returns those of one.
	Windows []v1alpha1.MaintenanceWindow

	// DeploymentMode is the gateway's deployment mode; "" if it has none.
	DeploymentMode string
	TagProvider    string
	// SystemName, or else SystemNameTemplate, becomes the systemName of the gateway. If both are empty, systemName is not
	// changed.
	SystemName         string
	SystemNameTemplate string
	// ServicePath is the annotated folder. Only in service-path mode do mappings come from it; each of their sources may
	// then be missing, but a commit without any of them means that the path is wrong.
	ServicePath string
}

// Of returns the settings for the gateway of a pod. If profile is empty, the pod's annotation stoker.io/profile
// names the profile; without the annotation it is the profile "default". A GatewaySync without profiles is in
// service-path mode: the mappings come from the pod's annotation stoker.io/service-path.
//
// Of validates only what this gateway uses, so that a mistake in another profile does not affect it. The error is
// an *Error with ReasonProfileNotFound, ReasonProfilesInvalid or ReasonInvalidAnnotation. Even then Paused is valid (from
// the defaults alone if the profile does not exist), and all other fields are zero.
func Of(gs *v1alpha1.GatewaySync, profile string, podAnnotations map[string]string) (Settings, error) {
	pod, bad := parsePod(podAnnotations)
	name, p, err := findProfile(gs, cmp.Or(profile, pod.profile))
	known := Settings{Paused: pauses(gs, p)}
	if bad != nil {
		return known, bad
	}
	if err != nil {
		return known, err
	}
	if errs := validation.ForGateway(gs, name, p); len(errs) > 0 {
		return known, invalidSpec(errs)
	}
	if p == nil {
		if pod.servicePath == "" {
			return known, v1alpha1.NewError(v1alpha1.ReasonProfileNotFound,
				"spec.sync.profiles is empty and the pod has no annotation %s: add a profile, or annotate the folder of this gateway", v1alpha1.AnnotationServicePath)
		}
		p = &v1alpha1.SyncProfile{Mappings: servicePathMappings(pod.servicePath, pod.tagProvider)}
	}
	return merge(gs, name, p, pod), nil
}

// invalidSpec returns the first of the errors, and how many more there are.
func invalidSpec(errs field.ErrorList) error {
	more := ""
	if len(errs) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(errs)-1)
	}
	return v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%w%s", errs[0], more)
}

// findProfile finds a profile by name. It returns nil and no error in service-path mode.
func findProfile(gs *v1alpha1.GatewaySync, want string) (string, *v1alpha1.SyncProfile, error) {
	profiles := gs.Spec.Sync.Profiles
	name := cmp.Or(want, v1alpha1.DefaultProfile)
	if p, ok := profiles[name]; ok {
		return name, &p, nil
	}
	if len(profiles) == 0 && name == v1alpha1.DefaultProfile {
		return "", nil, nil
	}
	known := "has no profiles"
	if len(profiles) > 0 {
		known = "has " + strings.Join(slices.Sorted(maps.Keys(profiles)), ", ")
	}
	advice := "name one of them, or add it"
	if want == "" {
		advice = "name one with the annotation " + v1alpha1.AnnotationProfile + ", or add a profile with that name, which counts for pods that name none"
	}
	return "", nil, v1alpha1.NewError(v1alpha1.ReasonProfileNotFound, "profile %.80q does not exist: spec.sync.profiles %.400s; %s", name, known, advice)
}

// pauses reports whether a gateway with profile p is paused; p may be nil.
func pauses(gs *v1alpha1.GatewaySync, p *v1alpha1.SyncProfile) bool {
	var own *bool
	if p != nil {
		own = p.Paused
	}
	return gs.Paused() || override(own, gs.Spec.Sync.Defaults.Paused)
}

func merge(gs *v1alpha1.GatewaySync, name string, p *v1alpha1.SyncProfile, pod podSettings) Settings {
	d := &gs.Spec.Sync.Defaults
	e := Settings{
		Profile:               name,
		Mappings:              normalised(p.Mappings),
		ExcludePatterns:       union(v1alpha1.BuiltinExcludes(), d.ExcludePatterns, p.ExcludePatterns, pod.excludePatterns),
		Vars:                  make(map[string]string, len(d.Vars)+len(p.Vars)),
		SyncPeriod:            cmp.Or(pod.syncPeriod, seconds(p.SyncPeriod), seconds(d.SyncPeriod), v1alpha1.DefaultSyncPeriod),
		DesignerSessionPolicy: cmp.Or(p.DesignerSessionPolicy, d.DesignerSessionPolicy, v1alpha1.DesignerProceed),
		DesignerSessionScope:  cmp.Or(p.DesignerSessionScope, d.DesignerSessionScope, v1alpha1.DesignerScopeProject),
		ConflictPolicy:        cmp.Or(p.ConflictPolicy, d.ConflictPolicy, v1alpha1.ConflictGitWins),
		DriftPolicy:           cmp.Or(p.DriftPolicy, d.DriftPolicy, v1alpha1.DriftReport),
		EmbeddedSecretPolicy:  cmp.Or(p.EmbeddedSecretPolicy, d.EmbeddedSecretPolicy, v1alpha1.EmbeddedSecretWarn),
		Prune:                 cmp.Or(p.Prune, d.Prune, v1alpha1.PruneOwned),
		Startup:               cmp.Or(p.Startup, d.Startup, v1alpha1.StartupUseExisting),
		DryRun:                override(p.DryRun, d.DryRun),
		Paused:                pauses(gs, p),
		Bidirectional:         bidirectional(gs, p),
		Snapshots:             snapshots(gs),
		AutoRollback:          autoRollback(gs),
		Windows:               gs.MaintenanceWindows(),
		DeploymentMode:        pod.deploymentMode,
		TagProvider:           pod.tagProvider,
		SystemName:            pod.systemName,
		SystemNameTemplate:    pod.systemNameTemplate,
		ServicePath:           pod.servicePath,
	}
	for _, vars := range []map[string]v1alpha1.VarValue{d.Vars, p.Vars} {
		for k, v := range vars {
			e.Vars[k] = string(v)
		}
	}
	return e
}

// normalised copies mappings and writes "a/" and "./a" as "a". It does not change the inside of templates.
func normalised(mappings []v1alpha1.Mapping) []v1alpha1.Mapping {
	out := make([]v1alpha1.Mapping, len(mappings))
	for i := range mappings {
		out[i] = *mappings[i].DeepCopy()
		out[i].Source = v1alpha1.NormalPath(out[i].Source)
		out[i].Destination = v1alpha1.NormalPath(out[i].Destination)
	}
	return out
}

// servicePathMappings returns the mappings of a GatewaySync without profiles. Folders of deployment modes are below
// config and are synced with it; the gateway itself overlays the active one.
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

func union(lists ...[]string) []string {
	var out []string
	seen := map[string]bool{}
	for _, s := range slices.Concat(lists...) {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

func seconds(s *int32) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s) * time.Second
}

func override(value *bool, otherwise bool) bool {
	if value == nil {
		return otherwise
	}
	return *value
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
	creates := b.CreatesPR()
	b.CreatePR = &creates
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

// autoRollback returns what makes a gateway go back by itself; none if its agent does not decide that.
func autoRollback(gs *v1alpha1.GatewaySync) []v1alpha1.AutoRollbackTrigger {
	if gs.AutoRollbackScope() != v1alpha1.AutoRollbackGateway || !gs.TakesSnapshots() {
		return nil
	}
	if a := gs.Spec.AutoRollback; len(a.Triggers) > 0 {
		return slices.Clone(a.Triggers)
	}
	return v1alpha1.AutoRollbackTriggers()
}
