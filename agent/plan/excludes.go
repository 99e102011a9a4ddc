package plan

import (
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// maxPatterns bounds the patterns of one gateway: defaults, profile and pod together.
const maxPatterns = 1024

// Excludes is a list of doublestar patterns over destination paths. A pattern that ends in a slash or in /** matches a
// directory and all below it; any other pattern matches files.
type Excludes struct {
	patterns    []string
	files, dirs matcher
}

// NewExcludes compiles patterns. Their order does not matter.
func NewExcludes(patterns []string) (Excludes, error) {
	x := Excludes{files: matcher{names: map[string]bool{}}, dirs: matcher{names: map[string]bool{}}}
	if len(patterns) > maxPatterns {
		return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns has %d patterns; at most %d are allowed",
			len(patterns), maxPatterns)
	}
	for _, p := range patterns {
		if problem := validation.PathPatternProblem(p); problem != "" {
			return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns: %q %s", p, problem)
		}
		x.add(p)
	}
	return x, nil
}

func (x *Excludes) add(p string) {
	x.patterns = append(x.patterns, p)
	dir, isDir := strings.CutSuffix(p, "/")
	contents, isContents := strings.CutSuffix(p, "/**")
	switch {
	case isDir:
		x.dirs.add(dir)
	case isContents:
		x.dirs.add(contents)
		x.files.add(contents) // as in doublestar, a/** also matches a file a
	default:
		x.files.add(p)
	}
}

// Match reports whether the file at path is excluded, by itself or by a parent directory.
func (x *Excludes) Match(path string) bool {
	for i := range len(path) {
		if path[i] == '/' && x.MatchDir(path[:i]) {
			return true
		}
	}
	return x.MatchFile(path)
}

// MatchFile reports whether a pattern matches the file itself, without its parents.
func (x *Excludes) MatchFile(path string) bool {
	return x.files.match(path)
}

// MatchDir reports whether a pattern matches the directory itself, without its parents.
func (x *Excludes) MatchDir(path string) bool {
	return x.dirs.match(path)
}

// matcher matches paths against patterns.
type matcher struct {
	names    map[string]bool // of the patterns **/name, the most frequent ones
	patterns []string        // the others
}

func (m *matcher) add(p string) {
	if name, ok := strings.CutPrefix(p, "**/"); ok && !strings.ContainsAny(name, `*?[]{}\/`) {
		m.names[name] = true
		return
	}
	m.patterns = append(m.patterns, p)
}

func (m *matcher) match(path string) bool {
	return m.names[relpath.Base(path)] ||
		slices.ContainsFunc(m.patterns, func(p string) bool { return doublestar.MatchUnvalidated(p, path) })
}
