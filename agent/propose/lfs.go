package propose

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitattributes"

	"stoker.io/stoker/agent/plan"
)

const (
	attributesFile = ".gitattributes"
	maxAttributes  = 1 << 20 // bytes of one .gitattributes
)

// attributes reads the .gitattributes files of a commit, each once.
type attributes struct {
	objects plan.Objects
	root    plan.ID
	read    map[string][]gitattributes.MatchAttribute // by the directory in git
}

// lfs reports whether git keeps a path in LFS: a commit with the content itself would not be what the repository asks for.
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
	at := strings.Join(dir, "/")
	if list, ok := a.read[at]; ok {
		return list, nil
	}
	var list []gitattributes.MatchAttribute
	i := slices.IndexFunc(entries, func(e plan.Entry) bool {
		return e.Name == attributesFile && (e.Mode == plan.Regular || e.Mode == plan.Executable)
	})
	if i >= 0 {
		b := &bounded{left: maxAttributes}
		if _, err := a.objects.WriteBlob(b, entries[i].ID); err != nil {
			return nil, fmt.Errorf("read %s: %w", strings.TrimPrefix(at+"/"+attributesFile, "/"), err)
		}
		var err error
		if list, err = gitattributes.ReadAttributes(&b.Buffer, slices.Clone(dir), len(dir) == 0); err != nil {
			return nil, fmt.Errorf("read %s: %w", strings.TrimPrefix(at+"/"+attributesFile, "/"), err)
		}
	}
	a.read[at] = list
	return list, nil
}

// bounded is a buffer that keeps the first bytes.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return b.Buffer.Write(p)
}
