package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)
	// mixedCase matches words that only a name can be. A name with its package before a dot belongs to another module.
	mixedCase = regexp.MustCompile(`(?:^|[^.\w\\])([a-z]+[a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*)\b`)
)

// foreign has names that occur only in comments: those of other projects, and an example test.
var foreign = []string{"AppProjects", "EndpointSlice", "GitOps", "NodePorts", "PromQL", "TestPageCommands"}

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

func TestCommentsMentionExistingNames(t *testing.T) {
	report(t, staleNames(files(t)))
}

// staleDocs returns the doc comments that begin with the name of something else. Those of tests may begin with any word.
func staleDocs(f file) ([]string, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var stale []string
	check := func(doc *ast.CommentGroup, name string) {
		first, _, _ := strings.Cut(doc.Text(), " ")
		if first != name && first != "" && unicode.IsLower(rune(first[0])) && !strings.HasPrefix(name, "Test") {
			stale = append(stale, fmt.Sprintf("%s:%d: the comment of %s begins with %q", f.path, set.Position(doc.Pos()).Line, name, first))
		}
	}
	for _, decl := range tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			check(d.Doc, d.Name.Name)
		case *ast.GenDecl:
			if len(d.Specs) != 1 {
				continue
			}
			switch s := d.Specs[0].(type) {
			case *ast.TypeSpec:
				check(d.Doc, s.Name.Name)
			case *ast.ValueSpec:
				check(d.Doc, s.Names[0].Name)
			}
		}
	}
	return stale, nil
}

func TestDocCommentsStartWithName(t *testing.T) {
	for _, f := range files(t) {
		if f.isGo() && !f.isSample() {
			stale, err := staleDocs(f)
			require.NoError(t, err)
			report(t, stale)
		}
	}
}

const threatPage = "docs/internals/threats.md"

var (
	threatRow = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|`)
	threatID  = regexp.MustCompile(`\b[FCRIPUG][0-9]{1,2}\b`)
)

// brokenThreats returns the threats of the page that no test names, and the threats in test comments that
// the page does not have.
func brokenThreats(all []file) []string {
	listed, tested := map[string]bool{}, map[string]string{}
	for _, f := range all {
		if f.path == threatPage {
			for _, row := range threatRow.FindAllSubmatch(f.content, -1) {
				listed[string(row[1])] = true
			}
		}
		if !strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for line := range strings.Lines(string(f.content)) {
			_, comment, found := strings.Cut(line, "// ")
			if found {
				for _, id := range threatID.FindAllString(comment, -1) {
					tested[id] = f.path
				}
			}
		}
	}
	var broken []string
	for id := range listed {
		if tested[id] == "" {
			broken = append(broken, fmt.Sprintf("%s: no comment of a test names %s", threatPage, id))
		}
	}
	for id, where := range tested {
		if !listed[id] {
			broken = append(broken, fmt.Sprintf("%s names %s, which %s does not have", where, id, threatPage))
		}
	}
	return broken
}

func TestThreatsHaveTests(t *testing.T) { report(t, brokenThreats(files(t))) }

func TestThreatRules(t *testing.T) {
	page := file{threatPage, []byte("| | x |\n|---|---|\n| F1 | x |\n| C10 | x |\n")}
	check := func(text string) []string { return brokenThreats([]file{page, {"a/a_test.go", []byte(text)}}) }
	assert.Empty(t, check("// F1: links.\nfunc TestX() {} // C10, too\n"))
	assert.Len(t, check("// F1: links.\n"), 1, "C10 has no test")
	assert.Len(t, check("// F1, C10, R1\n"), 1, "R1 has no row")
	assert.Len(t, check("x := F1 + C10\n"), 2, "an identifier must not count as a comment")
}
