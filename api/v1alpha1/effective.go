package v1alpha1

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Effective is what counts for one gateway: the annotations of its pod over its profile over sync.defaults over the
// defaults of this package.
//
// +kubebuilder:object:generate=false
type Effective struct {
	// Profile is the name of the profile in force; empty in service-path mode.
	Profile string
	// Mappings in their order. Paths have no slash at the end. They are still templates.
	Mappings []Mapping
	// ExcludePatterns are those that are built in, of the defaults, the profile and the pod, each once.
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
	// Paused is true where the GatewaySync or the profile is paused, or sync.defaults are and the profile does not say otherwise.
	Paused bool

	// Bidirectional is how changes on the gateway are proposed, with all defaults filled in; nil if they are not.
	Bidirectional *BidirectionalSpec

	// Snapshots is how snapshots are kept, with all defaults filled in; nil if none are taken.
	Snapshots *SnapshotsSpec

	// AutoRollback is what makes the gateway go back by itself after a sync that it cannot load; none if its agent does not decide that.
	AutoRollback []AutoRollbackTrigger

	// Windows are the maintenance windows of all gateways, valid; ParseWindows returns those of one.
	Windows []MaintenanceWindow

	// DeploymentMode is the gateway's mode; empty where it runs none.
	DeploymentMode string
	TagProvider    string
	// SystemName, or else SystemNameTemplate, is what systemName is patched to; with neither it is left alone.
	SystemName         string
	SystemNameTemplate string
	// ServicePath is the annotated folder. Mappings are made from it in service-path mode only; there, none of their
	// sources is required one by one, but a commit that has none of them is a wrong path.
	ServicePath string
}

// Effective returns what counts for the gateway of a pod. An empty profile stands for the pod's annotation
// stoker.io/profile, and else for the profile that is called default. A GatewaySync without profiles is in service-path
// mode: the mappings follow from the pod's annotation stoker.io/service-path.
//
// Only what this gateway uses is looked at: a mistake in another profile is not its problem. The error is an *Error with
// ReasonProfileNotFound, ReasonProfilesInvalid or ReasonInvalidAnnotation. With one, Paused is what is said of it all the
// same, by the defaults alone where the profile is not there, and the rest is zero.
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

// profile finds a profile by name; nil without an error is service-path mode.
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
	return "", nil, newError(ReasonProfileNotFound, "profile %.80q is not there: spec.sync.profiles %.400s; %s", name, known, advice)
}

// pauses reports whether a gateway with profile p is paused; p is nil where it has none.
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

// normalised copies mappings, with "a/" and "./a" as "a". What stands inside of templates is not touched.
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

// servicePathMappings are the mappings of a GatewaySync without profiles. The folders of deployment modes lie below
// config and come with it; the gateway itself overlays the one that is active.
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
