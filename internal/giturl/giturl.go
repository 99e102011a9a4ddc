// Package giturl compares repository addresses. A sender may write an address in another form than the GatewaySync does: https
// instead of ssh, with or without .git.
package giturl

import (
	"net/url"
	"slices"
	"strings"
)

// maxAddress is the length in bytes above which an address is invalid.
const maxAddress = 2048

// Same reports whether two addresses name the same repository, that is, the same host and path. It ignores scheme, user and
// port, because hosts serve one repository over https and ssh at different ports. It also ignores .git, slashes at both ends of
// the path, and case, as most hosts do. The same rules apply to local folders, whose host is empty. An invalid address equals
// nothing.
func Same(a, b string) bool {
	hostA, pathA, okA := split(a)
	hostB, pathB, okB := split(b)
	return okA && okB && hostA == hostB && strings.EqualFold(pathA, pathB)
}

// remoteSchemes are the schemes of repositories on a host.
var remoteSchemes = []string{"https", "http", "ssh", "git+ssh", "ssh+git"}

// split returns the host and path of an address. The host is "" for a folder, which is a path or a file:// URL.
func split(s string) (host, path string, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > maxAddress {
		return "", "", false
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	switch {
	case strings.HasPrefix(s, "/"):
		return "", trimmed(s), trimmed(s) != ""
	case !hasScheme:
		return splitSCP(s)
	case strings.EqualFold(scheme, "file"):
		return "", trimmed(rest), strings.HasPrefix(rest, "/") && trimmed(rest) != ""
	case !slices.Contains(remoteSchemes, strings.ToLower(scheme)):
		return "", "", false
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return "", "", false
	}
	path = trimmed(u.Path)
	return strings.ToLower(u.Hostname()), path, path != ""
}

// splitSCP parses the form [user@]host:path.
func splitSCP(s string) (host, path string, ok bool) {
	if i := strings.LastIndexByte(s[:colon(s)], '@'); i >= 0 {
		s = s[i+1:]
	}
	i := colon(s)
	if i == len(s) || strings.ContainsAny(s[:i], "/ ") {
		return "", "", false
	}
	host, path = strings.ToLower(strings.Trim(s[:i], "[]")), trimmed(s[i+1:])
	return host, path, host != "" && path != ""
}

// colon returns the index of the colon that separates host and path in [user@]host:path, or len(s) if there is none. An IPv6
// host is in brackets.
func colon(s string) int {
	from := strings.IndexByte(s, ']') + 1
	if i := strings.IndexByte(s[from:], ':'); i >= 0 {
		return from + i
	}
	return len(s)
}

func trimmed(path string) string {
	path = strings.Trim(path, "/")
	if cut := len(path) - len(".git"); cut > 0 && strings.EqualFold(path[cut:], ".git") {
		path = strings.TrimRight(path[:cut], "/")
	}
	return path
}
