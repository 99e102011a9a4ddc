package plan

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"

	"stoker.io/stoker/agent/plan/render"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// ParseRules returns the rules of one gateway at one commit, and renders the templates in them. f has the facts of the
// gateway with the ref and the commit to deliver. Vars, deployment mode and tag provider come from e. Errors are
// ProfilesInvalid, TemplateFailed, UnsafePath or LimitExceeded, and name the field. Zero limits mean the defaults.
func ParseRules(e effective.Settings, f Facts, l Limits) (Rules, error) {
	f.Vars, f.DeploymentMode, f.TagProvider = e.Vars, e.DeploymentMode, e.TagProvider
	r := Rules{AnySource: e.Profile == "" && len(e.Mappings) > 0, Limits: l, Facts: f}
	for i, m := range e.Mappings {
		parsed, err := parseMapping(m, &f)
		if err != nil {
			return Rules{}, inField(fmt.Sprintf("mappings[%d]", i), err)
		}
		r.Mappings = append(r.Mappings, parsed)
	}
	if err := r.nameSystem(e); err != nil {
		return Rules{}, err
	}
	var err error
	if r.Excludes, err = NewExcludes(e.ExcludePatterns); err != nil {
		return Rules{}, err
	}
	var known bool
	if r.Conflict, known = conflictPolicies[e.ConflictPolicy]; !known {
		return Rules{}, unknown("conflictPolicy", string(e.ConflictPolicy), "gitWins, hold or gatewayWins")
	}
	if r.Prune, known = prunes[e.Prune]; !known {
		return Rules{}, unknown("prune", string(e.Prune), "owned, mirror or none")
	}
	return NewRules(r)
}

var (
	conflictPolicies = map[v1alpha1.ConflictPolicy]ConflictPolicy{
		"": GitWins, v1alpha1.ConflictGitWins: GitWins, v1alpha1.ConflictHold: Hold, v1alpha1.ConflictGatewayWins: GatewayWins,
	}
	prunes = map[v1alpha1.Prune]Prune{
		"": PruneOwned, v1alpha1.PruneOwned: PruneOwned, v1alpha1.PruneMirror: PruneMirror, v1alpha1.PruneNone: PruneNone,
	}
	sourceKinds = map[v1alpha1.MappingType]SourceKind{
		"": DirOrFile, v1alpha1.MappingDir: DirSource, v1alpha1.MappingFile: FileSource,
	}
)

// systemNameKey is the key of the gateway's name in its system properties.
const systemNameKey = "systemName"

// nameSystem sets SystemName from one of the two annotations for the gateway's system name, if the pod has one.
func (r *Rules) nameSystem(e effective.Settings) error {
	if e.SystemName != "" {
		r.SystemName = Setting{Path: systemNameKey, Value: e.SystemName}
		return nil
	}
	if e.SystemNameTemplate == "" {
		return nil
	}
	const field = "annotation " + v1alpha1.AnnotationSystemNameTemplate
	s, err := parseSetting(systemNameKey, field, e.SystemNameTemplate, &r.Facts)
	if err == nil && (s.Value == "" || strings.ContainsFunc(s.Value, unicode.IsControl)) {
		err = failure.New(v1alpha1.ReasonTemplateFailed, "%s gives %q, which is not a valid gateway name", field, s.Value)
	}
	r.SystemName = s
	return err
}

func parseMapping(m v1alpha1.Mapping, f *Facts) (parsed Mapping, err error) {
	if parsed.Source, err = parsePathTemplate("source", m.Source, f); err != nil {
		return Mapping{}, err
	}
	if render.IsTemplate([]byte(m.Source)) {
		parsed.SourceTemplate = m.Source
	}
	if parsed.Destination, err = parsePathTemplate("destination", m.Destination, f); err != nil {
		return Mapping{}, err
	}
	parsed.Template = m.Template
	if len(m.Patches) > maxPatterns {
		return Mapping{}, failure.New(v1alpha1.ReasonProfilesInvalid, "patches has %d entries; at most %d are allowed", len(m.Patches), maxPatterns)
	}
	for i, p := range m.Patches {
		patch, err := parsePatch(p, f)
		if err != nil {
			return Mapping{}, inField(fmt.Sprintf("patches[%d]", i), err)
		}
		parsed.Patches = append(parsed.Patches, patch)
	}
	var known bool
	if parsed.Kind, known = sourceKinds[m.Type]; !known {
		return Mapping{}, unknown("type", string(m.Type), "dir or file")
	}
	parsed.Required = m.Required
	return parsed, nil
}

// parsePathTemplate renders a path and parses the result, so that a variable can escape no more than a literal path.
func parsePathTemplate(field, text string, f *Facts) (Path, error) {
	rendered, _, err := render.Text(field, text, f)
	if err != nil {
		return "", err
	}
	parts, err := render.Parts(field, text, f)
	if err != nil {
		return "", err
	}
	if hasEmptyPart(parts) {
		return "", failure.New(v1alpha1.ReasonTemplateFailed, "%s: %.200q gives %.200q, a path with an empty part, which would name another folder: "+
			"set the missing value (required makes a missing value an error), or put the part and its slash inside {{if}}, as in lines{{if .Vars.line}}/{{.Vars.line}}{{end}}",
			field, text, rendered)
	}
	p, err := ParsePath(rendered)
	if err != nil {
		return "", inField(field, err)
	}
	return p, nil
}

// hasEmptyPart reports whether a template left a part of a path empty, for example because a label is missing. Such a path names
// the parent folder: "lines/{{.line}}" would name "lines", which has the files of all lines. As a destination under prune: mirror,
// it would delete the gateway's own files there. Only the first part may be empty in this sense, if it is written as ".".
func hasEmptyPart(parts []render.Part) bool {
	for i, part := range parts {
		if part.Generated && path.Clean("/"+part.Text) == "/" && !strings.Contains(part.Text, "..") && (i > 0 || !strings.HasPrefix(part.Text, ".")) {
			return true
		}
	}
	return false
}

func parsePatch(p v1alpha1.Patch, f *Facts) (Patch, error) {
	if p.File != "" {
		if problem := validation.PathPatternProblem(p.File); problem != "" {
			return Patch{}, failure.New(v1alpha1.ReasonProfilesInvalid, "file: %q %s", p.File, problem)
		}
	}
	parsed := Patch{Files: p.File}
	for _, path := range slices.Sorted(maps.Keys(p.Set)) {
		s, err := parseSetting(path, fmt.Sprintf("set[%s]", path), string(p.Set[path]), f)
		if err != nil {
			return Patch{}, err
		}
		parsed.Set = append(parsed.Set, s)
	}
	return parsed, nil
}

func parseSetting(path, field, text string, f *Facts) (Setting, error) {
	value, volatile, err := render.Text(field, text, f)
	if err != nil {
		return Setting{}, err
	}
	s := Setting{Path: path, Value: value}
	if volatile {
		s.Volatile = text
	}
	return s, nil
}

func unknown(field, value, want string) error {
	return failure.New(v1alpha1.ReasonProfilesInvalid, "%s: %q is not known; use %s", field, value, want)
}

// inField prefixes the text with the field and keeps the reason.
func inField(field string, err error) error {
	return failure.New(failure.Reason(err, v1alpha1.ReasonProfilesInvalid), "%s: %w", field, err)
}
