package v1alpha1

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// podSettings are the annotations of a pod that say what it gets.
//
// +kubebuilder:object:generate=false
type podSettings struct {
	profile            string
	servicePath        string
	deploymentMode     string
	tagProvider        string
	systemName         string
	systemNameTemplate string
	syncPeriod         time.Duration
	excludePatterns    []string
}

var (
	profileName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	folderName  = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9 ._-]*[A-Za-z0-9._-])?$`)
)

const (
	maxProfileName = 63
	maxFolderName  = 128
	maxSystemName  = 1024
	maxPattern     = 512
	maxPatterns    = 128
	minSyncPeriod  = 5
	maxSyncPeriod  = 3600
)

// parsePod reads the annotations of a pod. Its error names the annotation and is an *Error with ReasonInvalidAnnotation; then
// the profile alone is known.
func parsePod(annotations map[string]string) (podSettings, error) {
	var s podSettings
	for _, a := range []struct {
		name string
		read func(value string) (problem string)
	}{
		{AnnotationProfile, func(v string) string { s.profile = v; return profileNameProblem(v) }},
		{AnnotationServicePath, func(v string) string { s.servicePath = normalPath(v); return pathProblem(v) }},
		{AnnotationDeploymentMode, func(v string) string { s.deploymentMode = v; return folderNameProblem(v) }},
		{AnnotationTagProvider, func(v string) string { s.tagProvider = v; return folderNameProblem(v) }},
		{AnnotationSystemName, func(v string) string { s.systemName = v; return systemNameProblem(v) }},
		{AnnotationSystemNameTemplate, func(v string) string { s.systemNameTemplate = v; return systemNameProblem(v) }},
		{AnnotationSyncPeriod, s.readSyncPeriod},
		{AnnotationExcludePatterns, s.readExcludePatterns},
	} {
		value, ok := PodAnnotation(annotations, a.name)
		if !ok || value == "" {
			continue
		}
		if problem := a.read(value); problem != "" {
			return podSettings{profile: s.profile}, newError(ReasonInvalidAnnotation, "annotation %s: %.80q %s", a.name, value, problem)
		}
	}
	s.tagProvider = or(s.tagProvider, DefaultTagProvider)
	return s, nil
}

func (s *podSettings) readSyncPeriod(value string) string {
	n, err := strconv.Atoi(value)
	if err != nil || n < minSyncPeriod || n > maxSyncPeriod {
		return "is no period; give whole seconds, from 5 to 3600"
	}
	s.syncPeriod = time.Duration(n) * time.Second
	return ""
}

func (s *podSettings) readExcludePatterns(value string) string {
	patterns := splitPatterns(value)
	if len(patterns) > maxPatterns {
		return "has more than 128 patterns; keep what is common to several gateways in the profile"
	}
	for _, p := range patterns {
		if problem := PathPatternProblem(p); problem != "" {
			return problem
		}
	}
	s.excludePatterns = patterns
	return ""
}

// splitPatterns splits at commas and line ends, but not within braces: {a,b} is one pattern.
func splitPatterns(value string) []string {
	var out []string
	depth, start := 0, 0
	add := func(end int) {
		if p := strings.TrimSpace(value[start:end]); p != "" {
			out = append(out, p)
		}
		start = end + 1
	}
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\':
			i++
		case c == '{':
			depth++
		case c == '}' && depth > 0:
			depth--
		case c == '\n', c == ',' && depth == 0:
			add(i)
		}
	}
	if start < len(value) {
		add(len(value))
	}
	return out
}

func profileNameProblem(name string) string {
	if len(name) > maxProfileName || !profileName.MatchString(name) {
		return "is not a name of a profile; use letters, digits, '.', '_' and '-', at most 63, a letter or digit first and last"
	}
	return ""
}

func folderNameProblem(name string) string {
	if len(name) > maxFolderName || !folderName.MatchString(name) {
		return "is not a name of a folder; use letters, digits, spaces, '.', '_' and '-', at most 128"
	}
	return ""
}

func systemNameProblem(name string) string {
	if utf8.RuneCountInString(name) > maxSystemName || strings.ContainsFunc(name, isControl) {
		return "is too long or holds control characters; a system name is one line of at most 1024 characters"
	}
	return ""
}

func patternProblem(pattern string) string {
	if utf8.RuneCountInString(pattern) > maxPattern {
		return "is longer than 512 characters; split the pattern"
	}
	if !doublestar.ValidatePattern(strings.TrimSuffix(pattern, "/")) {
		return "is not a pattern; close every [ and {, and write a literal one as \\[ or \\{"
	}
	return ""
}

// maxAlternatives bounds the time of a match: alternatives multiply ({a,b}{a,b} is four patterns).
const maxAlternatives = 64

// PathPatternProblem says why a pattern of destination paths is not taken ("" if it is): one of excludePatterns, or of the
// files of a patch. The annotation, the spec and the plan ask here, so that none takes what another refuses.
func PathPatternProblem(pattern string) string {
	switch {
	case strings.Trim(pattern, "/") == "":
		return "matches nothing; remove it"
	case pattern[0] == '/':
		return "begins with a slash; patterns are relative to the data directory"
	}
	if problem := patternProblem(pattern); problem != "" {
		return problem
	}
	product := 1
	for i := range len(pattern) {
		if pattern[i] == '{' { // an upper bound: the commas of later braces count, too
			product *= strings.Count(pattern[i:], ",") + 1
		}
		if product > maxAlternatives {
			return "has too many alternatives in braces; write several patterns"
		}
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
