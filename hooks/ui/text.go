package ui

import (
	"html"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Bounds of texts in characters.
const (
	maxWord    = 253
	maxMessage = 1200
	maxCell    = 220
)

// clean returns at most n characters of a text. It replaces control characters and those that change the direction of writing.
func clean(s string, n int) string {
	if len(s) > 4*n {
		s = s[:4*n]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control) || r == unicode.ReplacementChar:
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// number returns a number with commas between groups of three digits.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// sentence returns a text with a capital letter at its start and a period at its end.
func sentence(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	if s == "" {
		return ""
	}
	return string(unicode.ToUpper(r)) + s[size:] + "."
}

// breakable returns a word such as DesignerSessionActive as HTML that allows a line break before a capital letter.
func breakable(s string) template.HTML {
	var b strings.Builder
	last := rune(0)
	for _, r := range s {
		if unicode.IsUpper(r) && unicode.IsLower(last) {
			b.WriteString("<wbr>")
		}
		b.WriteString(html.EscapeString(string(r)))
		last = r
	}
	return template.HTML(b.String())
}

// shellWord returns a word for a command that users paste into a shell.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(clean(s, maxWord), "'", `'\''`) + "'"
}

// counted returns a number with its noun.
func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(n) + " " + what
}

// moment is a time that a page shows as how long ago it was, relative to now. The title has the exact time.
type moment struct{ at, now time.Time }

// Known reports whether there is a time.
func (m moment) Known() bool { return !m.at.IsZero() }

// Machine returns the time for programs.
func (m moment) Machine() string { return m.at.UTC().Format(time.RFC3339) }

// Exact returns the time for people, in the zone of the machine that runs the command, which is that of the reader.
func (m moment) Exact() string { return m.at.Local().Format("2006-01-02 15:04:05 MST") }

// Ago returns how long ago the time was.
func (m moment) Ago() string {
	d := m.now.Sub(m.at)
	switch {
	case d < -time.Minute:
		return "in " + duration.HumanDuration(-d)
	case d < 10*time.Second:
		return "just now"
	}
	return duration.HumanDuration(d) + " ago"
}

// compareNatural orders names so that line-2 comes before line-10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		da, db := leadingDigits(a), leadingDigits(b)
		if da > 0 && db > 0 {
			na, nb := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
			if len(na) != len(nb) {
				return len(na) - len(nb)
			}
			if c := strings.Compare(na, nb); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
