// Package syntax has the text forms of the values in a spec: refs, commits, durations, sizes, paths and the ids of snapshots. The
// markers of the types in package v1alpha1 have the same patterns and lengths.
package syntax

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// MaxGatewayName is the maximum length of a gateway's name in an annotation, in bytes. The ID of a snapshot has as much of a longer
	// name, such as that of a pod.
	MaxGatewayName = 200
	// StampFormat is the layout of the time at the end of a snapshot id.
	StampFormat = "20060102-150405"
)

var snapshotID = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-([0-9]{8}-[0-9]{6})$`)

// NewSnapshotID returns the ID of a snapshot: the name of the gateway, of which at most MaxGatewayName bytes count, and a time in UTC.
func NewSnapshotID(gateway string, at time.Time) string {
	return gateway[:min(len(gateway), MaxGatewayName)] + "-" + at.UTC().Format(StampFormat)
}

// IsSnapshotID reports whether s has the form of NewSnapshotID.
func IsSnapshotID(s string) bool { return !SnapshotTime(s).IsZero() }

// SnapshotTime returns the time in the ID of a snapshot, or zero if s is not an ID.
func SnapshotTime(s string) time.Time {
	m := snapshotID.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.Parse(StampFormat, m[1]) // zero if there is no such day
	return t
}

// SnapshotID returns the ID of a snapshot without the suffix .tar.gz; "" if s is not an ID.
func SnapshotID(s string) string {
	s = strings.TrimSuffix(s, ".tar.gz")
	if !snapshotID.MatchString(s) {
		return ""
	}
	return s
}

// NormalPath returns a path without "./" before it and without "/" after it. It does not change the inside of templates.
func NormalPath(p string) string {
	if rest, ok := strings.CutPrefix(p, "./"); ok && rest != "" {
		p = rest
	}
	return strings.TrimSuffix(p, "/")
}

var durationRegexp = regexp.MustCompile(`^([0-9]{1,8}ms|[0-9]{1,5}(\.[0-9]{1,6})?[smh])+$`)

const maxDuration = 32

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

var refRegexp = regexp.MustCompile(`^[^-/\x00-\x20~^:?*\[\\\x7f][^\x00-\x20~^:?*\[\\\x7f]*$`)

// MaxRef is the maximum length of a ref in characters, as the API server counts them.
const MaxRef = 255

var (
	digestRegexp = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	tagRegexp    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// IsDigest reports whether a ref is the digest of an artifact in a registry.
func IsDigest(ref string) bool { return digestRegexp.MatchString(ref) }

// IsTag reports whether a name can be a tag of a registry.
func IsTag(name string) bool { return tagRegexp.MatchString(name) }

// IsRegistry reports whether the address of a repository is that of a registry.
func IsRegistry(repo string) bool {
	scheme, _, ok := strings.Cut(repo, "://")
	return ok && (strings.EqualFold(scheme, "oci") || strings.EqualFold(scheme, "oci+http"))
}

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

// GitRefProblem is like RefProblem, and also limits the length to MaxRef.
func GitRefProblem(ref string) string {
	if utf8.RuneCountInString(ref) > MaxRef {
		return "it is longer than 255 characters"
	}
	return RefProblem(ref)
}

// SpecRefProblem returns why a name cannot be the ref of a GatewaySync or of a request; "" if it can. It can also be a digest, which names an
// artifact of a registry.
func SpecRefProblem(ref string) string {
	if IsDigest(ref) {
		return ""
	}
	return GitRefProblem(ref)
}

// IsCommit reports whether a ref has the form of a commit id: 40 hex digits. Stoker never reads such a ref as a branch or a tag.
func IsCommit(ref string) bool {
	return len(ref) == 40 && strings.Trim(ref, "0123456789abcdefABCDEF") == ""
}

// shortCommit is how many digits of a commit messages show, and how many suffice to name it.
const shortCommit = 7

// ShortCommit returns the first digits of a commit, for messages. It returns a shorter text unchanged.
func ShortCommit(commit string) string { return commit[:min(len(commit), shortCommit)] }

// IsCommitPrefix reports whether text is a commit, or at least its first 7 digits, in lower case.
func IsCommitPrefix(text string) bool {
	return len(text) >= shortCommit && len(text) <= 40 && strings.Trim(text, "0123456789abcdef") == ""
}

var (
	sizeRegexp   = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi)?$`)
	snapshotSize = regexp.MustCompile(`^[1-9][0-9]{0,8}(Ki|Mi|Gi)?$`)
)

const maxSize = 16

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

// SnapshotSize returns a value of spec.snapshots.maxSize in bytes; 0 if it is invalid.
func SnapshotSize(s string) int64 {
	if !snapshotSize.MatchString(s) {
		return 0
	}
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Value() <= 0 {
		return 0
	}
	return q.Value()
}

// SizeText returns a number of bytes as GatewaySnapshot.Size has it, such as 1.3Mi: rounded up to a tenth of a unit.
func SizeText(bytes int64) string {
	unit, divisor := "", int64(1)
	for _, larger := range []string{"Ki", "Mi", "Gi"} {
		if bytes/divisor < 1024 {
			break
		}
		unit, divisor = larger, divisor*1024
	}
	return strconv.FormatFloat(math.Ceil(10*float64(bytes)/float64(divisor))/10, 'f', -1, 64) + unit
}
