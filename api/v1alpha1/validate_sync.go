package v1alpha1

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxProfiles = 64
	maxMappings = 64
	maxPatches  = 32
	maxSet      = 64
	maxVars     = 128
	maxVarKey   = 128
	maxValue    = 4096
	maxSetKey   = 512
)

// setKey matches the path of a value: members and indexes joined by dots. It allows no gjson modifiers or queries: a
// literal . | # @ * ? or \ needs a \ before it.
var setKey = regexp.MustCompile(`^([^\\.|#@*?\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])+(\.([^\\.|#@*?\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])+)*$`)

func validateSync(path *field.Path, sync *SyncSpec) field.ErrorList {
	errs := validateDefaults(path.Child("defaults"), &sync.Defaults)
	profiles := path.Child("profiles")
	if len(sync.Profiles) > maxProfiles {
		return append(errs, field.TooMany(profiles, len(sync.Profiles), maxProfiles))
	}
	for _, name := range slices.Sorted(maps.Keys(sync.Profiles)) {
		p := sync.Profiles[name]
		errs = append(errs, validateProfile(member(profiles, name), name, &p, sync.Defaults.Prune)...)
	}
	return errs
}

func validateDefaults(path *field.Path, d *SyncDefaults) field.ErrorList {
	errs := validatePatterns(path.Child("excludePatterns"), d.ExcludePatterns, maxPatterns, maxPattern, PathPatternProblem)
	errs = append(errs, validateVars(path.Child("vars"), d.Vars)...)
	errs = append(errs, validatePeriod(path.Child("syncPeriod"), d.SyncPeriod)...)
	return append(errs, validatePolicies(path, policies{
		d.DesignerSessionPolicy, d.DesignerSessionScope, d.ConflictPolicy, d.DriftPolicy, d.EmbeddedSecretPolicy, d.Prune, d.Startup})...)
}

func validateProfile(path *field.Path, name string, p *SyncProfile, prune Prune) field.ErrorList {
	var errs field.ErrorList
	if problem := profileNameProblem(name); problem != "" {
		errs = append(errs, invalid(path, name, problem))
	}
	switch n := len(p.Mappings); {
	case n == 0:
		errs = append(errs, field.Required(path.Child("mappings"), "add at least one mapping, or remove the profile"))
	case n > maxMappings:
		return append(errs, field.TooMany(path.Child("mappings"), n, maxMappings))
	}
	for i := range p.Mappings {
		errs = append(errs, validateMapping(path.Child("mappings").Index(i), &p.Mappings[i], or(p.Prune, prune))...)
	}
	errs = append(errs, validatePatterns(path.Child("excludePatterns"), p.ExcludePatterns, maxPatterns, maxPattern, PathPatternProblem)...)
	errs = append(errs, validateVars(path.Child("vars"), p.Vars)...)
	errs = append(errs, validatePeriod(path.Child("syncPeriod"), p.SyncPeriod)...)
	return append(errs, validatePolicies(path, policies{
		p.DesignerSessionPolicy, p.DesignerSessionScope, p.ConflictPolicy, p.DriftPolicy, p.EmbeddedSecretPolicy, p.Prune, p.Startup})...)
}

// +kubebuilder:object:generate=false
type policies struct {
	designer DesignerSessionPolicy
	scope    DesignerSessionScope
	conflict ConflictPolicy
	drift    DriftPolicy
	embedded EmbeddedSecretPolicy
	prune    Prune
	startup  Startup
}

func validatePolicies(path *field.Path, p policies) field.ErrorList {
	errs := oneOf(path.Child("designerSessionPolicy"), p.designer, DesignerProceed, DesignerWait, DesignerFail)
	errs = append(errs, oneOf(path.Child("designerSessionScope"), p.scope, DesignerScopeProject, DesignerScopeGateway)...)
	errs = append(errs, oneOf(path.Child("conflictPolicy"), p.conflict, ConflictGitWins, ConflictHold, ConflictGatewayWins)...)
	errs = append(errs, oneOf(path.Child("driftPolicy"), p.drift, DriftReport, DriftRepair)...)
	errs = append(errs, oneOf(path.Child("embeddedSecretPolicy"), p.embedded, EmbeddedSecretWarn, EmbeddedSecretRefuse)...)
	errs = append(errs, oneOf(path.Child("prune"), p.prune, PruneOwned, PruneMirror, PruneNone)...)
	return append(errs, oneOf(path.Child("startup"), p.startup, StartupUseExisting, StartupWait)...)
}

func validatePeriod(path *field.Path, period *int32) field.ErrorList {
	if period == nil || *period >= minSyncPeriod && *period <= maxSyncPeriod {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *period, "use seconds, from 5 to 3600")}
}

