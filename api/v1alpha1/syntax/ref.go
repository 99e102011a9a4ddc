package syntax

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

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

// GitRefProblem is RefProblem for a ref whose length is bounded, too.
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

// IsCommit reports whether a ref has the form of a commit id: 40 hex digits. Such a ref is never a branch or a tag.
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
