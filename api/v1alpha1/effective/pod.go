package effective

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// podSettings are the settings of a gateway that come from annotations of its pod.
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

var folderName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9 ._-]*[A-Za-z0-9._-])?$`)

const (
	maxFolderName = 128
	maxSystemName = 1024
)

// parsePod reads the annotations of a pod. The error is an *Error with ReasonInvalidAnnotation that names the annotation. With an error,
// the settings have only the profile.
func parsePod(annotations map[string]string) (podSettings, error) {
	var s podSettings
	for _, a := range []struct {
		name string
		read func(value string) (problem string)
	}{
		// The profile is the first one, because it is returned with an error about another annotation.
		{v1alpha1.AnnotationProfile, func(v string) string { s.profile = v; return validation.ProfileNameProblem(v) }},
		{v1alpha1.AnnotationServicePath, func(v string) string { s.servicePath = syntax.NormalPath(v); return validation.PathProblem(v) }},
		{v1alpha1.AnnotationDeploymentMode, func(v string) string { s.deploymentMode = v; return folderNameProblem(v) }},
		{v1alpha1.AnnotationTagProvider, func(v string) string { s.tagProvider = v; return folderNameProblem(v) }},
		{v1alpha1.AnnotationSystemName, func(v string) string { s.systemName = v; return systemNameProblem(v) }},
		{v1alpha1.AnnotationSystemNameTemplate, func(v string) string { s.systemNameTemplate = v; return systemNameProblem(v) }},
		{v1alpha1.AnnotationSyncPeriod, s.readSyncPeriod},
		{v1alpha1.AnnotationExcludePatterns, s.readExcludePatterns},
	} {
		value, ok := gatewaypod.Annotation(annotations, a.name)
		if !ok || value == "" {
			continue
		}
		if problem := a.read(value); problem != "" {
			return podSettings{profile: s.profile}, v1alpha1.NewError(v1alpha1.ReasonInvalidAnnotation, "annotation %s: %.80q %s", a.name, value, problem)
		}
	}
	s.tagProvider = cmp.Or(s.tagProvider, v1alpha1.DefaultTagProvider)
	return s, nil
}

func (s *podSettings) readSyncPeriod(value string) string {
	n, err := strconv.Atoi(value)
	if err != nil || !validation.IsSyncPeriod(n) {
		return fmt.Sprintf("is not a number of seconds; use a whole number from %v to %v", v1alpha1.MinSyncPeriod.Seconds(), v1alpha1.MaxSyncPeriod.Seconds())
	}
	s.syncPeriod = time.Duration(n) * time.Second
	return ""
}

func (s *podSettings) readExcludePatterns(value string) string {
	patterns := splitPatterns(value)
	if len(patterns) > validation.MaxPatterns {
		return fmt.Sprintf("has more than %d patterns; keep what is common to several gateways in the profile", validation.MaxPatterns)
	}
	for _, p := range patterns {
		if problem := validation.PathPatternProblem(p); problem != "" {
			return problem
		}
	}
	s.excludePatterns = patterns
	return ""
}

// splitPatterns splits at line ends, and at commas outside braces. A backslash escapes the next byte.
func splitPatterns(value string) []string {
	var out []string
	depth, start := 0, 0 // of braces; of the current pattern
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
	add(len(value))
	return out
}

func folderNameProblem(name string) string {
	if len(name) > maxFolderName || !folderName.MatchString(name) {
		return "is not a name of a folder; use letters, digits, spaces, '.', '_' and '-', at most 128"
	}
	return ""
}

func systemNameProblem(name string) string {
	if utf8.RuneCountInString(name) > maxSystemName || strings.ContainsFunc(name, isControl) {
		return "is too long or contains control characters; a system name is one line of at most 1024 characters"
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