func validateVars(path *field.Path, vars map[string]VarValue) field.ErrorList {
	if len(vars) > maxVars {
		return field.ErrorList{field.TooMany(path, len(vars), maxVars)}
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if name == "" || utf8.RuneCountInString(name) > maxVarKey {
			errs = append(errs, invalid(path, name, "the name of a variable has from 1 to 128 characters"))
		}
		if utf8.RuneCountInString(string(vars[name])) > maxValue {
			errs = append(errs, field.TooLong(member(path, name), nil, maxValue))
		}
	}
	return errs
}

func validateMapping(path *field.Path, m *Mapping, prune Prune) field.ErrorList {
	errs := validatePath(path.Child("source"), m.Source)
	errs = append(errs, validatePath(path.Child("destination"), m.Destination)...)
	destination := normalPath(m.Destination)
	if destination == ".stoker" || strings.HasPrefix(destination, ".stoker/") {
		errs = append(errs, invalid(path.Child("destination"), m.Destination, "lies in .stoker, the agent's own folder; choose another one"))
	}
	if m.Type == MappingFile && destination == "." {
		errs = append(errs, invalid(path.Child("destination"), m.Destination, "does not name the file; write its path"))
	}
	if m.Type != MappingFile && destination == "." && prune == PruneMirror {
		errs = append(errs, invalid(path.Child("destination"), m.Destination, "would empty the whole data directory, because of prune: mirror; map the folders below it"))
	}
	errs = append(errs, oneOf(path.Child("type"), m.Type, MappingDir, MappingFile)...)
	if len(m.Patches) > maxPatches {
		return append(errs, field.TooMany(path.Child("patches"), len(m.Patches), maxPatches))
	}
	for i := range m.Patches {
		errs = append(errs, validatePatch(path.Child("patches").Index(i), m.Type, &m.Patches[i])...)
	}
	return errs
}

func validatePath(path *field.Path, p string) field.ErrorList {
	if problem := pathProblem(p); problem != "" {
		return field.ErrorList{invalid(path, p, problem)}
	}
	return nil
}

func validatePatch(path *field.Path, kind MappingType, p *Patch) field.ErrorList {
	errs := validatePatchFile(path.Child("file"), kind, p.File)
	set := path.Child("set")
	switch n := len(p.Set); {
	case n == 0:
		return append(errs, field.Required(set, "say which values to set, or remove the patch"))
	case n > maxSet:
		return append(errs, field.TooMany(set, n, maxSet))
	}
	for _, key := range slices.Sorted(maps.Keys(p.Set)) {
		if utf8.RuneCountInString(key) > maxSetKey || !setKey.MatchString(key) {
			errs = append(errs, invalid(set, key, `is not the path of a value; join members with dots, and write a literal . | # @ * ? or \ with a \ before it`))
		}
		if utf8.RuneCountInString(string(p.Set[key])) > maxValue {
			errs = append(errs, field.TooLong(member(set, key), nil, maxValue))
		}
	}
	return errs
}

func validatePatchFile(path *field.Path, kind MappingType, file string) field.ErrorList {
	switch {
	case file == "" && kind == MappingDir:
		return field.ErrorList{field.Required(path, "say which files of the folder are patched")}
	case file == "":
		return nil
	case kind == MappingFile:
		return field.ErrorList{field.Forbidden(path, "a patch of a file mapping names no file: it is the mapped one")}
	case utf8.RuneCountInString(file) > maxPattern:
		return field.ErrorList{field.TooLong(path, nil, maxPattern)}
	case !fileRegexp.MatchString(file) || !utf8.ValidString(file):
		return field.ErrorList{invalid(path, file, "is not relative to the destination; leave out .. and . between slashes, a / at either end, and control characters")}
	}
	if problem := PathPatternProblem(file); problem != "" {
		return field.ErrorList{invalid(path, file, problem)}
	}
	return nil
}

// checkUsed validates the parts of the spec that one gateway uses: the defaults, its profile p, and the maintenance
// windows. p is nil if the GatewaySync has no profiles (service-path mode).
func (gs *GatewaySync) checkUsed(name string, p *SyncProfile) error {
	path := field.NewPath("spec", "sync")
	errs := validateDefaults(path.Child("defaults"), &gs.Spec.Sync.Defaults)
	if p != nil {
		errs = append(errs, validateProfile(member(path.Child("profiles"), name), name, p, gs.Spec.Sync.Defaults.Prune)...)
	}
	_, windows := ParseWindows(gs.windows(), "")
	if errs = append(errs, windows...); len(errs) == 0 {
		return nil
	}
	more := ""
	if len(errs) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(errs)-1)
	}
	return newError(ReasonProfilesInvalid, "%w%s", errs[0], more)
}
