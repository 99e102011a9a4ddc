package resource

import "strings"

// NeverTouch reports whether a path belongs to the gateway or to Stoker alone. No sync writes or deletes such a path, and no
// proposal has one, whatever a mapping says. The agent itself reads a few of them, such as redundancy.xml.
//
// The path is relative to the data directory and slash-separated. A rule for a directory covers everything below it. Case does
// not count, because a volume may not distinguish `VAR` from `var`.
//
// The list is that of Inductive Automation's version control guide, with additions seen on live gateways. Its rules for
// certificates, keystore and *.log do not apply inside projects/: a gateway keeps none of these there, but a view may
// well be named "certificates".
func NeverTouch(path string) bool {
	path = lower(path)
	first, rest, deep := strings.Cut(path, "/")
	switch {
	case rootNames[first], !deep && neverInRoot(first), first == "config" && deep && neverInConfig(rest):
		return true
	}
	inProject := first == "projects"
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		if neverAnywhere(name) || !inProject && neverOutsideProjects(name) {
			return true
		}
	}
	return false
}

// rootNames are files and directories at the root of the data directory.
var rootNames = map[string]bool{
	"db": true, "metricsdb": true, "var": true, "autobackup": true, "jar-cache": true, "logs": true,
	".container-init.conf": true, ".ignition-seed-complete": true, "commissioning.json": true, "modules.json": true,
	"redundancy.xml": true, "ignition.conf": true, "logback.xml": true, "conversion-report.txt": true,
}

// neverInRoot matches more files at the root of the data directory.
func neverInRoot(name string) bool {
	return strings.HasPrefix(name, "gateway.xml") ||
		strings.HasPrefix(name, "migration-log-") && strings.HasSuffix(name, ".md")
}

// neverInConfig matches paths relative to config/.
func neverInConfig(rest string) bool {
	return within(rest, "local") || within(rest, "resources/local") || within(rest, "ignition/keys")
}

func within(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}

// neverAnywhere matches names at every depth.
func neverAnywhere(name string) bool {
	return name == ".resources" || name == ".stoker" || strings.HasPrefix(name, ".alarms_") ||
		strings.HasPrefix(name, "valuestore.idb") || strings.HasSuffix(name, ".digest.json") || gitDir(name)
}

// neverOutsideProjects matches names at every depth outside projects/.
func neverOutsideProjects(name string) bool {
	return name == "certificates" || name == "keystore" || strings.HasSuffix(name, ".log")
}

// gitDir recognizes git's own folder in every spelling that a file system may treat as equal: Windows drops trailing
// dots and spaces, cuts at a colon, and has the short name git~1. The name is in lower case.
func gitDir(name string) bool {
	rest, ok := strings.CutPrefix(name, ".git")
	if !ok {
		rest, ok = strings.CutPrefix(name, "git~1")
	}
	rest, _, _ = strings.Cut(rest, ":")
	return ok && strings.Trim(rest, ". ") == ""
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
