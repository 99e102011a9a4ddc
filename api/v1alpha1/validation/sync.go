package validation

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
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

// setKey matches the path of a value: members and indexes joined by dots. It excludes the modifiers and queries of gjson: a literal
// . | # @ * ? or \ must have a \ before it.
var setKey = regexp.MustCompile(`^([^\\.|#@*?\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])+(\.([^\\.|#@*?\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])+)*$`)

func validateSync(path *field.Path, sync *v1alpha1.SyncSpec) field.ErrorList {
	errs := validateSettings(path.Child("defaults"), &sync.Defaults)
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

// validateProfile checks a profile. prune is that of the defaults.
func validateProfile(path *field.Path, name string, p *v1alpha1.SyncProfile, prune v1alpha1.Prune) field.ErrorList {
	var errs field.ErrorList
	if problem := ProfileNameProblem(name); problem != "" {
		errs = append(errs, fielderr.Invalid(path, name, problem))
	}
	switch n := len(p.Mappings); {
	case n == 0:
		errs = append(errs, field.Required(path.Child("mappings"), "add at least one mapping, or remove the profile"))
	case n > maxMappings:
		return append(errs, field.TooMany(path.Child("mappings"), n, maxMappings))
	}
	for i := range p.Mappings {
		errs = append(errs, validateMapping(path.Child("mappings").Index(i), &p.Mappings[i], cmp.Or(p.Prune, prune))...)
	}
	return append(errs, validateSettings(path, &p.SyncSettings)...)
}

// validateSettings checks the settings that profiles and the defaults have in common.
func validateSettings(path *field.Path, p *v1alpha1.SyncSettings) field.ErrorList {
	errs := validatePatterns(path.Child("excludePatterns"), p.ExcludePatterns, MaxPatterns, maxPattern, PathPatternProblem)
	errs = append(errs, validateVars(path.Child("vars"), p.Vars)...)
	errs = append(errs, validatePeriod(path.Child("syncPeriod"), p.SyncPeriod)...)
	errs = append(errs, fielderr.OneOf(path.Child("designerSessionPolicy"), p.DesignerSessionPolicy, v1alpha1.DesignerProceed, v1alpha1.DesignerWait, v1alpha1.DesignerFail)...)
	errs = append(errs, fielderr.OneOf(path.Child("designerSessionScope"), p.DesignerSessionScope, v1alpha1.DesignerScopeProject, v1alpha1.DesignerScopeGateway)...)
	errs = append(errs, fielderr.OneOf(path.Child("conflictPolicy"), p.ConflictPolicy, v1alpha1.ConflictGitWins, v1alpha1.ConflictHold, v1alpha1.ConflictGatewayWins)...)
	errs = append(errs, fielderr.OneOf(path.Child("driftPolicy"), p.DriftPolicy, v1alpha1.DriftReport, v1alpha1.DriftRepair)...)
	errs = append(errs, fielderr.OneOf(path.Child("embeddedSecretPolicy"), p.EmbeddedSecretPolicy, v1alpha1.EmbeddedSecretWarn, v1alpha1.EmbeddedSecretRefuse)...)
	errs = append(errs, fielderr.OneOf(path.Child("prune"), p.Prune, v1alpha1.PruneOwned, v1alpha1.PruneMirror, v1alpha1.PruneNone)...)
	return append(errs, fielderr.OneOf(path.Child("startup"), p.Startup, v1alpha1.StartupUseExisting, v1alpha1.StartupWait)...)
}

func validatePeriod(path *field.Path, period *int32) field.ErrorList {
	if period == nil || IsSyncPeriod(int(*period)) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *period, fmt.Sprintf("use seconds, from %v to %v", v1alpha1.MinSyncPeriod.Seconds(), v1alpha1.MaxSyncPeriod.Seconds()))}
}

// IsSyncPeriod reports whether a number of seconds is allowed as the sync period.
func IsSyncPeriod(seconds int) bool {
	return seconds >= int(v1alpha1.MinSyncPeriod.Seconds()) && seconds <= int(v1alpha1.MaxSyncPeriod.Seconds())
}

