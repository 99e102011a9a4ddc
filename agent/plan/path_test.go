package plan

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// F4 of docs/internals/threats.md: paths that a GatewaySync must not contain.
var hostilePaths = map[string]struct {
	path   string
	reason v1alpha1.Reason
}{
	"empty":                       {"", v1alpha1.ReasonUnsafePath},
	"parent":                      {"..", v1alpha1.ReasonUnsafePath},
	"parent in between":           {"a/../../b", v1alpha1.ReasonUnsafePath},
	"parent that stays inside":    {"a/b/../c", v1alpha1.ReasonUnsafePath},
	"parent at the end":           {"a/..", v1alpha1.ReasonUnsafePath},
	"absolute":                    {"/abs", v1alpha1.ReasonUnsafePath},
	"two leading slashes":         {"//host/share", v1alpha1.ReasonUnsafePath},
	"backslashes":                 {`a\..\b`, v1alpha1.ReasonUnsafePath},
	"UNC":                         {`\\host\share`, v1alpha1.ReasonUnsafePath},
	"drive letter":                {"C:x", v1alpha1.ReasonUnsafePath},
	"drive letter after a dot":    {"./c:/x", v1alpha1.ReasonUnsafePath},
	"git config":                  {".git/config", v1alpha1.ReasonUnsafePath},
	"git in capitals":             {".GIT/", v1alpha1.ReasonUnsafePath},
	"git below":                   {"a/.Git/hooks", v1alpha1.ReasonUnsafePath},
	"git with a dot at the end":   {".git./config", v1alpha1.ReasonUnsafePath},
	"git with a space at the end": {".git /config", v1alpha1.ReasonUnsafePath},
	"git as a stream":             {".git::$INDEX_ALLOCATION/config", v1alpha1.ReasonUnsafePath},
	"git as a short name":         {"git~1", v1alpha1.ReasonUnsafePath},
	"git as a capital short name": {"GIT~1/config", v1alpha1.ReasonUnsafePath},
	"NUL":                         {"a\x00b", v1alpha1.ReasonUnsafePath},
	"newline":                     {"a\nb", v1alpha1.ReasonUnsafePath},
	"carriage return":             {"a\r", v1alpha1.ReasonUnsafePath},
	"escape":                      {"a\x1b[2J", v1alpha1.ReasonUnsafePath},
	"C1 control":                  {"a\u0085b", v1alpha1.ReasonUnsafePath},
	"invalid UTF-8":               {"a/\xff\xfe", v1alpha1.ReasonUnsafePath},
	"5000 characters":             {strings.Repeat("a", 5000), v1alpha1.ReasonLimitExceeded},
	"a name of 256 bytes":         {"a/" + strings.Repeat("n", 256), v1alpha1.ReasonLimitExceeded},
	"65 elements":                 {strings.Repeat("a/", 64) + "a", v1alpha1.ReasonLimitExceeded},
}

func TestParsePathRefusesEscapes(t *testing.T) {
	for name, c := range hostilePaths {
		t.Run(name, func(t *testing.T) {
			p, err := ParsePath(c.path)
			require.Error(t, err, "%q became %q", c.path, p)
			assert.Equal(t, c.reason, failure.Reason(err, ""))
			assert.NotContains(t, err.Error(), "\x1b")
			assert.Less(t, len(err.Error()), 1500, "a message must not grow with its input")
		})
	}
}

func TestParsePathCleans(t *testing.T) {
	for in, want := range map[string]Path{
		".": Root, "./": Root, "projects": "projects", "projects/": "projects", "./projects": "projects",
		"a//b": "a/b", "a/./b/": "a/b", "..a/b..": "..a/b..", "größe/日本": "größe/日本", "a b/c:d": "a b/c:d",
		".gitkeep": ".gitkeep", ".github/x": ".github/x", "a/C:x": "a/C:x",
		strings.Repeat("n", 255):       Path(strings.Repeat("n", 255)),
		strings.Repeat("a/", 63) + "a": Path(strings.Repeat("a/", 63) + "a"),
	} {
		t.Run(fmt.Sprintf("%.40q", in), func(t *testing.T) {
			got, err := ParsePath(in)
			require.NoError(t, err, "%q", in)
			assert.Equal(t, want, got, "%q", in)
		})
	}
}

