package validation

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Patterns of the CRD, for objects that no API server has seen. The markers of the types have the same text.
const (
	repoPattern       = `^((https?|ssh)://[^/?#\s\x00-\x1f\x7f-][^?#\s\x00-\x1f\x7f]*|oci(\+http)?://[^/?#@\s\x00-\x1f\x7f-][^/?#@\s\x00-\x1f\x7f]*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)+|(file:///|/)[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*|([A-Za-z0-9_][A-Za-z0-9._~-]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):(/?[^:/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*))$`
	badPathPattern    = `^/|//|/\.\.?(/|$)|^\.\.(/|$)|\\|[\x00-\x1f\x7f]`
	filePattern       = `^(([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)/)*([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)$`
	objectNamePattern = `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	keyPattern        = `^[-._a-zA-Z0-9]+$`
	usernamePattern   = `^[^:\x00-\x1f\x7f]+$`
	apiURLPattern     = `^https?://[^/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$`
	hostPattern       = `^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`
	imagePattern      = `^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*$`
	tagPattern        = `^[A-Za-z0-9_][A-Za-z0-9._-]*$`
	digestPattern     = `^sha256:[a-f0-9]{64}$`
	authorPattern     = `^[^<>\x00-\x1f\x7f]+ <[^<>\s\x00-\x1f\x7f]+@[^<>\s\x00-\x1f\x7f]+>$`
)

var (
	repoRegexp    = regexp.MustCompile(repoPattern)
	badPathRegexp = regexp.MustCompile(badPathPattern)
	fileRegexp    = regexp.MustCompile(filePattern)
	authorRegexp  = regexp.MustCompile(authorPattern)
)

const (
	maxURL         = 2048
	maxPath        = 1024
	maxProfileName = 63
	maxPattern     = 512
	// MaxPatterns is how many patterns a list may have.
	MaxPatterns = 128
)

var profileName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// PathProblem returns why a path, or a template of one, is not a path below its root; "" if it is.
func PathProblem(p string) string {
	switch {
	case p == "":
		return "is empty; write . for the root"
	case utf8.RuneCountInString(p) > maxPath:
		return "is longer than 1024 characters; shorten it"
	case strings.HasPrefix(p, "/"):
		return "is absolute; write it relative to the root"
	case strings.Contains(p, `\`):
		return `contains a backslash; separate folders with /`
	case badPathRegexp.MatchString(p) || !utf8.ValidString(p):
		return "is not a path below its root; leave out .. and . between slashes, empty parts, and control characters"
	}
	return ""
}

// imageRegexp matches a repository, with an optional tag and an optional digest.
var imageRegexp = regexp.MustCompile(strings.TrimSuffix(imagePattern, "$") + `(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[a-z0-9]+:[a-f0-9]{32,128})?$`)

// IsImage reports whether a text is a valid reference of an image. The image need not exist.
func IsImage(reference string) bool {
	return len(reference) <= 512 && imageRegexp.MatchString(reference)
}

// ProfileNameProblem returns why a name cannot be the name of a profile; "" if it can.
func ProfileNameProblem(name string) string {
	if len(name) > maxProfileName || !profileName.MatchString(name) {
		return "is not a name of a profile; use letters, digits, '.', '_' and '-', at most 63, a letter or digit first and last"
	}
	return ""
}

// maxAlternatives limits the time of a match, because alternatives multiply: {a,b}{a,b} is four patterns.
const maxAlternatives = 64

// PatternProblem returns why a pattern is not valid; "" if it is. Do not match a pattern that has a problem: the time of the match is not bounded.
func PatternProblem(pattern string) string {
	if utf8.RuneCountInString(pattern) > maxPattern {
		return "is longer than 512 characters; split the pattern"
	}
	if !doublestar.ValidatePattern(strings.TrimSuffix(pattern, "/")) { // a trailing slash stands for a folder and all below it
		return "is not a pattern; close every [ and {, and write a literal one as \\[ or \\{"
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

// PathPatternProblem returns why a pattern of relative paths is not valid; "" if it is. Annotations, the spec and the plan use it, so
// that all accept the same patterns.
func PathPatternProblem(pattern string) string {
	switch {
	case strings.Trim(pattern, "/") == "":
		return "matches nothing; remove it"
	case pattern[0] == '/':
		return "begins with a slash; patterns are relative to the data directory"
	}
	return PatternProblem(pattern)
}

// SyncRecordValid reports whether the API server surely accepts the record. It would reject an object with one invalid record. Lengths count
// in bytes here and in characters there, so SyncRecordValid may refuse a long ref that the API server would accept.
func SyncRecordValid(r *v1alpha1.SyncRecord) bool {
	year := r.Timestamp.UTC().Year()
	return year >= 1000 && year <= 9999 && (r.Commit == "" || syntax.IsCommit(r.Commit) && r.Commit == strings.ToLower(r.Commit)) && len(r.Ref) <= 255 &&
		len(r.Duration) <= 32 && len(r.Result) <= 64 && (r.SnapshotID == "" || syntax.SnapshotID(r.SnapshotID) == r.SnapshotID)
}
