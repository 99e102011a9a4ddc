package propose

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitattributes"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/bound"
)

const (
	attributesFile = ".gitattributes"
	maxAttributes  = 1 << 20 // bytes of one .gitattributes
)

// attributes reads the .gitattributes files of a commit, each once.
type attributes struct {
	objects plan.Objects
	root    plan.ID
	read    map[string][]gitattributes.MatchAttribute // by the path of the file
}

// lfs reports whether git keeps a path in LFS. A commit must then have a pointer there, and not the content.
func (a *attributes) lfs(source plan.Path) (bool, error) {
	parts := strings.Split(string(source), "/")
	var rules []gitattributes.MatchAttribute
	tree := a.root
	for depth := range parts {
		entries, err := a.objects.Tree(tree)
		if err != nil {
			return false, fmt.Errorf("read the attributes of %s: %w", source, err)
		}
		below, err := a.rules(parts[:depth], entries)
		if err != nil {
			return false, err
		}
		rules = append(rules, below...)
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == parts[depth] && e.Mode == plan.Directory })
		if i < 0 {
			break // the directory is new
		}
		tree = entries[i].ID
	}
	found, _ := gitattributes.NewMatcher(rules).Match(parts, []string{"filter"})
	f, ok := found["filter"]
	return ok && f.IsValueSet() && f.Value() == "lfs", nil
}

// rules returns the rules of the .gitattributes in one directory.
func (a *attributes) rules(dir []string, entries []plan.Entry) ([]gitattributes.MatchAttribute, error) {
	file := path.Join(path.Join(dir...), attributesFile)
	if list, ok := a.read[file]; ok {
		return list, nil
	}
	var list []gitattributes.MatchAttribute
	i := slices.IndexFunc(entries, func(e plan.Entry) bool {
		return e.Name == attributesFile && (e.Mode == plan.Regular || e.Mode == plan.Executable)
	})
	if i >= 0 {
		b := bound.NewBuffer(maxAttributes, errFull)
		if _, err := a.objects.WriteBlob(b, entries[i].ID); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		lines := bufio.NewScanner(bytes.NewReader(b.Bytes()))
		for lines.Scan() {
			if strings.HasPrefix(strings.TrimSpace(lines.Text()), `""`) {
				continue // go-git panics on it
			}
			rule, err := gitattributes.ParseAttributesLine(lines.Text(), slices.Clone(dir), len(dir) == 0)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
			// The attributes of a directory do not apply to its files, and go-git panics when it matches them.
			if rule.Name != "" && !strings.HasSuffix(rule.Name, "/") {
				list = append(list, rule)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	a.read[file] = list
	return list, nil
}

// errFull returns the error of a write that does not fit.
func errFull() error { return io.ErrShortWrite }
