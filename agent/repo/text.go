package repo

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxQuoted = 200 // bytes of a foreign text that go into a message

// quoted makes foreign text safe to print: bounded, on one line, control characters escaped.
func quoted(s string) string {
	if len(s) > maxQuoted {
		s = s[:maxQuoted]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s += "…"
	}
	return strconv.Quote(strings.TrimSpace(s))
}
