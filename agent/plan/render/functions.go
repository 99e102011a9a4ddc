package render

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"stoker.io/stoker/agent/ignition/resource"
)

// functions returns the functions of templates besides and, or, not, eq, ne, lt, le, gt, ge, len, index and slice of
// text/template. They depend only on their arguments, and charge the meter for text that they make. docs/reference/template-functions.md lists
// them; a test compares.
func (m *meter) functions() template.FuncMap {
	text := func(f func(string) string) func(string) (string, error) {
		return func(s string) (string, error) { return f(s), m.charge(len(s) * 3) } // changing the case can lengthen a letter
	}
	cut := func(f func(string, string) string) func(string, string) string {
		return func(what, s string) string { return f(s, what) }
	}
	return template.FuncMap{
		step: m.step,

		"default": func(otherwise, value any) any {
			if isTrue, ok := template.IsTrue(value); ok && isTrue {
				return value
			}
			return otherwise
		},
		"required": func(message string, value any) (any, error) {
			if value == nil || value == "" {
				return nil, errors.New(message)
			}
			return value, nil
		},
		"json": m.json,

		"lower": text(strings.ToLower), "upper": text(strings.ToUpper),
		"trim":       func(s string) string { return strings.TrimSpace(s) },
		"trimPrefix": cut(strings.TrimPrefix), "trimSuffix": cut(strings.TrimSuffix),
		"hasPrefix": func(what, s string) bool { return strings.HasPrefix(s, what) },
		"hasSuffix": func(what, s string) bool { return strings.HasSuffix(s, what) },
		"contains":  func(what, s string) bool { return strings.Contains(s, what) },
		"replace":   m.replace,
		"split":     m.split,
		"print":     m.print, "println": m.println, "printf": m.printf,

		"int": func(s string) (int, error) { return strconv.Atoi(strings.TrimSpace(s)) },
		"add": func(a, b int) int { return a + b },
		"sub": func(a, b int) int { return a - b },
		"mul": func(a, b int) int { return a * b },
		"div": func(a, b int) (int, error) {
			if b == 0 {
				return 0, errDivision
			}
			return a / b, nil
		},
		"mod": func(a, b int) (int, error) {
			if b == 0 {
				return 0, errDivision
			}
			return a % b, nil
		},

		// The functions of text/template that are disabled: they write for the web or call function values.
		"html": missing("html"), "js": missing("js"), "urlquery": missing("urlquery"), "call": missing("call"),
	}
}

var errDivision = errors.New("division by zero")

// missing replaces a function of text/template that templates must not call.
func missing(name string) func(...any) (string, error) {
	return func(...any) (string, error) { return "", fmt.Errorf("the function %s is not available", name) }
}

func (m *meter) replace(what, with, s string) (string, error) {
	n := strings.Count(s, what)
	if err := m.charge(len(s) + n*max(len(with)-len(what), 0)); err != nil {
		return "", err
	}
	return strings.ReplaceAll(s, what, with), nil
}

func (m *meter) split(at, s string) ([]string, error) {
	const header = 16 // bytes of a string without its text
	if err := m.charge(header * (strings.Count(s, at) + 1)); err != nil {
		return nil, err
	}
	return strings.Split(s, at), nil
}

// json returns a value as JSON, with the escapes that a gateway uses.
func (m *meter) json(v any) (string, error) {
	switch v := v.(type) {
	case string:
		if err := m.charge(len(v)*6 + 2); err != nil { // the longest escape, as in \u003c
			return "", err
		}
		return string(resource.AppendString(nil, v)), nil
	case nil:
		return "null", nil
	case bool, int, int64, float64:
		return fmt.Sprint(v), nil
	}
	return "", fmt.Errorf("json takes text, a number or a boolean, not %T", v)
}

func (m *meter) print(args ...any) (string, error) {
	if _, err := m.scalars(args); err != nil {
		return "", err
	}
	return fmt.Sprint(args...), nil
}

func (m *meter) println(args ...any) (string, error) {
	if _, err := m.scalars(args); err != nil {
		return "", err
	}
	return fmt.Sprintln(args...), nil
}

// printfVerb matches a verb of fmt with a width and a precision of at most three digits, neither of which is an argument (*).
var printfVerb = regexp.MustCompile(`^%[-+# 0]*(\[[0-9]{1,3}\])?[0-9]{0,3}(\.[0-9]{0,3})?(\[[0-9]{1,3}\])?([^-+# 0-9.*\[]|$)`)

// maxPadded is the number of bytes that a verb writes for a number at most: the 309 digits of the largest float64, a sign, a point
// and 999 decimals. Padding to a width of 999 is shorter.
const maxPadded = 1310

// printf is fmt.Sprintf for formats whose verbs match printfVerb. It charges for the text first: no verb writes more than five
// bytes for one byte of its argument ("% #x"), or more than maxPadded if that is longer.
func (m *meter) printf(format string, args ...any) (string, error) {
	longest, err := m.scalars(args)
	if err != nil {
		return "", err
	}
	verbs, rest := 0, format
	for i := strings.IndexByte(rest, '%'); i >= 0; i = strings.IndexByte(rest, '%') {
		rest = rest[i:]
		v := printfVerb.FindString(rest)
		if v == "" {
			return "", fmt.Errorf("printf: %.20q does not begin with a verb: width and precision are numbers of at most three digits; for a percent sign, write %%%%", rest)
		}
		rest = rest[len(v):]
		verbs++
	}
	if err := m.charge(len(format) + verbs*(5*longest+maxPadded)); err != nil {
		return "", err
	}
	return fmt.Sprintf(format, args...), nil
}

// scalars charges for arguments that become text, and returns the size of the longest.
func (m *meter) scalars(args []any) (longest int, err error) {
	sum := 0
	for _, a := range args {
		n := 32
		switch a := a.(type) {
		case string:
			n = len(a)
		case nil, bool, byte, rune, int, int64, float64:
		default:
			return 0, fmt.Errorf("arguments must be text or numbers, not %T", a)
		}
		sum += n + 1
		longest = max(longest, n)
	}
	return longest, m.charge(sum)
}
