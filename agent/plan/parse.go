package plan

import (
	"fmt"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// ParseRules reads what counts for one gateway. Its errors are ProfilesInvalid, or what ParsePath says, and name the
// field. Limits that are zero are the default ones.
func ParseRules(e v1alpha1.Effective, l Limits) (Rules, error) {
	r := Rules{AnySource: e.Profile == "" && len(e.Mappings) > 0, Limits: l}
	if e.SystemName != "" || e.SystemNameTemplate != "" {
		return Rules{}, failure.New(v1alpha1.ReasonProfilesInvalid, "the annotations %s and %s are not supported yet: "+
			"remove them and set systemName in git", v1alpha1.AnnotationSystemName, v1alpha1.AnnotationSystemNameTemplate)
	}
	for i, m := range e.Mappings {
		parsed, err := parseMapping(m)
		if err != nil {
			return Rules{}, inMapping(i, err)
		}
		r.Mappings = append(r.Mappings, parsed)
	}
	var err error
	if r.Excludes, err = NewExcludes(e.ExcludePatterns); err != nil {
		return Rules{}, err
	}
	switch e.ConflictPolicy {
	case v1alpha1.ConflictGitWins, "":
		r.Conflict = GitWins
	case v1alpha1.ConflictHold:
		r.Conflict = Hold
	case v1alpha1.ConflictGatewayWins:
		r.Conflict = GatewayWins
	default:
		return Rules{}, unknown("conflictPolicy", string(e.ConflictPolicy), "gitWins, hold or gatewayWins")
	}
	switch e.Prune {
	case v1alpha1.PruneOwned, "":
		r.Prune = PruneOwned
	case v1alpha1.PruneMirror:
		r.Prune = PruneMirror
	case v1alpha1.PruneNone:
		r.Prune = PruneNone
	default:
		return Rules{}, unknown("prune", string(e.Prune), "owned, mirror or none")
	}
	return NewRules(r)
}

func parseMapping(m v1alpha1.Mapping) (Mapping, error) {
	unsupported := func(field string) (Mapping, error) {
		return Mapping{}, failure.New(v1alpha1.ReasonProfilesInvalid, "%s is not supported yet: remove it", field)
	}
	switch {
	case m.Template:
		return unsupported("template: true")
	case len(m.Patches) > 0:
		return unsupported("patches")
	case strings.Contains(m.Source, "{{"):
		return unsupported("a template in source")
	case strings.Contains(m.Destination, "{{"):
		return unsupported("a template in destination")
	}
	var parsed Mapping
	var err error
	if parsed.Source, err = ParsePath(m.Source); err != nil {
		return Mapping{}, inField("source", err)
	}
	if parsed.Destination, err = ParsePath(m.Destination); err != nil {
		return Mapping{}, inField("destination", err)
	}
	switch m.Type {
	case "":
	case v1alpha1.MappingDir:
		parsed.Kind = DirSource
	case v1alpha1.MappingFile:
		parsed.Kind = FileSource
	default:
		return Mapping{}, unknown("type", string(m.Type), "dir or file")
	}
	parsed.Required = m.Required
	return parsed, nil
}

func unknown(field, value, want string) error {
	return failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %q is not known; use %s", field, value, want)
}

func inMapping(i int, err error) error { return inField(fmt.Sprintf("mappings[%d]", i), err) }

// inField names the field before the text; the reason stays.
func inField(field string, err error) error {
	return failure.New(failure.Reason(err, v1alpha1.ReasonProfilesInvalid), "%s: %w", field, err)
}
