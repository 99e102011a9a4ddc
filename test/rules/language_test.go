package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// riddles are words that name no actor or that a reader of technical English does not expect. CONTRIBUTING.md has the rules.
var riddles = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|everybody|whoever|anew|mend(s|ed|ing)?)\b`)

var riddle = regexp.MustCompile(`(No|Some|Any|Every)` + `body|Who` + `ever|An` + `ew([A-Z]|$)|Mend`)

// negations are predicates such as "main is no tag", which English puts as "is not a tag". "There is no tag" and "no longer" are fine.
var negations = regexp.MustCompile(`(?i)\b(?:(there) )?(?:is|are|was|were) no (?:(longer|more|such|different|better)\b|\w+)`)

// conditions are sentences such as "Where the disk is full, the sync fails". `where` is a place.
var conditions = regexp.MustCompile(`(?m)(^\W*|[.!?:;#>] *)Where [a-z]`)

// names are riddles that are not prose, such as a name of a user.
var names = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|https?://\\S+|nobody:x?|\\bno" + "body's\\b|http\\.No" + "Body")

// text is a piece of prose: a comment, a paragraph of a document, a message.
type text struct {
	path    string
	line    int
	content string
}

// comments returns the comments of a Go file.
func comments(t *testing.T, f file) (all []text) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, f.path, f.content, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, group := range parsed.Comments {
		all = append(all, text{f.path, set.Position(group.Pos()).Line, group.Text()})
	}
	return all
}

// messages returns the string literals of a Go file that are sentences.
func messages(t *testing.T, f file) (all []text) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, f.path, f.content, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(s, " ") {
				all = append(all, text{f.path, set.Position(lit.Pos()).Line, s})
			}
		}
		return true
	})
	return all
}

// documents returns the paragraphs of a Markdown file, or the lines of another text file, such as YAML. There, quotes enclose prose, too.
func documents(f file) (all []text) {
	if !strings.HasSuffix(f.path, ".md") {
		for i, line := range strings.Split(string(f.content), "\n") {
			all = append(all, text{f.path, i + 1, strings.ReplaceAll(line, `"`, " ")})
		}
		return all
	}
	for number, line := range prose(f.content) {
		if !strings.HasPrefix(line, "    ") {
			all = append(all, text{f.path, number, line})
		}
	}
	return all
}

func broken(all []text) (found []string) {
	for _, x := range all {
		prose := names.ReplaceAllString(x.content, "")
		if m := riddles.FindString(prose); m != "" {
			found = append(found, fmt.Sprintf("%s:%d: %q: name the actor, or use the field's word (CONTRIBUTING.md)", x.path, x.line, m))
		}
		if m := conditions.FindString(prose); m != "" {
			found = append(found, fmt.Sprintf("%s:%d: %q: a condition is `if` or `when`", x.path, x.line, m))
		}
		for _, m := range negations.FindAllStringSubmatch(strings.Join(strings.Fields(prose), " "), -1) {
			if m[1] == "" && m[2] == "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: write `is not a`", x.path, x.line, m[0]))
			}
		}
	}
	return found
}

// wordsOf counts the words of an identifier. An acronym and the word after it count as one.
func wordsOf(identifier string) (n int) {
	upper := false
	for i, r := range identifier {
		now := unicode.IsUpper(r) || unicode.IsDigit(r)
		if now && !upper || i == 0 {
			n++
		}
		upper = now
	}
	return n
}

const maxTestName = 8

var testName = regexp.MustCompile(`(?m)^func (Test|Fuzz|Benchmark)(\w+)\(`)

func TestLanguage(t *testing.T) {
	var product, others, docs, sentences []text
	ifs, wheres := regexp.MustCompile(`(?i)\b(if|when)\b`), regexp.MustCompile(`(?i)\bwhere\b`)
	longNames := 0
	var violations []string
	for _, f := range files(t) {
		switch {
		case f.isSample() || generated.Match(f.content):
		case f.isGo() && !f.isTest():
			product = append(product, comments(t, f)...)
			sentences = append(sentences, messages(t, f)...)
		case f.isGo():
			others = append(others, comments(t, f)...)
			for _, m := range testName.FindAllStringSubmatch(string(f.content), -1) {
				if wordsOf(m[2]) > maxTestName {
					longNames++
					violations = append(violations, fmt.Sprintf("%s: %s%s has more than %d words: name the feature, and state the case in a sub-test", f.path, m[1], m[2], maxTestName))
				}
				if riddle.MatchString(m[2]) {
					violations = append(violations, fmt.Sprintf("%s: %s%s: name the feature", f.path, m[1], m[2]))
				}
			}
		case f.isText():
			docs = append(docs, documents(f)...)
		}
	}
	for _, all := range [][]text{product, others, docs, sentences} {
		violations = append(violations, broken(all)...)
	}
	nIfs, nWheres := 0, 0
	for _, c := range product {
		nIfs += len(ifs.FindAllString(c.content, -1))
		nWheres += len(wheres.FindAllString(c.content, -1))
	}
	t.Logf("language: if and when : where in product comments %d : %d; test names over %d words %d", nIfs, nWheres, maxTestName, longNames)
	assert.GreaterOrEqual(t, nIfs, 5*nWheres, "a condition is `if` or `when`; `where` is a place")
	report(t, violations)
}
