// Package resource knows Ignition's file formats: which paths of a data directory belong to the gateway alone, what a
// resource.json must look like, and when two of them mean the same. It is pure and opens no files.
package resource

import "strings"

// NeverTouch reports whether a path belongs to the gateway or to Stoker alone. Such a path is neither written nor
// deleted nor read, whatever a mapping says. The path is relative to the data directory and slash-separated. A rule for
// a directory covers everything below it. Case is ignored, because a volume may not distinguish `VAR` from `var`.
//
// The list is that of Inductive Automation's version control guide, with additions seen on live gateways. Its rules for
// certificates, keystore and *.log do not apply inside projects/: a gateway keeps none of these there, but a view may
// well be named "certificates".
func NeverTouch(path string) bool {
	path = lower(path)
	first, rest, deep := strings.Cut(path, "/")
	if root[first] || !deep && rootFile(first) {
		return true
	}
	if first == "config" && deep && platform(rest) {
		return true
	}
	inProject := first == "projects"
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		if anywhere(name) || !inProject && keys(name) {
			return true
		}
	}
	return false
}

// root has the closed directories and files at the top of the data directory.
var root = map[string]bool{
	"db": true, "metricsdb": true, "var": true, "autobackup": true, "jar-cache": true, "logs": true,
	".container-init.conf": true, ".ignition-seed-complete": true, "commissioning.json": true, "modules.json": true,
	"redundancy.xml": true, "ignition.conf": true, "logback.xml": true, "conversion-report.txt": true,
}

// rootFile has the name patterns that are closed at the top of the data directory.
func rootFile(name string) bool {
	return strings.HasPrefix(name, "gateway.xml") ||
		strings.HasPrefix(name, "migration-log-") && strings.HasSuffix(name, ".md")
}

// platform has the paths that are closed below config/.
func platform(rest string) bool {
	return within(rest, "local") || within(rest, "resources/local") || within(rest, "ignition/keys")
}

func within(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}

// anywhere has the names that are closed at every depth.
func anywhere(name string) bool {
	switch {
	case len(name) == 0:
		return false
	case name[0] == '.':
		return name == ".resources" || name == ".stoker" || gitDir(name) || strings.HasPrefix(name, ".alarms_") ||
			strings.HasSuffix(name, ".digest.json")
	case name[0] == 'g':
		return gitDir(name) || strings.HasSuffix(name, ".digest.json")
	case name[0] == 'v':
		return strings.HasPrefix(name, "valuestore.idb") || strings.HasSuffix(name, ".digest.json")
	}
	return strings.HasSuffix(name, ".digest.json")
}

// keys has the names that are closed at every depth outside projects.
func keys(name string) bool {
	return name == "certificates" || name == "keystore" || strings.HasSuffix(name, ".log")
}

// gitDir recognizes git's own folder in every spelling that a file system may treat as equal: Windows drops trailing
// dots and spaces, cuts at a colon, and has the short name git~1. The name is in lower case.
func gitDir(name string) bool {
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	name = strings.TrimRight(name, ". ")
	return name == ".git" || name == "git~1"
}

// IsGitDir reports whether a file system may treat this name as git's own folder.
func IsGitDir(name string) bool { return gitDir(lower(name)) }

// lower is strings.ToLower, faster for names that are already lower-case ASCII.
func lower(s string) string {
	for i := range len(s) {
		if c := s[i]; c >= 'A' && c <= 'Z' || c >= 0x80 {
			return strings.ToLower(s)
		}
	}
	return s
}
