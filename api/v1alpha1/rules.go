package v1alpha1

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The markers of the types have the same patterns and lengths.
var (
	refRegexp      = regexp.MustCompile(`^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$`)
	durationRegexp = regexp.MustCompile(`^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$`)
	sizeRegexp     = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi)?$`)
)

const (
	maxDuration = 32
	maxSize     = 16
)

// RefProblem returns which rule of git check-ref-format a name breaks; "" if it is valid. Short names are valid: main stands for
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

// SpecRefProblem returns why a name cannot be a ref of the spec or of a request; "" if it can.
func SpecRefProblem(ref string) string {
	if utf8.RuneCountInString(ref) > MaxRef {
		return "it is longer than 255 characters"
	}
	return RefProblem(ref)
}

// IsCommit reports whether a ref has the form of a commit id: 40 hex digits. Such a ref is never a branch or a tag.
func IsCommit(ref string) bool {
	return len(ref) == 40 && strings.Trim(ref, "0123456789abcdefABCDEF") == ""
}

// ParseDuration parses a duration from least to most. The problem says what is wrong with s; it is empty if s is valid.
func ParseDuration(s string, least, most time.Duration) (d time.Duration, problem string) {
	if len(s) > maxDuration || !durationRegexp.MatchString(s) {
		return 0, "is not a duration; write a number and a unit, such as 30s, 5m or 1h30m"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < least || d > most {
		return 0, "is out of range; use from " + shortDuration(least) + " to " + shortDuration(most)
	}
	return d, ""
}

// shortDuration writes 1m0s as 1m, and 1h0m0s as 1h.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ParseSize parses a number of bytes, with an optional unit Ki or Mi. The problem says what is wrong with s; it is empty if s is valid.
func ParseSize(s string) (bytes int64, problem string) {
	const wrong = "is not a size; use a whole number of bytes, Ki or Mi, such as 10Mi"
	if len(s) > maxSize || !sizeRegexp.MatchString(s) {
		return 0, wrong
	}
	unit := int64(1)
	digits, ok := strings.CutSuffix(s, "Ki")
	if ok {
		unit = 1 << 10
	} else if digits, ok = strings.CutSuffix(s, "Mi"); ok {
		unit = 1 << 20
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, wrong
	}
	return n * unit, ""
}
