package v1alpha1

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The patterns of the CRD, for objects that no API server has seen. They are the markers' text; a test compares both.
const (
	repoPattern       = `^((https?|ssh)://[^/?#\s\x00-\x1f\x7f-][^?#\s\x00-\x1f\x7f]*|(file:///|/)[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*|([A-Za-z0-9_][A-Za-z0-9._~-]*@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):(/?[^:/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*))$`
	refPattern        = `^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$`
	badPathPattern    = `^/|//|/\.\.?(/|$)|^\.\.(/|$)|\\|[\x00-\x1f\x7f]`
	filePattern       = `^(([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)/)*([^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^./\\\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\\\x00-\x1f\x7f]+)$`
	durationPattern   = `^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$`
	secretNamePattern = `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	secretKeyPattern  = `^[-._a-zA-Z0-9]+$`
	usernamePattern   = `^[^:\x00-\x1f\x7f]+$`
	apiURLPattern     = `^https?://[^/\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$`
	hostPattern       = `^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`
	imagePattern      = `^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?/)?[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*)*$`
	tagPattern        = `^[A-Za-z0-9_][A-Za-z0-9._-]*$`
	digestPattern     = `^sha256:[a-f0-9]{64}$`
	sizePattern       = `^[1-9][0-9]{0,8}(Ki|Mi)?$`
	authorPattern     = `^[^<>\x00-\x1f\x7f]+ <[^<>\s\x00-\x1f\x7f]+@[^<>\s\x00-\x1f\x7f]+>$`
)

var (
	repoRegexp     = regexp.MustCompile(repoPattern)
	refRegexp      = regexp.MustCompile(refPattern)
	badPathRegexp  = regexp.MustCompile(badPathPattern)
	fileRegexp     = regexp.MustCompile(filePattern)
	durationRegexp = regexp.MustCompile(durationPattern)
	sizeRegexp     = regexp.MustCompile(sizePattern)
	authorRegexp   = regexp.MustCompile(authorPattern)
)

const (
	maxURL      = 2048
	maxPath     = 1024
	maxDuration = 32
	maxSize     = 16
)

// imageRegexp is a repository with what follows it: nothing, a tag, a digest, or both.
var imageRegexp = regexp.MustCompile(strings.TrimSuffix(imagePattern, "$") + `(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@[a-z0-9]+:[a-f0-9]{32,128})?$`)

// IsImage reports whether a text is a reference that a container runtime reads. It does not ask whether there is such an
// image.
func IsImage(reference string) bool {
	return len(reference) <= 512 && imageRegexp.MatchString(reference)
}

// RefProblem says which rule of git check-ref-format a name breaks, or "". Names of one level are allowed: main is short for
// refs/heads/main or refs/tags/main.
func RefProblem(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case strings.HasPrefix(name, "-"):
		return "it starts with a dash"
	case name == "@", strings.Contains(name, "@{"):
		return "it contains @{ or is @ alone"
	case strings.Contains(name, ".."):
		return "it contains two dots in a row"
	case strings.HasSuffix(name, "."):
		return "it ends with a dot"
	case strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"), strings.Contains(name, "//"):
		return "it starts or ends with a slash, or contains two in a row"
	case strings.HasPrefix(name, "."), strings.Contains(name, "/."):
		return "a part of it starts with a dot"
	case strings.HasSuffix(name, ".lock"), strings.Contains(name, ".lock/"):
		return "a part of it ends with .lock"
	case !refRegexp.MatchString(name) || !utf8.ValidString(name):
		return `it contains a space, a control character, or one of ~ ^ : ? * [ \`
	}
	return ""
}

// refProblem says why a name cannot be a ref of the spec or of a request, or "".
func refProblem(ref string) string {
	if utf8.RuneCountInString(ref) > maxRef {
		return "it is longer than 255 characters"
	}
	return RefProblem(ref)
}

// IsCommit reports whether a ref is the full id of a commit: 40 hex digits are one, and never the name of a branch or a tag.
// It does not ask whether there is such a commit.
func IsCommit(ref string) bool {
	return len(ref) == 40 && strings.Trim(ref, "0123456789abcdefABCDEF") == ""
}

// pathProblem says why a path, or a template for one, could leave its root ("" if it could not).
func pathProblem(p string) string {
	switch {
	case p == "":
		return "is empty; write . for the root"
	case utf8.RuneCountInString(p) > maxPath:
		return "is longer than 1024 characters; shorten it"
	case strings.HasPrefix(p, "/"):
		return "is absolute; write it relative to the root"
	case strings.Contains(p, `\`):
		return `holds a backslash; separate folders with /`
	case badPathRegexp.MatchString(p) || !utf8.ValidString(p):
		return "is not a path below its root; leave out .. and . between slashes, empty parts, and control characters"
	}
	return ""
}

// parseDuration reads a duration from 1s to 24h.
func parseDuration(s string) (d time.Duration, problem string) {
	return parseDurationTo(s, 24*time.Hour, "24h")
}

// parseDebounce reads a duration from 1s to 10m.
func parseDebounce(s string) (d time.Duration, problem string) {
	return parseDurationTo(s, 10*time.Minute, "10m")
}

// parseDurationTo reads a duration from one second to most, which is shown as mostText.
func parseDurationTo(s string, most time.Duration, mostText string) (d time.Duration, problem string) {
	if len(s) > maxDuration || !durationRegexp.MatchString(s) {
		return 0, "is not a duration; write a number and a unit, such as 30s, 5m or 1h30m"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || d > most {
		return 0, "is out of range; use from 1s to " + mostText
	}
	return d, ""
}

// parseSize reads a number of bytes, with the unit Ki or Mi or without one.
func parseSize(s string) (bytes int64, problem string) {
	const wrong = "is not a size; use a whole number of bytes, Ki or Mi, such as 10Mi"
	if len(s) > maxSize || !sizeRegexp.MatchString(s) {
		return 0, wrong
	}
	unit := int64(1)
	digits, kibi := strings.CutSuffix(s, "Ki")
	digits, mebi := strings.CutSuffix(digits, "Mi")
	switch {
	case kibi:
		unit = 1 << 10
	case mebi:
		unit = 1 << 20
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, wrong
	}
	return n * unit, ""
}
