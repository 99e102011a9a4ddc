// Package syntax has the text forms of the values in a spec: refs, commits, durations, sizes, paths and the ids of snapshots. The
// markers of the types in package v1alpha1 have the same patterns and lengths.
package syntax

import (
	"regexp"
	"strings"
)

var snapshotID = regexp.MustCompile(`^([a-zA-Z0-9][-a-zA-Z0-9._]{0,199})-[0-9]{8}-[0-9]{6}$`)

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
