package plan

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// F4: paths that a GatewaySync must not contain.
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
	"git with a blank at the end": {".git /config", v1alpha1.ReasonUnsafePath},
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