// F4: every accepted path stays below its root.
func FuzzParsePath(f *testing.F) {
	for _, c := range hostilePaths {
		f.Add(c.path)
	}
	for _, s := range []string{".", "a/b", "./a//b/", "ﬀ/ß", "a/\u0065\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			if failure.Reason(err, "") == "" {
				t.Fatalf("an error without a reason: %v", err)
			}
			return
		}
		text := string(p)
		if !filepath.IsLocal(text) || path.Clean(text) != text {
			t.Fatalf("%q became %q, which is not local and clean", s, p)
		}
		if joined := path.Join("/root", text); joined != "/root" && !strings.HasPrefix(joined, "/root/") {
			t.Fatalf("%q became %q, which leaves the root", s, p)
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || strings.Contains(text, `\`) {
			t.Fatalf("%q became %q", s, p)
		}
		if again, err := ParsePath(text); err != nil || again != p {
			t.Fatalf("%q became %q, and that became %q, %v", s, p, again, err)
		}
	})
}

func TestExcludesMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"**/.git/", "projects/p/.git/config", true},
		{"**/.git/", ".git/config", true},
		{"**/.git/", "projects/.git", false}, // a file of that name is not a directory
		{"**/.gitkeep", "projects/.gitkeep", true},
		{"**/.gitkeep", ".gitkeep", true},
		{"**/.gitkeep", "projects/.gitkeep/x", false},
		{"**/.resources/**", "projects/.resources/ab/cd", true},
		{"**/.resources/**", "projects/p/.resources", true},
		{"projects/p/", "projects/p/view.json", true},
		{"projects/p/", "projects/p-2/view.json", false},
		{"projects/p", "projects/p/view.json", false},
		{"projects/*", "projects/a.txt", true},
		{"projects/*", "projects/p/a.txt", false},
		{"projects/*/", "projects/p/a.txt", true},
		{"**/*.{bak,tmp}", "projects/p/a.tmp", true},
		{"**/*.{bak,tmp}", "projects/p/a.json", false},
		{"config/**/user-source/**", "config/resources/core/ignition/user-source/x/config.json", true},
		{"**/user-source", "config/user-source/x", false},
		{"**/[a-c]?/", "x/b1/y", true},
		{"**", "anything/at/all", true},
	} {
		t.Run(c.pattern, func(t *testing.T) {
			x, err := NewExcludes([]string{c.pattern})
			require.NoError(t, err, c.pattern)
			assert.Equal(t, c.want, x.Match(c.path), "%s on %s", c.pattern, c.path)
		})
	}
}

func TestInvalidExcludes(t *testing.T) {
	for name, pattern := range map[string]string{
		"empty": "", "a slash": "/", "absolute": "/projects/**", "open bracket": "a[b", "open brace": "{a,b",
		"too long": strings.Repeat("a", 600), "too many alternatives": strings.Repeat("{a,b}", 10),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewExcludes([]string{pattern})
			assert.Equal(t, v1alpha1.ReasonProfilesInvalid, failure.Reason(err, ""), name)
		})
	}
}

// F11: matching must be fast for every pattern, and the shortcuts for common patterns must agree with doublestar.
func FuzzGlob(f *testing.F) {
	f.Add("**/.git/", "a/.git/b")
	f.Add("**/*a*a*a*a*a*a*a*a*a*b", strings.Repeat("a", 60))
	f.Add("**/**/**/**/**/**/**/b", strings.Repeat("a/", 60)+"c")
	f.Add("{a,b}{a,b}{a,b}*", "abababab")
	f.Add("**/x/**", "x")
	f.Add("a/**/b/", "a/b/c")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		x, err := NewExcludes([]string{pattern})
		if err != nil || len(path) > DefaultLimits.PathBytes || !clean(path) {
			return
		}
		began := time.Now()
		got := x.Match(path)
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("%q on %q took %s", pattern, path, took)
		}
		if want := byDefinition(pattern, path); got != want {
			t.Fatalf("%q on %q is %t, want %t", pattern, path, got, want)
		}
	})
}

func clean(path string) bool {
	p, err := ParsePath(path)
	return err == nil && string(p) == path && p != Root
}

// byDefinition implements the documented meaning of patterns without shortcuts.
func byDefinition(pattern, path string) bool {
	dir, isDir := strings.CutSuffix(pattern, "/")
	if below, ok := strings.CutSuffix(pattern, "/**"); ok {
		dir, isDir = below, true
		if doublestar.MatchUnvalidated(below, path) {
			return true
		}
	}
	for i := range len(path) {
		if isDir && path[i] == '/' && doublestar.MatchUnvalidated(dir, path[:i]) {
			return true
		}
	}
	return !strings.HasSuffix(pattern, "/") && doublestar.MatchUnvalidated(pattern, path)
}

func TestSourceOf(t *testing.T) {
	changes := Changes{Mappings: []Origin{{Source: "shared/lib", Destination: "projects"}, {Source: "gw.conf", Destination: "ignition.conf"}, {Source: ".", Destination: "config"}}}
	for path, c := range map[string]struct {
		origin uint16
		want   string
	}{
		"projects/lib/project.json": {0, "shared/lib/lib/project.json"},
		"ignition.conf":             {1, "gw.conf"},
		"config/resources/a":        {2, "resources/a"},
		"unknown":                   {3, ""},
	} {
		t.Run(path, func(t *testing.T) { assert.Equal(t, c.want, changes.SourceOf(&Change{Path: path, Origin: c.origin})) })
	}
}
