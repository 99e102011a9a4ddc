// Package syntax has the text forms of the values in a spec: refs, commits, durations, sizes, paths and the ids of snapshots. The
// markers of the types in package v1alpha1 have the same patterns and lengths.
package syntax

import (
	"regexp"
	"strings"
	"time"
)

const (
	// MaxGatewayName is the most bytes of a gateway's name from an annotation, and how many of a longer name a snapshot ID has.
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
