package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

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
