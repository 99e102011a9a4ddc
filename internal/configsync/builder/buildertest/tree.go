// Package buildertest has a commit in memory for the tests of the tools that package builder runs.
package buildertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/failure"
)

// Link is the content of a symbolic link.
const Link = "a symbolic link"

// Tree is a commit: the contents of its files by their paths. It implements builder.Tree and chart.Tree.
type Tree map[string]string

// Stat implements builder.Tree.
func (t Tree) Stat(p string) (builder.Kind, error) {
	for at := p; at != "."; at = path.Dir(at) {
		if t[at] == Link {
			return builder.Nothing, failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link", failure.Quote(at))
		}
	}
	if _, there := t[p]; there {
		return builder.File, nil
	}
	for name := range t {
		if p == "." || strings.HasPrefix(name, p+"/") {
			return builder.Folder, nil
		}
	}
	return builder.Nothing, nil
}

// Fetch implements builder.Tree.
func (t Tree) Fetch(_ context.Context, paths []string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, p := range paths {
		text, there := t[p]
		if !there || text == Link {
			return nil, errors.New("not a file: " + p)
		}
		all[p] = []byte(text)
	}
	return all, nil
}

// List implements chart.Tree. The folder must not be the root.
func (t Tree) List(folder string) (list []string, _ error) {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if strings.HasPrefix(name, folder+"/") {
			list = append(list, name)
		}
	}
	return list, nil
}

// Bomb returns a small text of YAML whose aliases stand for more than 9^12 values.
func Bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range 12 {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i+1, i+1, i, i, i, i, i, i, i, i, i)
	}
	return b.String()
}
