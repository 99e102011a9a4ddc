package plan

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Path is a slash-separated path that cannot leave its root: relative, clean, UTF-8 without control characters, and
// without git's own folder. "." is the root itself.
type Path string

// Root is the Path of the root itself.
const Root Path = "."

// ParsePath parses a path from outside, such as a field of a GatewaySync. It drops a trailing slash, a leading "./" and
// doubled slashes. It refuses anything that some
// system could interpret as an escape with UnsafePath, and does not clean it.
func ParsePath(s string) (Path, error) {
	if s == "" {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "the path is empty; write %q for the root", Root)
	}
	if len(s) > DefaultLimits.PathBytes {
		return "", tooLong(s, DefaultLimits.PathBytes)
	}
	if s[0] == '/' {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "path %q is absolute; write it relative to the root", s)
	}
	depth := 0
	for name := range strings.SplitSeq(s, "/") {
		if name == "" || name == "." {
			continue
		}
		if err := checkName(s, name); err != nil {
			return "", err
		}
		if depth == 0 && driveLetter(name) {
			return "", failure.New(v1alpha1.ReasonUnsafePath, "path %q begins with a drive letter", s)
		}
		if depth++; depth > DefaultLimits.Depth {
			return "", tooDeep(s, DefaultLimits.Depth)
		}
	}
	return Path(path.Clean(s)), nil
}

// Rel returns the path for joining: "" for the root.
func (p Path) Rel() string {
	if p == Root {
		return ""
	}
	return string(p)
}

// maxName is the maximum length in bytes of a name on Linux file systems.
const maxName = 255

// checkName checks one element of a path; whole is for the message.
func checkName(whole, name string) error {
	switch {
	case name == "" || name == ".":
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q has an empty element", whole)
	case name == "..":
		return failure.New(v1alpha1.ReasonUnsafePath, `path %q contains ".."`, whole)
	case !utf8.ValidString(name):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q is not UTF-8; rename it in git", whole)
	case strings.ContainsFunc(name, unicode.IsControl):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q contains a control character; rename it", whole)
	case strings.ContainsAny(name, `/\`):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q contains a backslash; use slashes", whole)
	case len(name) > maxName:
		return failure.New(v1alpha1.ReasonLimitExceeded, "path %q… has a name of %d bytes; the limit is %d; rename it",
			strings.ToValidUTF8(whole[:min(len(whole), 160)], ""), len(name), maxName)
	case resource.IsGitDir(name):
		return failure.New(v1alpha1.ReasonUnsafePath, "path %q is in git's own folder", whole)
	}
	return nil
}

// driveLetter reports whether a name begins with a drive letter of Windows. The name must not be empty.
func driveLetter(name string) bool {
	c := name[0] | 0x20
	return len(name) >= 2 && name[1] == ':' && c >= 'a' && c <= 'z'
}
