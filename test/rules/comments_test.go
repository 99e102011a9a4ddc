package rules

import (
	"fmt"
	"go/scanner"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

var (
	word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)
	// mixedCase matches words that only a name can be. A name with its package before a dot belongs to another module.
	mixedCase = regexp.MustCompile(`(?:^|[^.\w\\])([a-z]+[a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
)

// foreign are names of other projects that occur only in comments.
var foreign = []string{"AppProjects", "EndpointSlice", "GitOps", "NodePorts", "TestTheCommandsOfThePageWork"}

// staleNames returns the comments in Go files that mention a name that is declared, used or written nowhere.
func staleNames(all []file) []string {
	known := map[string]bool{}
	for _, name := range foreign {
		known[name] = true
	}
	type comment struct {
		path string
		line int
		text string
	}
	var comments []comment
	for _, f := range all {
		if !f.isGo() {
			for _, w := range word.FindAllString(string(f.content), -1) {
				known[w] = true
			}
			continue
		}
		var s scanner.Scanner
		set := token.NewFileSet()
		s.Init(set.AddFile(f.path, -1, len(f.content)), f.content, nil, scanner.ScanComments)
		for pos, kind, text := s.Scan(); kind != token.EOF; pos, kind, text = s.Scan() {
			switch {
			case kind != token.COMMENT:
				for _, w := range word.FindAllString(text, -1) {
					known[w] = true
				}
			case !strings.HasPrefix(text, "// +") && !strings.HasPrefix(text, "//go:"): // these are for other programs
				comments = append(comments, comment{f.path, set.Position(pos).Line, text})
			}
		}
	}
	var stale []string
	for _, c := range comments {
		for _, m := range mixedCase.FindAllStringSubmatch(c.text, -1) {
			if !known[m[1]] {
				stale = append(stale, fmt.Sprintf("%s:%d: the comment mentions %s, which does not exist: was it renamed?", c.path, c.line, m[1]))
			}
		}
	}
	return stale
}

func TestCommentsMentionNamesThatExist(t *testing.T) {
	report(t, staleNames(files(t)))
}

func TestStaleNamesAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		comment string
		stale   bool
	}{
		"renamed function":        {"// run calls openFile first.", true},
		"renamed type":            {"// run returns a FileMode.", true},
		"declared":                {"// run calls readFile first.", false},
		"of another package":      {"// run implements fmt.GoStringer.", false},
		"a marker":                {"// +listType=set", false},
		"only in a document":      {"// run writes syncPeriod.", false},
		"a word in capitals":      {"// run speaks HTTP.", false},
		"a sentence without name": {"// run reads a file.", false},
	} {
		t.Run(name, func(t *testing.T) {
			all := []file{{"a.go", []byte("package a\n\n" + tt.comment + "\nfunc run() { readFile() }\n")}, {"a.md", []byte("`syncPeriod`")}}
			assert.Equal(t, tt.stale, slices.ContainsFunc(staleNames(all), func(s string) bool { return strings.HasPrefix(s, "a.go:3: ") }))
		})
	}
}
