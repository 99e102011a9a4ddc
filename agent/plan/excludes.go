package plan

import (
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxPatterns bounds the patterns of one gateway: defaults, profile and pod together.
const maxPatterns = 1024

// Excludes is a list of doublestar patterns over destination paths. A pattern that ends in a slash or in /** matches a
// directory and all below it; any other pattern matches files.
type Excludes struct {
	patterns []string
	names    map[string]bool // of the pattern **/name
	dirNames map[string]bool // of the patterns **/name/ and **/name/**
	files    []string
	dirs     []string
}

// NewExcludes compiles patterns. Their order does not matter.
func NewExcludes(patterns []string) (Excludes, error) {
	x := Excludes{names: map[string]bool{}, dirNames: map[string]bool{}}
	if len(patterns) > maxPatterns {
		return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns has %d patterns; at most %d are allowed",
			len(patterns), maxPatterns)
	}
	for _, p := range patterns {
		if problem := v1alpha1.PathPatternProblem(p); problem != "" {
			return x, failure.New(v1alpha1.ReasonProfilesInvalid, "excludePatterns: %q %s", p, problem)
		}
		x.add(p)
	}
	return x, nil
}

const glob = `*?[]{}\`

func (x *Excludes) add(p string) {
	x.patterns = append(x.patterns, p)
	if dir, ok := strings.CutSuffix(p, "/"); ok {
		x.addDir(dir)
		return
	}
	if dir, ok := strings.CutSuffix(p, "/**"); ok {
		x.addDir(dir)
		p = dir // as in doublestar, a/** also matches a file a
	}
	if name, ok := strings.CutPrefix(p, "**/"); ok && !strings.ContainsAny(name, glob+"/") {
		x.names[name] = true
		return
	}
	x.files = append(x.files, p)
}

func (x *Excludes) addDir(p string) {
	if name, ok := strings.CutPrefix(p, "**/"); ok && !strings.ContainsAny(name, glob+"/") {
		x.dirNames[name] = true
		return
	}
	x.dirs = append(x.dirs, p)
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
	return x.names[relpath.Base(path)] || matchAny(x.files, path)
}

// MatchDir reports whether a pattern matches the directory itself, without its parents.
func (x *Excludes) MatchDir(path string) bool {
	return x.dirNames[relpath.Base(path)] || matchAny(x.dirs, path)
}

func matchAny(patterns []string, path string) bool {
	for _, p := range patterns {
		if doublestar.MatchUnvalidated(p, path) {
			return true
		}
	}
	return false
}
