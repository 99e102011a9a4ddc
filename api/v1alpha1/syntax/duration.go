package syntax

import (
	"regexp"
	"strings"
	"time"
)

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
