package v1alpha1

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Effective holds the settings of one gateway: annotations of its pod override its profile, the profile overrides
// sync.defaults, and those override the defaults of this package.
//
// +kubebuilder:object:generate=false
type Effective struct {
	// Profile is the name of the profile; "" in service-path mode.
	Profile string
	// Mappings in their order. Paths have no trailing slash, and may still be templates.
	Mappings []Mapping
	// ExcludePatterns are the built-in ones and those of the defaults, the profile and the pod, without duplicates.
	ExcludePatterns []string
	// Vars are those of the defaults and the profile, merged.
	Vars map[string]string

	SyncPeriod            time.Duration
	DesignerSessionPolicy DesignerSessionPolicy
	DesignerSessionScope  DesignerSessionScope
	ConflictPolicy        ConflictPolicy
	DriftPolicy           DriftPolicy
	EmbeddedSecretPolicy  EmbeddedSecretPolicy
	Prune                 Prune
	Startup               Startup
	DryRun                bool
	// Paused is true if the GatewaySync or the profile is paused, or if sync.defaults pauses and the profile does not override it.
	Paused bool

	// Bidirectional is how changes on the gateway are proposed, with all defaults filled in; nil if they are not.
	Bidirectional *BidirectionalSpec

	// Snapshots is how snapshots are kept, with all defaults filled in; nil if none are taken.
	Snapshots *SnapshotsSpec

	// AutoRollback lists the failures after which the gateway goes back by itself; empty if its agent does not decide that.
	AutoRollback []AutoRollbackTrigger

	// Windows are the maintenance windows of all gateways, valid; ParseWindows returns those of one.
	Windows []MaintenanceWindow

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

// Effective returns the settings for the gateway of a pod. If profile is empty, the pod's annotation stoker.io/profile
// names the profile; without the annotation it is the profile "default". A GatewaySync without profiles is in
// service-path mode: the mappings come from the pod's annotation stoker.io/service-path.
//
// Effective validates only what this gateway uses, so that a mistake in another profile does not affect it. The error is
// an *Error with ReasonProfileNotFound, ReasonProfilesInvalid or ReasonInvalidAnnotation. Even then Paused is valid (from
// the defaults alone if the profile does not exist), and all other fields are zero.
func (gs *GatewaySync) Effective(profile string, podAnnotations map[string]string) (Effective, error) {
	pod, bad := parsePod(podAnnotations)
	name, p, err := gs.profile(or(profile, pod.profile))
	known := Effective{Paused: gs.pauses(p)}
	if bad != nil {
		return known, bad
	}
	if err != nil {
		return known, err
	}
	if err := gs.checkUsed(name, p); err != nil {
		return known, err
	}
	if p == nil {
		if pod.servicePath == "" {
			return known, newError(ReasonProfileNotFound,
				"spec.sync.profiles is empty and the pod has no annotation %s: add a profile, or annotate the folder of this gateway", AnnotationServicePath)
		}
		p = &SyncProfile{Mappings: servicePathMappings(pod.servicePath, pod.tagProvider)}
	}
	return gs.merge(name, p, pod), nil
}

// profile finds a profile by name. It returns nil and no error in service-path mode.
func (gs *GatewaySync) profile(want string) (string, *SyncProfile, error) {
	profiles := gs.Spec.Sync.Profiles
	name := or(want, DefaultProfile)
	if p, ok := profiles[name]; ok {
		return name, &p, nil
	}
	if len(profiles) == 0 && name == DefaultProfile {
		return "", nil, nil
	}
	known := "has no profiles"
	if len(profiles) > 0 {
		known = "has " + strings.Join(slices.Sorted(maps.Keys(profiles)), ", ")
	}
	advice := "name one of them, or add it"
	if want == "" {
		advice = "name one with the annotation " + AnnotationProfile + ", or add a profile with that name, which counts for pods that name none"
	}
	return "", nil, newError(ReasonProfileNotFound, "profile %.80q does not exist: spec.sync.profiles %.400s; %s", name, known, advice)
}

// pauses reports whether a gateway with profile p is paused; p may be nil.
func (gs *GatewaySync) pauses(p *SyncProfile) bool {
	var own *bool
	if p != nil {
		own = p.Paused
	}
	return gs.Paused() || override(own, gs.Spec.Sync.Defaults.Paused)
}

func (gs *GatewaySync) merge(name string, p *SyncProfile, pod podSettings) Effective {
	d := &gs.Spec.Sync.Defaults
	e := Effective{
		Profile:               name,
		Mappings:              normalised(p.Mappings),
		ExcludePatterns:       union(BuiltinExcludes(), d.ExcludePatterns, p.ExcludePatterns, pod.excludePatterns),
		Vars:                  make(map[string]string, len(d.Vars)+len(p.Vars)),
		SyncPeriod:            or(pod.syncPeriod, seconds(p.SyncPeriod), seconds(d.SyncPeriod), DefaultSyncPeriod),
		DesignerSessionPolicy: or(p.DesignerSessionPolicy, d.DesignerSessionPolicy, DesignerProceed),
		DesignerSessionScope:  or(p.DesignerSessionScope, d.DesignerSessionScope, DesignerScopeProject),
		ConflictPolicy:        or(p.ConflictPolicy, d.ConflictPolicy, ConflictGitWins),
		DriftPolicy:           or(p.DriftPolicy, d.DriftPolicy, DriftReport),
		EmbeddedSecretPolicy:  or(p.EmbeddedSecretPolicy, d.EmbeddedSecretPolicy, EmbeddedSecretWarn),
		Prune:                 or(p.Prune, d.Prune, PruneOwned),
		Startup:               or(p.Startup, d.Startup, StartupUseExisting),
		DryRun:                override(p.DryRun, d.DryRun),
		Paused:                gs.pauses(p),
		Bidirectional:         gs.bidirectional(p),
		Snapshots:             gs.snapshots(),
		AutoRollback:          gs.autoRollback(),
		Windows:               gs.windows(),
		DeploymentMode:        pod.deploymentMode,
		TagProvider:           pod.tagProvider,
		SystemName:            pod.systemName,
		SystemNameTemplate:    pod.systemNameTemplate,
		ServicePath:           pod.servicePath,
	}
	for _, vars := range []map[string]VarValue{d.Vars, p.Vars} {
		for k, v := range vars {
			e.Vars[k] = string(v)
		}
	}
	return e
}

// normalised copies mappings and writes "a/" and "./a" as "a". It does not change the inside of templates.
func normalised(mappings []Mapping) []Mapping {
	out := make([]Mapping, len(mappings))
	for i := range mappings {
		out[i] = *mappings[i].DeepCopy()
		out[i].Source = normalPath(out[i].Source)
		out[i].Destination = normalPath(out[i].Destination)
	}
	return out
}

func normalPath(p string) string {
	if rest, ok := strings.CutPrefix(p, "./"); ok && rest != "" {
		p = rest
	}
	return strings.TrimSuffix(p, "/")
}

// servicePathMappings returns the mappings of a GatewaySync without profiles. Folders of deployment modes are below
// config and are synced with it; the gateway itself overlays the active one.
func servicePathMappings(servicePath, tagProvider string) []Mapping {
	from := func(name string) string {
		if servicePath == "." {
			return name
		}
		return servicePath + "/" + name
	}
	return []Mapping{
		{Source: from("projects"), Destination: "projects", Type: MappingDir},
		{Source: from("config"), Destination: "config", Type: MappingDir},
		{Source: from("udts"), Destination: "config/resources/core/ignition/tag-type-definition/" + tagProvider, Type: MappingDir},
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

// Proposes reports whether changes on a gateway are proposed for any profile, or in service-path mode.
func (gs *GatewaySync) Proposes() bool {
	b, profiles := gs.Spec.Bidirectional, gs.Spec.Sync.Profiles
	if b == nil || len(profiles) == 0 {
		return b != nil && b.Enabled
	}
	for _, p := range profiles {
		if override(p.Bidirectional, b.Enabled) {
			return true
		}
	}
	return false
}

// bidirectional returns a copy of spec.bidirectional with the defaults of the CRD, or nil if the profile proposes nothing.
func (gs *GatewaySync) bidirectional(p *SyncProfile) *BidirectionalSpec {
	b := gs.Spec.Bidirectional
	if b == nil || !override(p.Bidirectional, b.Enabled) {
		return nil
	}
	b = b.DeepCopy()
	b.Enabled = true
	b.TargetBranch = or(b.TargetBranch, DefaultTargetBranch)
	b.Debounce = or(b.Debounce, DefaultDebounce)
	b.ConflictStrategy = or(b.ConflictStrategy, StrategyGitWins)
	b.OnClosed = or(b.OnClosed, OnClosedKeep)
	creates := b.CreatesPR()
	b.CreatePR = &creates
	if len(b.WatchPaths) == 0 {
		b.WatchPaths = DefaultWatchPaths()
	}
	g := &b.Guardrails
	g.MaxFileSize, g.MaxTotalSize = or(g.MaxFileSize, DefaultMaxFileSize), or(g.MaxTotalSize, DefaultMaxTotalSize)
	g.MaxFilesPerPR = or(g.MaxFilesPerPR, DefaultMaxFilesPerPR)
	if g.ExcludePatterns == nil {
		g.ExcludePatterns = DefaultProposalExcludes()
	}
	return b
}