func validateVars(path *field.Path, vars map[string]v1alpha1.VarValue) field.ErrorList {
	if len(vars) > maxVars {
		return field.ErrorList{field.TooMany(path, len(vars), maxVars)}
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if name == "" || utf8.RuneCountInString(name) > maxVarKey {
			errs = append(errs, fielderr.Invalid(path, name, "the name of a variable has from 1 to 128 characters"))
		}
		if utf8.RuneCountInString(string(vars[name])) > maxValue {
			errs = append(errs, field.TooLongCharacters(member(path, name), "", maxValue))
		}
	}
	return errs
}

func validateMapping(path *field.Path, m *v1alpha1.Mapping, prune v1alpha1.Prune) field.ErrorList {
	errs := validatePath(path.Child("source"), m.Source)
	errs = append(errs, validatePath(path.Child("destination"), m.Destination)...)
	destination := syntax.NormalPath(m.Destination)
	if destination == ".stoker" || strings.HasPrefix(destination, ".stoker/") {
		errs = append(errs, fielderr.Invalid(path.Child("destination"), m.Destination, "is in .stoker, the folder of the agent; choose another one"))
	}
	if m.Type == v1alpha1.MappingFile && destination == "." {
		errs = append(errs, fielderr.Invalid(path.Child("destination"), m.Destination, "does not name the file; write its path"))
	}
	if m.Type != v1alpha1.MappingFile && destination == "." && prune == v1alpha1.PruneMirror {
		errs = append(errs, fielderr.Invalid(path.Child("destination"), m.Destination, "would empty the whole data directory, because of prune: mirror; map the folders below it"))
	}
	errs = append(errs, fielderr.OneOf(path.Child("type"), m.Type, v1alpha1.MappingDir, v1alpha1.MappingFile)...)
	if len(m.Patches) > maxPatches {
		return append(errs, field.TooMany(path.Child("patches"), len(m.Patches), maxPatches))
	}
	for i := range m.Patches {
		errs = append(errs, validatePatch(path.Child("patches").Index(i), m.Type, &m.Patches[i])...)
	}
	return errs
}

func validatePath(path *field.Path, p string) field.ErrorList {
	if problem := PathProblem(p); problem != "" {
		return field.ErrorList{fielderr.Invalid(path, p, problem)}
	}
	return nil
}

func validatePatch(path *field.Path, mapping v1alpha1.MappingType, p *v1alpha1.Patch) field.ErrorList {
	errs := validatePatchFile(path.Child("file"), mapping, p.File)
	set := path.Child("set")
	switch n := len(p.Set); {
	case n == 0:
		return append(errs, field.Required(set, "name the values to set, or remove the patch"))
	case n > maxSet:
		return append(errs, field.TooMany(set, n, maxSet))
	}
	for _, key := range slices.Sorted(maps.Keys(p.Set)) {
		switch {
		case utf8.RuneCountInString(key) > maxSetKey:
			errs = append(errs, field.TooLongCharacters(set, key, maxSetKey))
		case !setKey.MatchString(key):
			errs = append(errs, fielderr.Invalid(set, key, `is not the path of a value; join members with dots, and write a literal . | # @ * ? or \ with a \ before it`))
		}
		if utf8.RuneCountInString(string(p.Set[key])) > maxValue {
			errs = append(errs, field.TooLongCharacters(member(set, key), "", maxValue))
		}
	}
	return errs
}

func validatePatchFile(path *field.Path, mapping v1alpha1.MappingType, file string) field.ErrorList {
	switch {
	case file == "" && mapping == v1alpha1.MappingDir:
		return field.ErrorList{field.Required(path, "name the files of the folder to patch")}
	case file == "": // without a type, git decides whether the source is a file
		return nil
	case mapping == v1alpha1.MappingFile:
		return field.ErrorList{field.Forbidden(path, "a patch of a file mapping must not name a file: it patches the mapped file")}
	case utf8.RuneCountInString(file) > maxPattern:
		return field.ErrorList{field.TooLongCharacters(path, "", maxPattern)}
	case !fileRegexp.MatchString(file) || !utf8.ValidString(file):
		return field.ErrorList{fielderr.Invalid(path, file, "is not relative to the destination; leave out .. and . between slashes, a / at either end, and control characters")}
	}
	if problem := PathPatternProblem(file); problem != "" {
		return field.ErrorList{fielderr.Invalid(path, file, problem)}
	}
	return nil
}
